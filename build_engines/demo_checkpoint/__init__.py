"""The demo checkpoint: SmolLM2-135M-Instruct with a small SigLIP tower and connector, trained on drawn pictures."""
