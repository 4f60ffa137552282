"""Every refusal a client can get: its text, with field, limit and value, and its status."""

from __future__ import annotations

import math
from enum import Enum


class Status(Enum):
    """Statuses that Triton's front ends know (HTTP 400, 503, 499, 404, 500)."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    NOT_FOUND = "NOT_FOUND"
    INTERNAL = "INTERNAL"


class ServingError(Exception):
    """An error that is answered to a client as it stands: one sentence and a status."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[ServingError], tuple[Status, str]]:
        """Errors cross the decoder channel."""
        return ServingError, (self.status, self.message)


class StageGone(ServingError):
    """The model of a stage is not there: its stub died, and nothing but a reload brings it back."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.UNAVAILABLE, message)


def as_serving_error(error: BaseException) -> ServingError:
    """Whatever broke, as a client is told of it: what is no ServingError is INTERNAL."""
    if isinstance(error, ServingError):
        return error
    return ServingError(Status.INTERNAL, f"{type(error).__name__}: {error}")


def invalid(field: str, problem: str) -> ServingError:
    """The request itself is at fault: `field` says where, `problem` gives value and limit."""
    return ServingError(Status.INVALID_ARG, f"{field}: {problem}")


def unavailable(problem: str, retry_after_s: float | None = None) -> ServingError:
    """The server can't take or finish this now; the same request may succeed later.

    `retry_after_s`: where waiting helps, for how long. It ends the sentence as "; retry after N s", N a whole number:
    Triton's errors have a text and a status, and no place for more.
    """
    hint = "" if retry_after_s is None else f"; retry after {max(1, math.ceil(retry_after_s))} s"
    return ServingError(Status.UNAVAILABLE, problem + hint)


def cancelled() -> ServingError:
    """The client went away or asked to stop."""
    return ServingError(Status.CANCELLED, "the request was cancelled")


def tagged(error: ServingError) -> str:
    """Text that carries the status too, for ways on which only a text travels (BLS loses the code of an error)."""
    return f"[{error.status.value}] {error.message}"


def untagged(text: str) -> ServingError:
    """The error that `tagged` wrote, without what was put before it on the way.

    What no stage has tagged is Triton's own: the model is not loaded, or its stub is dead.
    """
    for status in Status:
        _, found, rest = text.partition(f"[{status.value}] ")
        if found:
            return ServingError(status, rest)
    return StageGone(text)
