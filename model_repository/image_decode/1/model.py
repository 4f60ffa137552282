"""image_decode: encoded picture files to UINT8 tiles, in a worker process."""

import json
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends import triton_io
from python_backends.errors import ServingError
from python_backends.media.stage import Decoded, DecodeStage

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        name = args["model_name"]
        artifacts, counter = triton_io.artifacts_folder(args), triton_io.restart_counter(name)
        self._stage = DecodeStage(name, artifacts, counter, gpus=triton_io.gpus(args))
        self._stage.start()

    def execute(self, requests: list[Any]) -> None:
        """Each request is answered when its own pictures are done, not when those of the batch are."""
        for request in requests:
            if triton_io.is_probe(request):
                _answer(request.get_response_sender(), {})
                continue
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            parameters = json.loads(request.parameters() or "{}")
            alone = bool(parameters.get("alone", True))  # whether it is the only picture of the client's request
            self._stage.submit(image, partial(_send, request.get_response_sender()), alone)

    def finalize(self) -> None:
        self._stage.close()


def _send(sender: Any, answer: Decoded | ServingError) -> None:
    if isinstance(answer, ServingError):
        sender.send(triton_io.error_response(answer), flags=FINAL)
    else:
        _answer(sender, vars(answer))


def _answer(sender: Any, arrays: dict[str, Any]) -> None:
    sender.send(triton_io.response(arrays), flags=FINAL)
