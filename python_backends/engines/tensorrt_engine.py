"""A TensorRT plan that is loaded, and its execution contexts. Names are those of TensorRT 10 and 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from python_backends.workers.targets import MissingRuntime

OUTPUT = "visual_tokens"
REBUILD = "build it again on this machine with `tvlm build`: a plan is for one TensorRT version and one kind of GPU"

Shape = tuple[int, ...]


class TensorRtEngine:
    """One plan on one GPU."""

    def __init__(self, plan: Path, inputs: Sequence[str], torch: Any, tensorrt: Any) -> None:
        """Load it (MissingRuntime: it is not there, not for this machine, or has other inputs)."""
        self.stream = torch.cuda.Stream()
        self._torch = torch
        self._runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
        self._engine = self._load(plan, {*inputs, OUTPUT})
        self.output_type = {tensorrt.DataType.HALF: torch.float16, tensorrt.DataType.BF16: torch.bfloat16}.get(
            self._engine.get_tensor_dtype(OUTPUT), torch.float32
        )

    def profiles(self, name: str) -> list[tuple[Shape, Shape, Shape]]:
        """Smallest, tuned for and largest shape of an input, by optimisation profile."""
        count = self._engine.num_optimization_profiles
        return [_shapes(self._engine.get_tensor_profile_shape(name, index)) for index in range(count)]

    def shape(self, name: str) -> Shape:
        """Of a tensor as the network has it, -1 where it varies."""
        return tuple(int(side) for side in self._engine.get_tensor_shape(name))

    def context(self, profile: int, tensors: Mapping[str, Any]) -> Any:
        """An execution context of a profile, on these device buffers by name (MissingRuntime: no memory for it)."""
        context = self._engine.create_execution_context()
        if context is None:
            raise MissingRuntime("TensorRT can't make an execution context: GPU memory is short")
        context.set_optimization_profile_async(profile, self.stream.cuda_stream)
        for name, tensor in tensors.items():
            context.set_tensor_address(name, tensor.data_ptr())
        return context

    def execute(self, context: Any, shapes: Mapping[str, Shape]) -> None:
        """Run it on the current stream with inputs of these shapes (RuntimeError)."""
        for name, shape in shapes.items():
            context.set_input_shape(name, shape)
        if not context.execute_async_v3(self._torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"TensorRT could not run {', '.join(f'{name} {shapes[name]}' for name in shapes)}")

    def _load(self, plan: Path, wanted: set[str]) -> Any:
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
        if names != wanted:
            raise MissingRuntime(f"{plan} has the tensors {', '.join(sorted(names))}, not {', '.join(sorted(wanted))}")
        return engine


def _shapes(three: Any) -> tuple[Shape, Shape, Shape]:
    low, tuned, high = (tuple(int(side) for side in shape) for shape in three)
    return low, tuned, high
