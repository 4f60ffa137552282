"""Engine adapters: what runs vision encode, and LLM prefill and decode, inside the worker processes."""
