"""Between Triton's Python backend and the rest: tensors to arrays and back, errors to TritonError.

Only model.py files and the router's Triton side import this; everything else runs without Triton.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from python_backends.errors import ServingError, Status, unavailable


def artifacts_folder(args: Mapping[str, str]) -> Path:
    """Where `tvlm build` put the artifacts, from the arguments of a model's `initialize`."""
    return Path(args["model_repository"]).parent.parent / "artifacts"


def prepare_stub(model: str) -> None:
    """First call of every model's `initialize`: logging, and no life after tritonserver's death."""
    # goes to tritonserver's log (stderr)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {model}: %(message)s")
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent-watch", daemon=True).start()


def _end_with(parent: int) -> None:
    """A stub whose tritonserver was killed tries to exit in order, and hangs in threads that wait for it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def input_arrays(request: Any) -> dict[str, NDArray[Any]]:
    """The tensors that a request (or a BLS response) carries; absent optional ones are absent here."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def output_arrays(response: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a BLS response (ServingError when it is an error)."""
    if response.has_error():
        raise from_triton_error(response.error())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def tensors(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Arrays as Triton tensors."""
    return [pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()]


def response(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """A good answer."""
    return pb_utils.InferenceResponse(output_tensors=tensors(arrays))


def error_response(error: BaseException) -> Any:
    """An error answer: a ServingError as it stands, anything else as INTERNAL."""
    return pb_utils.InferenceResponse(error=to_triton_error(error))


def to_triton_error(error: BaseException) -> Any:
    """An exception as a TritonError with its status."""
    if isinstance(error, ServingError):
        return pb_utils.TritonError(error.message, getattr(pb_utils.TritonError, error.status.value))
    return pb_utils.TritonError(f"{type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)


def from_triton_error(error: Any) -> ServingError:
    """The error of a BLS response with its status kept."""
    for status in Status:
        if error.code() == getattr(pb_utils.TritonError, status.value):
            return ServingError(status, error.message())
    return unavailable(error.message())
