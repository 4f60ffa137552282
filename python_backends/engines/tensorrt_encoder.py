"""A vision tower of tiles as a TensorRT plan: execution contexts, device buffers and CUDA graphs.

One context for each optimisation profile of the plan; all share one pair of device buffers, as one batch runs at a
time. Batches of the usual sizes are captured once as CUDA graphs, and replayed: a tower is hundreds of small kernels,
whose launches take longer than some of them run. A batch between two sizes is padded to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.tensorrt_engine import OUTPUT, TensorRtEngine

INPUT = "tiles"


@dataclass(frozen=True)
class Run:
    """How a batch is run: by which profile's context, at which size, and whether as a graph."""

    profile: int
    batch: int
    graph: bool


def choose_run(tiles: int, profiles: Sequence[tuple[int, int]], graphs: Sequence[int]) -> Run:
    """For so many tiles: the smallest graph that holds them, else the profile that they fit.

    `profiles` are smallest and largest batch of each, `graphs` the sizes that were captured, rising. A batch below all
    profiles is padded; one above them has to be cut first.
    """
    graph = next((size for size in graphs if size >= tiles), None)
    batch = graph if graph is not None else tiles
    fitting = [i for i, (_, largest) in enumerate(profiles) if largest >= batch]
    profile = min(fitting, key=lambda i: profiles[i][1])
    return Run(profile, max(batch, profiles[profile][0]), graph is not None)


class TensorRtEncoder:
    """One plan on one GPU; one thread at a time."""

    def __init__(self, plan: Path, graph_batches: Sequence[int], torch: Any, tensorrt: Any) -> None:
        """Load the plan and capture its graphs (MissingRuntime: it is not there, or not for this machine)."""
        self._torch = torch
        self._engine = TensorRtEngine(plan, [INPUT], torch, tensorrt)
        self._stream = self._engine.stream
        shapes = self._engine.profiles(INPUT)
        self._profiles = [(low[0], high[0]) for low, _, high in shapes]
        self.largest = max(high for _, high in self._profiles)
        tile, tokens = shapes[0][2][1:], self._engine.shape(OUTPUT)[1:]
        self._input = torch.zeros((self.largest, *tile), dtype=torch.uint8, device="cuda")
        self._output = torch.zeros((self.largest, *tokens), dtype=self._engine.output_type, device="cuda")
        self._pinned = torch.zeros((self.largest, *tile), dtype=torch.uint8, pin_memory=True)  # host copies overlap
        buffers = {INPUT: self._input, OUTPUT: self._output}
        self._contexts = [self._engine.context(i, buffers) for i in range(len(self._profiles))]
        self._graphs: dict[int, Any] = {}
        for batch in graph_batches:
            if batch <= self.largest:
                self._graphs[batch] = self._capture(batch)
        for _, largest in self._profiles:  # the first run of a context allocates
            self.encode(np.zeros((largest, *tile), np.uint8))

    def encode(self, tiles: NDArray[np.uint8]) -> Any:
        """Visual tokens of tiles uint8 [n, H, W, 3], n up to `largest`: a float16 tensor [n, tokens, hidden].

        It is on the GPU, speaks DLPack, and is valid until the next call.
        """
        count = len(tiles)
        run = choose_run(count, self._profiles, list(self._graphs))
        with self._torch.cuda.stream(self._stream):
            self._pinned[:count].copy_(self._torch.from_numpy(np.ascontiguousarray(tiles)))
            self._input[:count].copy_(self._pinned[:count], non_blocking=True)
            if run.graph:
                self._graphs[run.batch].replay()
            else:
                self._execute(run)
            tokens = self._output[:count].to(self._torch.float16)
        self._stream.synchronize()
        return tokens

    def _execute(self, run: Run) -> None:
        self._engine.execute(self._contexts[run.profile], {INPUT: (run.batch, *self._input.shape[1:])})

    def _capture(self, batch: int) -> Any:
        run = choose_run(batch, self._profiles, [])
        with self._torch.cuda.stream(self._stream):
            self._execute(run)  # what it allocates or tunes must not be captured
        self._stream.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            self._execute(run)
        return graph
