"""Python client of the Triton model `vlm`, and the `tvlm` command line (client/cli.py).

from client import VlmClient

with VlmClient("grpc://localhost:8001") as vlm:
    print(vlm.generate("What is in the picture?", images=["cat.jpg"], max_tokens=32).text)
    for piece in vlm.stream("Tell me a story."):
        print(piece, end="")
"""

from client.api import AsyncVlmClient, VlmClient
from client.retry import RetryPolicy
from client.types import Answer, AsyncTextStream, ImageInput, StageTiming, TextStream, Usage, VlmError

__all__ = [
    "Answer",
    "AsyncTextStream",
    "AsyncVlmClient",
    "ImageInput",
    "RetryPolicy",
    "StageTiming",
    "TextStream",
    "Usage",
    "VlmClient",
    "VlmError",
]
