"""The router behind the model vlm: parse, fan out, hand over, stream."""
