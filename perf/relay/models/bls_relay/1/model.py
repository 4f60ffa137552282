"""bls_relay: a thread and a decoupled BLS call for each request; the iterator blocks its thread."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends import triton_io

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        self._threads = ThreadPoolExecutor(256, "relay")

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._threads.submit(self._relay, triton_io.input_arrays(request), request.get_response_sender())

    def _relay(self, arrays: dict[str, Any], sender: Any) -> None:
        call = pb_utils.InferenceRequest(
            model_name="direct", inputs=triton_io.tensors(arrays), requested_output_names=["text_output"]
        )
        for response in call.exec(decoupled=True):
            if response.output_tensors():
                sender.send(triton_io.response(triton_io.output_arrays(response)))
        sender.send(flags=FINAL)
