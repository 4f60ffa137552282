"""vlm: what clients call. Decoupled; every answer is one or more responses and one final flag."""

import asyncio
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from python_backends import triton_io
from python_backends.deployment import MOST_IMAGES
from python_backends.errors import ServingError
from python_backends.router.answer import Piece
from python_backends.router.service import Router
from python_backends.router.triton_stages import TritonStages

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonClient:
    """One request's client."""

    def __init__(self, request: Any) -> None:
        self.request_id: str = request.request_id()
        self._sender = request.get_response_sender()
        self._ended = False  # after the final flag, tritonserver crashes when the sender is used again

    def send(self, piece: Piece, last: bool) -> None:
        self._send(triton_io.response(_outputs(piece)), last)

    def fail(self, error: ServingError) -> None:
        self._send(triton_io.error_response(error), last=True)

    def is_cancelled(self) -> bool:
        return not self._ended and bool(self._sender.is_cancelled())

    def _send(self, response: Any, last: bool) -> None:
        if not self._ended:
            self._ended = last
            self._sender.send(response, flags=FINAL if last else 0)


def _outputs(piece: Piece) -> dict[str, NDArray[Any]]:
    outputs: dict[str, NDArray[Any]] = {"text_output": _bytes(piece.text)}
    if piece.finish_reason is not None:
        outputs["finish_reason"] = _bytes(piece.finish_reason)
    if piece.num_input_tokens is not None:
        outputs["num_input_tokens"] = np.array([piece.num_input_tokens], np.uint32)
    if piece.num_visual_tokens is not None:
        outputs["num_visual_tokens"] = np.array([piece.num_visual_tokens], np.uint32)
    if piece.num_output_tokens is not None:
        outputs["num_output_tokens"] = np.array([piece.num_output_tokens], np.uint32)
    if piece.timing is not None:
        outputs["timing"] = _bytes(json.dumps(piece.timing.rounded()))
    return outputs


def _bytes(text: str) -> NDArray[Any]:
    return np.array([text.encode()], np.object_)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        triton_io.read_elements(MOST_IMAGES)
        self._router = Router(TritonStages(), triton_io.artifacts_folder(args), triton_io.TritonRegistry())

    async def execute(self, requests: list[Any]) -> None:
        await asyncio.gather(*(self._serve(request) for request in requests))

    async def _serve(self, request: Any) -> None:
        if triton_io.is_probe(request):
            request.get_response_sender().send(triton_io.response({"text_output": _bytes("")}), flags=FINAL)
            return
        await self._router.serve(triton_io.input_arrays(request), request.parameters(), TritonClient(request))
