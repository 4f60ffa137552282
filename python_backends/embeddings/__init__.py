"""Visual tokens between encode and prefill: pages of shared memory, kept for images that are seen again."""
