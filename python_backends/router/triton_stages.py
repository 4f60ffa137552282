"""The stages reached by BLS calls from inside the model vlm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from python_backends import triton_io
from python_backends.engines.protocol import NO_NEWS, StepReport, Submission, report_from_tensors, submission_tensors
from python_backends.errors import unavailable
from python_backends.router.stages import Embedding

_EMBEDDING_OUTPUTS = ["visual_tokens", "decode_ms", "encode_ms"]
_REPORT_OUTPUTS = list(vars(NO_NEWS))


class TritonStages:
    """Implements `stages.Stages`."""

    def embed(self, image: bytes, alone: bool) -> Embedding:
        """One call of the ensemble image_embedding."""
        inputs = {"image": np.array([[image]], np.object_)}
        request = _request("image_embedding", inputs, _EMBEDDING_OUTPUTS, {"alone": alone})
        outputs = triton_io.output_arrays(request.exec())
        return Embedding(
            visual_tokens=outputs["visual_tokens"][0],
            decode_ms=float(outputs["decode_ms"].item()),
            encode_ms=float(outputs["encode_ms"].item()),
            ready_s=time.monotonic(),
        )

    def attach(self, replica: int) -> Iterator[StepReport]:
        """The replica's long-lived decoupled call; `__next__` blocks until a report or the end comes."""
        for response in _decoder_request(replica, "attach", {}, _REPORT_OUTPUTS).exec(decoupled=True):
            if response.has_error() or response.output_tensors():  # the last one may be the bare final flag
                yield report_from_tensors(triton_io.output_arrays(response))

    def submit(self, replica: int, submissions: Sequence[Submission]) -> dict[int, str]:
        """One call for all of them."""
        reply = self._call(replica, "submit", submission_tensors(submissions), ["reply"])
        refused = json.loads(reply["reply"][0])["refused"]
        return {int(request_id): error for request_id, error in refused.items()}

    def cancel(self, replica: int, request_ids: Sequence[int]) -> None:
        """One call for all of them."""
        self._call(replica, "cancel", {"request_ids": np.array(request_ids, np.uint64)}, [])

    def _call(
        self, replica: int, op: str, arrays: Mapping[str, NDArray[Any]], outputs: list[str]
    ) -> dict[str, NDArray[Any]]:
        answers = [
            triton_io.output_arrays(response)
            for response in _decoder_request(replica, op, arrays, outputs).exec(decoupled=True)
        ]
        if not answers:
            raise unavailable(f"llm_decoder_{replica}: {op} was not answered")
        return answers[0]


def _decoder_request(replica: int, op: str, arrays: Mapping[str, NDArray[Any]], outputs: list[str]) -> Any:
    return _request(f"llm_decoder_{replica}", {"op": np.array([op.encode()], np.object_), **arrays}, outputs)


def _request(
    model: str, arrays: Mapping[str, NDArray[Any]], outputs: list[str], parameters: Mapping[str, bool] | None = None
) -> Any:
    return pb_utils.InferenceRequest(
        model_name=model,
        inputs=triton_io.tensors(arrays),
        requested_output_names=outputs,
        parameters=dict(parameters or {}),  # an ensemble hands them on to its steps
    )
