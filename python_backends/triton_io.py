"""Between Triton's Python backend and the rest: tensors to arrays and back, errors to TritonError.

Only model.py files and the router's Triton side import this; everything else runs without Triton.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from python_backends.elements import read
from python_backends.errors import as_serving_error, tagged, untagged
from python_backends.metrics import RESTARTS, Metric, Metrics


def artifacts_folder(args: Mapping[str, str]) -> Path:
    """Where `tvlm build` put the artifacts, from the arguments of a model's `initialize`."""
    return Path(args["model_repository"]).parent.parent / "artifacts"


def gpus(args: Mapping[str, str]) -> list[int]:
    """Where an instance of a model runs: the GPU that Triton gave it, or the parameter `gpus`; none on CPUs."""
    if args["model_instance_kind"] == "GPU":
        return [int(args["model_instance_device_id"])]
    listed = json.loads(args["model_config"]).get("parameters", {}).get("gpus", {}).get("string_value", "")
    return [int(number) for number in listed.split(",") if number]


def prepare_stub(model: str) -> None:
    """First call of every model's `initialize`: logging, and no life after tritonserver's death."""
    # goes to tritonserver's log (stderr)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {model}: %(message)s")
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent-watch", daemon=True).start()


def read_elements(most: int) -> None:
    """Let Triton's stub read BYTES tensors as `elements` does: it makes objects of them before a model sees them."""
    pb_utils.deserialize_bytes_tensor = lambda encoded: read(encoded, most)  # looked up at each call


def _end_with(parent: int) -> None:
    """A stub whose tritonserver was killed tries to exit in order, and hangs in threads that wait for it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def is_probe(request: Any) -> bool:
    """Whether it is a health inference of `tvlm serve`, which only wants to be answered."""
    return "tvlm_probe" in request.parameters()


def input_arrays(request: Any) -> dict[str, NDArray[Any]]:
    """The tensors that a request (or a BLS response) carries; absent optional ones are absent here."""
    return {tensor.name(): input_array(tensor) for tensor in request.inputs()}


def input_array(tensor: Any) -> NDArray[Any]:
    """An input on the CPU, wherever it is (it is on a GPU only where FORCE_CPU_ONLY_INPUT_TENSORS is "no")."""
    if tensor.is_cpu():
        return cast("NDArray[Any]", tensor.as_numpy())
    import torch  # noqa: PLC0415  (there where GPUs are)

    return cast("NDArray[Any]", torch.from_dlpack(tensor.to_dlpack()).cpu().numpy())


def output_arrays(response: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a BLS response (ServingError when it is an error)."""
    if response.has_error():
        raise untagged(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def tensors(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Arrays as Triton tensors."""
    return [pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()]


def response(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """A good answer."""
    return pb_utils.InferenceResponse(output_tensors=tensors(arrays))


def error_response(error: BaseException) -> Any:
    """An error answer, of a stage or to a client: anything but a ServingError is INTERNAL.

    Its text has the status too: BLS, HTTP `generate` and gRPC streams lose the code.
    """
    problem = as_serving_error(error)
    code = getattr(pb_utils.TritonError, problem.status.value)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(tagged(problem), code))


def restart_counter(stage: str) -> Callable[[str], None]:
    """Counts a stage's worker deaths on /metrics, without making their watcher wait."""
    metrics = Metrics(TritonRegistry())
    metrics.record(RESTARTS, 0, stage=stage)
    return lambda reason: metrics.record(RESTARTS, 1, stage=stage)


class TritonRegistry:
    """Implements `metrics.Registry` on Triton's own /metrics endpoint."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Make the series with its first value; one thread only."""
        key = (metric.name, tuple(sorted(labels.items())))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._make(metric, labels)
        if metric.kind == "counter":
            series.increment(value)
        elif metric.kind == "gauge":
            series.set(value)
        else:
            series.observe(value)

    def _make(self, metric: Metric, labels: Mapping[str, str]) -> Any:
        if metric.name not in self._families:
            kind = getattr(pb_utils.MetricFamily, metric.kind.upper())
            self._families[metric.name] = pb_utils.MetricFamily(metric.name, metric.help, kind)
        buckets = {"buckets": list(metric.buckets)} if metric.buckets else {}
        return self._families[metric.name].Metric(labels=dict(labels), **buckets)
