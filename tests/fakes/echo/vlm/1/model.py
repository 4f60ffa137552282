"""A fake `vlm` that answers with what it was asked, word by word.

text_input "fail CODE ..." is refused with that Triton error code; "busy N ..." is refused with UNAVAILABLE and the rest
as its message N times; "break ..." sends a piece and then fails with UNAVAILABLE; "deadlock" is never answered, nor is
anything after it; "seen ..." answers how often the rest was asked; "forever" streams until it is cancelled, "flood"
long pieces; "cancellations" answers how often that happened, "cut" how many of those calls were cancelled and not
stopped by the input `stop`; "wait FILE" answers when there is such a file; "count N MS" streams the numbers below N
with a pause between; everything else is echoed. In `messages` the last one's text counts when it begins with such a
word.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.router.drain import DrainOrder

COMMANDS = ("fail", "busy", "break", "seen", "forever", "flood", "cancellations", "cut", "wait", "count")
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.cancellations = 0
        self.cut = 0
        self.stopped = set()  # request ids
        self.seen = Counter()
        self.answering = 0
        threading.Thread(target=self._drain, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            if _text(request, "text_input") == "deadlock":
                threading.Event().wait()
            threading.Thread(target=self._serve, args=(request,), daemon=True).start()

    def _drain(self):
        order = DrainOrder.from_environment()
        while order.grace_s() is None or self.answering:
            time.sleep(0.05)
        order.report_done()

    def _serve(self, request):
        self.answering += 1
        try:
            if _flag(request, "stop"):
                self.stopped.add(request.request_id())
                request.get_response_sender().send(_response(text_output=""), flags=FINAL)
            else:
                self._answer(request)
        finally:
            self.answering -= 1

    def _is_gone(self, request, sender):
        return sender.is_cancelled() or request.request_id() in self.stopped

    def _answer(self, request):
        sender = request.get_response_sender()
        text = _text(request, "text_input") or _command(_text(request, "messages"))
        kind, _, rest = text.partition(" ")
        self.seen[text] += 1
        if kind == "fail":
            code, message = rest.split(" ", 1)
            sender.send(_refusal(message, code), flags=FINAL)
        elif kind == "busy" and self.seen[text] <= int(rest.split(" ")[0]):
            sender.send(_refusal(rest.split(" ", 1)[1]), flags=FINAL)
        elif kind == "break":
            sender.send(_response(text_output="a piece"))
            sender.send(_refusal(rest), flags=FINAL)
        elif text in ("forever", "flood"):
            while not self._is_gone(request, sender):
                sender.send(_response(text_output="again " if text == "forever" else "again " * 4096))
                time.sleep(0.01)
            cut = sender.is_cancelled()
            self.cut += cut
            self.cancellations += 1
            sender.send(_refusal("the request was cancelled", "CANCELLED"), flags=FINAL)
        elif kind == "count":
            count, pause_ms = map(int, rest.split(" ")[:2])
            for number in range(count):
                sender.send(_response(text_output=f"{number} "))
                time.sleep(pause_ms / 1e3)
            sender.send(_response(text_output="", finish_reason="stop"), flags=FINAL)
        else:
            self._echo(request, sender, kind, text, rest)

    def _echo(self, request, sender, kind, text, rest):
        if kind == "wait":
            while not (Path(rest.split(" ")[0]).exists() or self._is_gone(request, sender)):
                time.sleep(0.02)
        figures = {
            "cancellations": self.cancellations,
            "cut": self.cut,
            "seen": self.seen[rest],
        }
        answer = str(figures[kind]) if kind in figures else _echo(request, text)
        words = answer.split(" ")
        pieces = [" ".join(words)] if not _flag(request, "stream") else [words[0], *(f" {w}" for w in words[1:])]
        for piece in pieces[:-1]:
            sender.send(_response(text_output=piece))
        timing = json.dumps({"queue_ms": 1.5, "prefill_ms": 2.5, "total_ms": 4.0})
        last = _response(
            text_output=pieces[-1], finish_reason="stop", num_input_tokens=7, num_output_tokens=3, timing=timing
        )
        sender.send(last, flags=FINAL)


def _command(messages):
    """The command that the last message's text is, else all messages."""
    if not messages:  # the prompt is empty
        return ""
    content = json.loads(messages)[-1]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return text if text.split(" ")[0] in COMMANDS else messages


def _refusal(message, code="UNAVAILABLE"):
    error = pb_utils.TritonError(f"[{code}] {message}", getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(error=error)


def _echo(request, text):
    images = pb_utils.get_input_tensor_by_name(request, "image")
    digests = [] if images is None else [hashlib.sha256(image).hexdigest()[:8] for image in images.as_numpy()]
    return f"{text} images={digests} sampling={_text(request, 'sampling_parameters')} parameters={request.parameters()}"


def _text(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return "" if tensor is None else tensor.as_numpy()[0].decode()


def _flag(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return tensor is not None and bool(tensor.as_numpy()[0])


def _response(**values):
    tensors = []
    for name, value in values.items():
        array = np.array([value], np.uint32) if isinstance(value, int) else np.array([value.encode()], np.object_)
        tensors.append(pb_utils.Tensor(name, array))
    return pb_utils.InferenceResponse(tensors)
