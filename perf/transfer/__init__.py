"""What it costs to hand visual tokens to the LLM worker: pages of shared memory beside tensors through BLS."""
