"""Visual tokens between encode and prefill."""
