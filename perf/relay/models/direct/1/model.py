"""direct: the fake engine in the model that clients call; one response a token, sent by the token loop."""

import itertools
import queue
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from perf.fake_engine import FakeEngine
from python_backends import triton_io
from python_backends.engines.protocol import Finish

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        self._engine = FakeEngine({})
        self._new: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="token-loop", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._new.put((int(triton_io.input_arrays(request)["max_tokens"][0]), request.get_response_sender()))

    def _loop(self) -> None:
        senders: dict[int, Any] = {}
        numbers = itertools.count()
        while True:
            while not self._engine.busy or not self._new.empty():
                max_tokens, sender = self._new.get()
                number = next(numbers)
                senders[number] = sender
                self._engine.add(number, max_tokens, 0)
            report = self._engine.step()
            tokens, reasons = report.tokens.tolist(), report.finish_reasons.tolist()
            for i, number in enumerate(report.request_ids.tolist()):
                text = np.array([b" %d" % tokens[i]], np.object_)
                done = reasons[i] != Finish.RUNNING
                sender = senders.pop(number) if done else senders[number]
                sender.send(triton_io.response({"text_output": text}), flags=FINAL if done else 0)
