"""A vision tower as a TensorRT plan: execution contexts, device buffers and CUDA graphs.

One context for each optimisation profile of the plan; all share one pair of device buffers, as one batch runs at a
time. Batches of the usual sizes are captured once as CUDA graphs, and replayed: a tower is hundreds of small kernels,
whose launches take longer than some of them run. A batch between two sizes is padded to the next.
Names are those of TensorRT 10 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.workers.targets import MissingRuntime

INPUT, OUTPUT = "tiles", "visual_tokens"
REBUILD = "build it again on this machine with `tvlm build`: a plan is for one TensorRT version and one kind of GPU"


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
        self._stream = torch.cuda.Stream()
        self._runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
        self._engine = self._load(plan)
        shapes = [
            self._engine.get_tensor_profile_shape(INPUT, i) for i in range(self._engine.num_optimization_profiles)
        ]
        self._profiles = [(int(low[0]), int(high[0])) for low, _, high in shapes]
        self.largest = max(high for _, high in self._profiles)
        tile = tuple(int(side) for side in shapes[0][2])[1:]
        tokens = tuple(int(side) for side in self._engine.get_tensor_shape(OUTPUT))[1:]
        dtype = {tensorrt.DataType.HALF: torch.float16, tensorrt.DataType.BF16: torch.bfloat16}.get(
            self._engine.get_tensor_dtype(OUTPUT), torch.float32
        )
        self._input = torch.zeros((self.largest, *tile), dtype=torch.uint8, device="cuda")
        self._output = torch.zeros((self.largest, *tokens), dtype=dtype, device="cuda")
        self._pinned = torch.zeros((self.largest, *tile), dtype=torch.uint8, pin_memory=True)  # host copies overlap
        self._contexts = [self._context(i) for i in range(len(self._profiles))]
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

    def _load(self, plan: Path) -> Any:
        try:
            data = plan.read_bytes()
        except FileNotFoundError:
            raise MissingRuntime(
                f"{plan} is not there: build again with `tvlm build` on a machine with a GPU"
            ) from None
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise MissingRuntime(f"{plan} does not load: {REBUILD}")
        names = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
        if names != {INPUT, OUTPUT}:
            raise MissingRuntime(f"{plan} has the tensors {', '.join(sorted(names))}, not {INPUT} and {OUTPUT}")
        return engine

    def _context(self, profile: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise MissingRuntime("TensorRT can't make an execution context: GPU memory is short")
        context.set_optimization_profile_async(profile, self._stream.cuda_stream)
        context.set_tensor_address(INPUT, self._input.data_ptr())
        context.set_tensor_address(OUTPUT, self._output.data_ptr())
        return context

    def _execute(self, run: Run) -> None:
        context = self._contexts[run.profile]
        context.set_input_shape(INPUT, (run.batch, *self._input.shape[1:]))
        if not context.execute_async_v3(self._torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"TensorRT could not run a batch of {run.batch}")

    def _capture(self, batch: int) -> Any:
        run = choose_run(batch, self._profiles, [])
        with self._torch.cuda.stream(self._stream):
            self._execute(run)  # what it allocates or tunes must not be captured
        self._stream.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            self._execute(run)
        return graph
