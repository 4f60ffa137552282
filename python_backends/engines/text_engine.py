"""What every LLM engine is to the worker process that runs it (`workers.child`): the calls, and who runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import Deployment
from python_backends.engines.intake import Intake
from python_backends.engines.protocol import StepReport, Submission

Arrays = list[NDArray[Any]]

SequenceT = TypeVar("SequenceT")


class TextEngine(ABC, Generic[SequenceT]):
    """One replica of the LLM. Config: {"artifacts": folder, "deployment": validated deployment as a dict}.

    An adapter says how its engine starts, cancels and steps sequences, and keeps in `_sequences`, by request id, what
    it must know of those that run.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._artifacts = Path(config["artifacts"])
        self._deployment = Deployment.model_validate(config["deployment"])
        self._checkpoint = load_checkpoint(self._artifacts)
        self._intake = Intake(self._checkpoint, self._deployment.limits.context_tokens)
        self._sequences: dict[int, SequenceT] = {}

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do, or to wait for."""
        return bool(self._sequences)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`submit`: arrays named by meta["names"], texts in meta; `cancel`: an array of request ids; `stats`.

        `submit` answers with meta["refused"], a tagged error for each request id that the engine does not take; the
        others with the engine's figures.
        """
        if op == "submit":
            return [], {"refused": self._intake.take(meta["names"], arrays, meta, self._sequences, self._submit)}
        if op == "cancel":
            for request_id in arrays[0].tolist():
                if request_id in self._sequences:
                    self._cancel(request_id)
        elif op != "stats":
            raise ValueError(f"unknown operation {op!r}")
        return [], self._stats()

    @abstractmethod
    def step(self) -> StepReport | None:
        """One step of the token loop, or what came of an engine that steps by itself; None: nothing is new."""

    @abstractmethod
    def _submit(self, submission: Submission) -> None:
        """Start a sequence whose submission is checked. What the engine raises refuses this one alone."""

    @abstractmethod
    def _cancel(self, request_id: int) -> None:
        """End a running sequence; a later step reports it as cancelled."""

    @abstractmethod
    def _stats(self) -> dict[str, Any]:
        """Figures of now: `running` sequences, `kv_usage` (0 to 1), and what else the engine knows."""
