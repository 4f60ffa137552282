"""vision_encoder: UINT8 tiles to visual tokens, in a worker process."""

import json
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends import triton_io
from python_backends.embeddings.target import PageTarget
from python_backends.engines.vision_stage import Arrival, Encoded, EncodeStage, Pictures
from python_backends.errors import ServingError

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        name = args["model_name"]
        artifacts, counter = triton_io.artifacts_folder(args), triton_io.restart_counter(name)
        self._stage = EncodeStage(name, artifacts, counter, gpus=triton_io.gpus(args))
        self._stage.start()

    def execute(self, requests: list[Any]) -> None:
        """Requests are answered with their batch, which may wait for the pictures of later calls."""
        probes = [request for request in requests if triton_io.is_probe(request)]
        arrivals = [arrival for request in requests if request not in probes for arrival in _arrivals(request)]
        if arrivals:
            self._stage.submit(arrivals)
        for probe in probes:
            self._stage.reach()
            probe.get_response_sender().send(triton_io.response({}), flags=FINAL)

    def finalize(self) -> None:
        self._stage.close()


def _arrivals(request: Any) -> list[Arrival]:
    """What the request is to the stage: one arrival, or none when it is refused."""
    answer = partial(_send, request, request.get_response_sender())
    try:
        target = PageTarget.parse(json.loads(request.parameters() or "{}"))
    except ServingError as error:
        answer(error)
        return []
    tiles = triton_io.input_array(pb_utils.get_input_tensor_by_name(request, "tiles"))
    size = pb_utils.get_input_tensor_by_name(request, "picture_size").as_numpy()
    in_decode = pb_utils.get_input_tensor_by_name(request, "in_decode")
    coming = 0 if in_decode is None else int(in_decode.as_numpy().max(initial=0))
    return [Arrival(Pictures(tiles, size, target), coming, answer)]


def _send(request: Any, sender: Any, answer: Encoded | ServingError) -> None:
    """`request` is kept until now, as its tiles lie in memory of its own."""
    response = (
        triton_io.error_response(answer)
        if isinstance(answer, ServingError)
        else triton_io.response({"visual_tokens": answer.visual_tokens, "encode_ms": answer.encode_ms})
    )
    sender.send(response, flags=FINAL)
