"""Vision runtime for towers of packed patches (Qwen2.5-VL): TensorRT, in a worker process that sees one GPU.

One execution context for each optimisation profile; all share the device buffers, as one batch runs at a time. There
are no CUDA graphs: packed lengths differ from batch to batch, and nothing would be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.tensorrt_engine import OUTPUT, Shape, TensorRtEngine
from python_backends.engines.vision_on_gpu import Arrays, VisionOnGpu
from python_backends.engines.vision_tensorrt import MODEL_FILE, import_runtime
from python_backends.engines.vision_worker import PackedVision

INPUTS = ("patches", "positions", "pictures", "windows", "slots")  # media.patches.tower_inputs


def choose_profile(shapes: Mapping[str, Shape], profiles: Sequence[Mapping[str, tuple[Shape, Shape]]]) -> int:
    """The first profile whose smallest and largest shapes hold these (ValueError: none does)."""
    for index, profile in enumerate(profiles):
        bounds = ((shapes[name][0], low[0], high[0]) for name, (low, high) in profile.items())
        if all(low <= count <= high for count, low, high in bounds):
            return index
    raise ValueError(f"no profile of the plan holds {shapes['patches'][0]} patches in {shapes['windows'][0]} windows")


class PatchEncoder:
    """One plan on one GPU; one thread at a time."""

    def __init__(self, plan: Path, torch: Any, tensorrt: Any) -> None:
        """Load the plan (MissingRuntime: it is not there, or not for this machine)."""
        self._torch = torch
        self._engine = TensorRtEngine(plan, INPUTS, torch, tensorrt)
        bounds = {name: self._engine.profiles(name) for name in INPUTS}
        count = len(bounds["patches"])
        self._profiles = [{name: bounds[name][i][::2] for name in INPUTS} for i in range(count)]
        self._buffers = {name: self._buffer(name, max(high for _, _, high in bounds[name])) for name in INPUTS}
        # patches outnumber the tokens that they become, whatever number of them is merged
        most, hidden = max(high[0] for _, _, high in bounds["patches"]), self._engine.shape(OUTPUT)[1]
        self._output = torch.zeros((most, hidden), dtype=self._engine.output_type, device="cuda")
        buffers = {**self._buffers, OUTPUT: self._output}
        self._contexts = [self._engine.context(i, buffers) for i in range(count)]

    def encode(self, inputs: Mapping[str, NDArray[Any]], tokens: int) -> Any:
        """So many visual tokens of these inputs: a float16 tensor [tokens, hidden].

        It is on the GPU, speaks DLPack, and is valid until the next call.
        """
        shapes = {name: inputs[name].shape for name in INPUTS}
        context = self._contexts[choose_profile(shapes, self._profiles)]
        with self._torch.cuda.stream(self._engine.stream):
            for name in INPUTS:
                # a buffer is flat, as a batch of other windows than the last one's fills it anew
                flat = self._torch.from_numpy(np.ascontiguousarray(inputs[name]).reshape(-1))
                self._buffers[name][: flat.shape[0]].copy_(flat)
            self._engine.execute(context, shapes)
            visual_tokens = self._output[:tokens].to(self._torch.float16)
        self._engine.stream.synchronize()
        return visual_tokens

    def _buffer(self, name: str, largest: Shape) -> Any:
        dtype = self._torch.uint8 if name == "patches" else self._torch.int32
        return self._torch.zeros((int(np.prod(largest)),), dtype=dtype, device="cuda")


class PatchWorker(VisionOnGpu, PackedVision):
    """config besides: folder (artifacts of the vision tower).

    Raises MissingRuntime for what is not there: PyTorch, a GPU, TensorRT, a plan that loads.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        torch, tensorrt = import_runtime()
        VisionOnGpu.__init__(self, torch)
        PackedVision.__init__(self, config)
        self._encoder = PatchEncoder(Path(config["folder"]) / MODEL_FILE, torch, tensorrt)
        self._warm_up()  # the first run of a context allocates

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`encode` (see PackedVision) or `encode_into` (see VisionOnGpu)."""
        return self.on_gpu(op, arrays, meta, super().handle)

    def parts(self, arrays: Arrays) -> Iterator[Any]:
        """See VisionOnGpu; all in one."""
        yield self._encoder.encode(*self._packed(arrays))

    def _encode(self, inputs: Mapping[str, NDArray[Any]], tokens: int) -> NDArray[np.float16]:
        # a copy, as the next call writes into the same buffer
        return np.array(np.from_dlpack(self._encoder.encode(inputs, tokens).cpu()))
