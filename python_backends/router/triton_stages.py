"""The stages reached from inside the model vlm: by BLS calls, and by a replica's channel once BLS has introduced it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from python_backends import triton_io
from python_backends.embeddings.target import PageTarget
from python_backends.engines.protocol import StepReport, Submission, report_from_tensors, submission_tensors
from python_backends.errors import StageGone
from python_backends.link import Door, RouterLink
from python_backends.router.stages import Embedding

_EMBEDDING_OUTPUTS = ["visual_tokens", "decode_ms", "encode_ms"]
_OPEN_S = 10.0  # for another thread to open a channel, or to find that it can't


class TritonStages:
    """Implements `stages.Stages`."""

    def __init__(self) -> None:
        self._links: dict[int, RouterLink] = {}  # by replica, while they live
        self._opened = threading.Condition()

    def embed(self, image: bytes, alone: bool, target: PageTarget | None = None) -> Embedding:
        """One call of the ensemble image_embedding."""
        inputs = {"image": np.array([[image]], np.object_)}
        parameters: dict[str, bool | str] = {"alone": alone, **(target.parameters() if target is not None else {})}
        request = _request("image_embedding", inputs, _EMBEDDING_OUTPUTS, parameters)
        outputs = triton_io.output_arrays(request.exec())
        return Embedding(
            visual_tokens=outputs["visual_tokens"][0],
            decode_ms=float(outputs["decode_ms"].item()),
            encode_ms=float(outputs["encode_ms"].item()),
            ready_s=time.monotonic(),
        )

    def attach(self, replica: int) -> Iterator[StepReport]:
        """The replica's reports; `__next__` blocks until a report or the end comes."""
        link = self._open(replica)
        with self._opened:
            self._links[replica] = link
            self._opened.notify_all()
        try:
            for tensors in link.follow():
                yield report_from_tensors(tensors)
        except StageGone as error:
            raise StageGone(f"llm_decoder_{replica}: {error.message}") from None
        finally:
            with self._opened:
                if self._links.get(replica) is link:
                    del self._links[replica]

    def submit(self, replica: int, submissions: Sequence[Submission]) -> dict[int, str]:
        """One call for all of them."""
        refused: dict[int, str] = self._link(replica).call("submit", submission_tensors(submissions))
        return refused

    def cancel(self, replica: int, request_ids: Sequence[int]) -> None:
        """One call for all of them."""
        self._link(replica).call("cancel", {"request_ids": np.array(request_ids, np.uint64)})

    def _open(self, replica: int) -> RouterLink:
        door = Door()
        try:
            inputs = {"op": _text("attach"), "door": _text(door.address)}
            triton_io.output_arrays(_request(f"llm_decoder_{replica}", inputs, ["reply"]).exec())
            return RouterLink(door.accept())
        finally:
            door.close()

    def _link(self, replica: int) -> RouterLink:
        """The replica's, which another thread is opening."""
        with self._opened:
            if not self._opened.wait_for(lambda: replica in self._links, _OPEN_S):
                raise StageGone(f"llm_decoder_{replica}: no channel within {_OPEN_S:g} s")
            return self._links[replica]


def _text(value: str) -> NDArray[Any]:
    return np.array([value.encode()], np.object_)


def _request(
    model: str,
    arrays: Mapping[str, NDArray[Any]],
    outputs: list[str],
    parameters: Mapping[str, bool | str] | None = None,
) -> Any:
    return pb_utils.InferenceRequest(
        model_name=model,
        inputs=triton_io.tensors(arrays),
        requested_output_names=outputs,
        parameters=dict(parameters or {}),  # an ensemble hands them on to its steps
    )
