"""What every engine checks of a submission before it takes it."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import Checkpoint
from python_backends.engines.protocol import VISUAL_TOKEN, Submission, submissions_from_tensors
from python_backends.errors import ServingError, invalid, tagged


class Intake:
    """The `submit` of an engine."""

    def __init__(self, checkpoint: Checkpoint, context_tokens: int) -> None:
        """`context_tokens`: limit of the deployment file; the checkpoint's own counts too."""
        self._checkpoint = checkpoint
        self._context_tokens = min(context_tokens, checkpoint.context_tokens)

    def take(
        self,
        names: list[str],
        arrays: list[NDArray[Any]],
        texts: dict[str, Any],
        running: Container[int],
        start: Callable[[Submission], None],
    ) -> dict[int, str]:
        """Start the sequences of a call; gives a tagged error for each request id that is not taken.

        `texts` are the call's `sampling`, one JSON text a sequence, and `pool`.
        """
        tensors = dict(zip(names, arrays, strict=True))
        try:
            submissions = submissions_from_tensors(tensors, texts["sampling"], "".join(texts.get("pool", [])))
        except ServingError as error:
            return dict.fromkeys(tensors.get("request_ids", np.zeros(1)).tolist(), tagged(error))
        refused: dict[int, str] = {}
        for submission in submissions:
            try:
                self._check(submission, running)
                start(submission)
            except ServingError as error:
                refused[submission.request_id] = tagged(error)
            except (RuntimeError, ValueError, AssertionError) as error:  # what the engines' own checks raise
                sentence = f"the engine refuses them: {error}".splitlines()[0]
                refused[submission.request_id] = tagged(invalid("sampling_parameters", sentence))
        return refused

    def _check(self, submission: Submission, running: Container[int]) -> None:
        """What would break the engine for every sequence, or hold it up (ServingError)."""
        tokens, most = submission.tokens, submission.sampling.max_tokens
        if submission.request_id in running:
            raise invalid("request_ids", f"{submission.request_id} is running already")
        if most is None:
            raise invalid("sampling", "max_tokens must be set")
        if len(tokens) + most > self._context_tokens:
            raise invalid("tokens", f"{len(tokens)} and max_tokens = {most} are over {self._context_tokens}")
        if tokens.min() < VISUAL_TOKEN or tokens.max() >= self._checkpoint.vocab_size:
            raise invalid("tokens", f"ids must be from 0 to {self._checkpoint.vocab_size - 1}, or {VISUAL_TOKEN}")
        copied = submission.visuals.copied
        if len(copied) and copied.shape[1] != self._checkpoint.hidden_size:
            raise invalid("visual_tokens", f"rows must have {self._checkpoint.hidden_size} elements")
