"""OpenAI-compatible HTTP front door of the Triton model `vlm`: authentication, limits, protocol, and no inference."""
