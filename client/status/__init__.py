"""`tvlm status`: what a running server does, from Triton's statistics and metrics."""
