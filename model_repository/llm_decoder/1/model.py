"""llm_decoder: one replica of the LLM; a BLS call attaches the router, the rest goes over the channel."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from python_backends import triton_io
from python_backends.deployment import load_built_deployment
from python_backends.engines.protocol import StepReport, report_tensors
from python_backends.engines.replica import DecoderReplica
from python_backends.errors import as_serving_error, invalid
from python_backends.link import Call, ReplicaLink, Reply, knock
from python_backends.workers.targets import TEXT


class Sink:
    """An attached router's end of the channel."""

    def __init__(self, link: ReplicaLink) -> None:
        self._link = link

    def send(self, report: StepReport) -> None:
        self._link.send(report_tensors(report))

    def end(self) -> None:
        self._link.end()


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

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(triton_io.input_arrays(request)) for request in requests]

    def _answer(self, arrays: dict[str, Any]) -> Any:
        try:
            op = arrays["op"][0].decode(errors="replace")
            value: dict[str, Any] = {}
            if op == "attach":
                self._attach(arrays)
            elif op == "stats":
                value = self._replica.stats()
            elif op == "ping":
                self._replica.reach()
            else:
                raise invalid("op", f"{op!r} is not attach, stats or ping")
            return triton_io.response({"reply": np.array([json.dumps(value).encode()], np.object_)})
        except Exception as error:
            return triton_io.error_response(error)

    def _attach(self, arrays: dict[str, Any]) -> None:
        if "door" not in arrays:
            raise invalid("door", "is missing")
        try:
            link = ReplicaLink(knock(arrays["door"][0].decode(errors="replace")))
        except OSError as error:
            raise invalid("door", f"nobody is there: {error}") from None
        threading.Thread(target=link.serve, args=(partial(self._start, link),), name="router", daemon=True).start()
        self._replica.attach(Sink(link))

    def _start(self, link: ReplicaLink, call: Call) -> None:
        self._calls.submit(self._do, link, call)

    def _do(self, link: ReplicaLink, call: Call) -> None:
        value, problem = None, None
        try:
            if call.op == "submit":
                value = self._replica.submit(call.arrays)
            else:
                self._replica.cancel(call.arrays["request_ids"])
        except Exception as error:
            problem = as_serving_error(error)
        with contextlib.suppress(OSError):  # the router is gone
            link.send(Reply(call.number, value, problem))

    def finalize(self) -> None:
        self._calls.shutdown()
        self._replica.close()
