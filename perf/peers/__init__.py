"""Outside engines on the same checkpoint, where they are installed: transformers' generate, and vLLM."""
