"""Vision encoder adapter: OpenVINO on the CPU, UINT8 tiles to FP16 visual tokens, in a worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.preprocess import PrePostProcessor

from python_backends.engines.vision_worker import BatchedVision

MODEL_FILES = ("model.xml", "model.onnx")


class VisionWorker(BatchedVision):
    """Loads the vision tower and encodes batches of tiles.

    One model of dynamic batch size: measured with the demo tower at batches of 1 to 8, it is as fast as one compiled
    for the size (8 tiles: 283 and 275 ms; 4: 124 and 108; 1: 41 and 31, on two busy cores), and a change of size costs
    no more than the noise, so padding to bucketed sizes would only add work.

    config: folder (with model.xml or model.onnx), image_size (pixels of a side), batch_size (tiles at a time),
    precision (auto, f32, bf16), threads (0: all cores).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._batch_size = int(config["batch_size"])
        self._request = compile_tower(config)
        side = int(config["image_size"])
        for count in (1, self._batch_size):  # the first inference of a shape builds its primitives
            self._encode(np.zeros((count, side, side, 3), np.uint8))

    def _encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        self._request.infer([np.ascontiguousarray(tiles)], share_inputs=True)
        return np.array(self._request.get_output_tensor().data)


def compile_tower(config: dict[str, Any]) -> ov.InferRequest:
    """A request of the model in config["folder"], with precision and threads as it says; what it gives is float16."""
    core = ov.Core()
    model = core.read_model(find_model(Path(config["folder"])))
    processor = PrePostProcessor(model)
    processor.output().tensor().set_element_type(ov.Type.f16)  # what travels on, converted while it is warm
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, on all threads
        "NUM_STREAMS": "1",
        # pinned threads begin at the first core in every process: two encoders would share it, the next one idle
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": precision(core, str(config["precision"])),
    }
    if config["threads"]:
        properties["INFERENCE_NUM_THREADS"] = int(config["threads"])
    return core.compile_model(processor.build(), "CPU", properties).create_infer_request()


def find_model(folder: Path) -> Path:
    """The vision model in a folder of artifacts (FileNotFoundError)."""
    for name in MODEL_FILES:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder} holds none of {', '.join(MODEL_FILES)}")


def precision(core: ov.Core, wanted: str) -> str:
    """`auto` is bf16 where the CPU has AMX for it, else f32: without AMX bf16 is slower than f32, or emulated."""
    if wanted != "auto":
        return wanted
    capable = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if capable and "amx_bf16" in _cpu_flags() else "f32"


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
