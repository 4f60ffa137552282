"""llm_decoder: one replica of the LLM behind the decoder channel (attach, submit, cancel, stats)."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends import triton_io
from python_backends.deployment import load_built_deployment
from python_backends.engines.protocol import StepReport, report_tensors
from python_backends.engines.replica import DecoderReplica
from python_backends.errors import invalid
from python_backends.workers.targets import TEXT

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Sink:
    """An attached router's end of the channel."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def send(self, report: StepReport) -> None:
        self._sender.send(triton_io.response(report_tensors(report)))

    def end(self) -> None:
        self._sender.send(flags=FINAL)


def _json(value: dict[Any, Any]) -> Any:
    return np.array([json.dumps(value).encode()], np.object_)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        artifacts = triton_io.artifacts_folder(args)
        deployment = load_built_deployment(artifacts)
        self._replica = DecoderReplica(
            args["model_name"],
            artifacts,
            deployment,
            TEXT[deployment.pools.text.device],
            triton_io.restart_counter(args["model_name"]),
            gpus=triton_io.gpus(args),
        )
        self._replica.start()
        self._calls = ThreadPoolExecutor(2, "calls")  # a call waits for the running step: never inside execute

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            arrays = triton_io.input_arrays(request)
            sender = request.get_response_sender()
            if arrays["op"][0] == b"attach":
                self._replica.attach(Sink(sender))
            else:
                self._calls.submit(self._call, arrays, sender)

    def _call(self, arrays: dict[str, Any], sender: Any) -> None:
        try:
            op = arrays.pop("op")[0].decode(errors="replace")
            answer = {}
            if op == "submit":
                answer["reply"] = _json({"refused": self._replica.submit(arrays)})
            elif op == "cancel":
                self._replica.cancel(arrays.get("request_ids", np.zeros(0, np.uint64)))
            elif op == "stats":
                answer["reply"] = _json(self._replica.stats())
            elif op == "ping":
                self._replica.reach()
                answer["reply"] = _json({})
            else:
                raise invalid("op", f"{op!r} is not attach, submit, cancel, stats or ping")
            sender.send(triton_io.response(answer), flags=FINAL)
        except Exception as error:
            sender.send(triton_io.error_response(error), flags=FINAL)

    def finalize(self) -> None:
        self._calls.shutdown()
        self._replica.close()
