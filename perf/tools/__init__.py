"""The load tools that users of Triton run, pointed at this product."""
