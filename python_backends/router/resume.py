"""How a sequence goes on after its engine died: nothing is repeated, nothing lost."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from python_backends.engines.protocol import Finish, Submission, VisualRows
from python_backends.router.channel import Tokens, new_request_id
from python_backends.sampling import SamplingParams

log = logging.getLogger(__name__)


class Resumption:
    """The submissions of one request, and what of their news is new.

    A greedy sequence is its tokens and nothing else: prompt and tokens so far are the new prompt. The random numbers
    of a sampled one, and what penalties have counted, are the engine's: it is run again from the start with its seed,
    and what comes again is dropped.
    """

    def __init__(self, submission: Submission) -> None:
        """The seed is set here when the client gave none, so that the run can be repeated."""
        sampling = submission.sampling
        if sampling.seed is None:
            sampling = sampling.model_copy(update={"seed": secrets.randbits(32)})
        self._submission = replace(submission, sampling=sampling)
        self._replays = not _is_plainly_greedy(sampling)
        self._again: list[int] = []  # tokens that a second run must bring again

    def next_submission(self, so_far: Sequence[int], visuals: VisualRows) -> Submission:
        """What to submit now, after the tokens that came so far; `visuals` as they lie now."""
        due_s = np.inf if so_far else self._submission.due_s  # the client has its first token
        whole = replace(self._submission, request_id=new_request_id(), visuals=visuals, due_s=due_s)
        self._again = list(so_far) if self._replays else []
        return whole if self._replays or not so_far else _continued(whole, so_far)

    def new(self, news: Tokens) -> Tokens | None:
        """The news without what came before; None when there is nothing else in it."""
        count = min(len(self._again), len(news.tokens))
        if count == 0:
            return news
        if news.tokens[:count] != self._again[:count]:
            # another batch may round a probability across a random number; the client has the first run's tokens
            log.warning("the second run of a sampled sequence differs from its first")
        del self._again[:count]
        left = news.tokens[count:]
        ended = news.finish is not Finish.RUNNING
        return Tokens(left, news.finish, news.queue_ms, news.prefill_ms) if left or ended else None


def _is_plainly_greedy(sampling: SamplingParams) -> bool:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return sampling.temperature == 0 and penalties == (1.0, 0.0, 0.0)


def _continued(submission: Submission, so_far: Sequence[int]) -> Submission:
    """The rest of a sequence: its prompt and the tokens it has already are the new prompt."""
    sampling, done = submission.sampling, len(so_far)
    assert sampling.max_tokens is not None
    left = {"max_tokens": sampling.max_tokens - done, "min_tokens": max(0, sampling.min_tokens - done)}
    tokens = np.concatenate([submission.tokens, np.array(so_far, np.int32)])
    return replace(submission, tokens=tokens, sampling=sampling.model_copy(update=left), answered=done)
