"""The load generator: asyncio, open loop, latency from the intended send time."""

from perf.load.generator import closed_loop, open_loop
from perf.load.grpc_target import GrpcTarget
from perf.load.openai_target import OpenAiTarget
from perf.load.records import OK, Record, Run, answered, load_run
from perf.load.targets import Chunk, Target, open_target

__all__ = [
    "OK",
    "Chunk",
    "GrpcTarget",
    "OpenAiTarget",
    "Record",
    "Run",
    "Target",
    "answered",
    "closed_loop",
    "load_run",
    "open_loop",
    "open_target",
]
