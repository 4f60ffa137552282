"""Which class runs a stage's native code, by the device of its pool; and how a worker finds its GPUs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType

DECODE: Mapping[str, str] = {
    "cpu": "python_backends.media.worker:DecodeWorker",
    "gpu": "python_backends.media.dali:DaliWorker",
}
ENCODE: Mapping[str, str] = {
    "cpu": "python_backends.engines.vision_openvino:VisionWorker",
    "gpu": "python_backends.engines.vision_tensorrt:VisionWorker",
}
ENCODE_PATCHES: Mapping[str, str] = {  # towers of native resolution
    "cpu": "python_backends.engines.patches_openvino:PatchWorker",
    "gpu": "python_backends.engines.patches_tensorrt:PatchWorker",
}
TEXT: Mapping[str, str] = {
    "cpu": "python_backends.engines.llm_openvino:LlmEngine",
    "gpu": "python_backends.engines.llm_trtllm:LlmEngine",
}


class MissingRuntime(RuntimeError):
    """What a stage needs is not on this machine; the message says what, and where it is to be had."""


def gpu_environment(gpus: Sequence[int]) -> dict[str, str]:
    """For a worker's process: it sees these GPUs and no others, as numbers from 0 on.

    They are counted as this process counts them: in a container that sees GPUs 4 to 7, GPU 0 is the host's 4.
    """
    if not gpus:
        return {}
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    seen = [ours[gpu].strip() if ours != [""] and gpu < len(ours) else str(gpu) for gpu in gpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(seen), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def require(module: str, name: str, remedy: str) -> ModuleType:
    """Import a runtime's module (MissingRuntime: it is not installed, or does not load)."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingRuntime(f"{name} is not installed ({error}): {remedy}") from None
    except Exception as error:  # a library without its driver raises whatever it likes
        raise MissingRuntime(f"{name} does not load ({type(error).__name__}: {error}): {remedy}") from None


def require_cuda(torch: ModuleType) -> None:
    """Check that a GPU is there (MissingRuntime)."""
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        raise MissingRuntime(
            f"no CUDA device is there (CUDA_VISIBLE_DEVICES = {visible}): start the container with --gpus all, "
            "or use a deployment file of profile cpu"
        )
