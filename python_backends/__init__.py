"""The code behind the model repository's model.py files, importable and testable without Triton."""
