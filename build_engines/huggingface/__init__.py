"""Artifacts from a Hugging Face checkpoint folder; needs the extra [export] (torch, transformers, optimum-intel)."""
