"""The load generator: asyncio, open loop, latency from the intended send time."""

from perf.load.generator import closed_loop, open_loop
from perf.load.records import OK, Record, Run, answered, load_run
from perf.load.targets import Chunk, GrpcTarget, Target

__all__ = ["OK", "Chunk", "GrpcTarget", "Record", "Run", "Target", "answered", "closed_loop", "load_run", "open_loop"]
