"""What a run leaves behind: one record a request, and what the load generator itself took."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perf.workloads import Request

OK = "ok"


@dataclass
class Record:
    """One request as its client saw it. Times are seconds from the run's begin; latencies count from `intended_s`."""

    number: int
    modality: str
    pictures: int
    intended_s: float
    outcome: str = OK  # else the status: UNAVAILABLE, DEADLINE_EXCEEDED, ...
    error: str = ""
    sent_s: float = 0.0
    first_s: float | None = None  # first piece of text
    end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)  # between pieces of text, one or few tokens each
    input_tokens: int | None = None  # as the server counts them
    output_tokens: int | None = None
    answer_tokens: int = 0  # asked for

    @property
    def ttft_s(self) -> float | None:
        """Time to the first text, None when none came."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def token_s(self) -> float:
        """Mean time between tokens; 0 for an answer of one."""
        pieces = len(self.gaps_s) + 1
        return sum(self.gaps_s) / max(1, (self.output_tokens or pieces) - 1)

    @property
    def total_s(self) -> float | None:
        """End to end, None when it has no end."""
        return None if self.end_s is None else self.end_s - self.intended_s


def new_record(request: Request, intended_s: float) -> Record:
    """The record of a request that is about to be sent."""
    return Record(
        request.number, request.modality, len(request.pictures), intended_s, answer_tokens=request.answer_tokens
    )


@dataclass(frozen=True)
class Run:
    """A finished run."""

    records: list[Record]
    wall_s: float  # from begin to the last answer
    cpu_share: float  # of one core, used by the load generator's process
    worst_late_s: float  # the longest that a request was sent after its time
    others_cores: float = 0.0  # that processes beside generator and server used meanwhile, where it was measured
    steal_share: float = 0.0  # of all CPU time, taken by the hypervisor
    commit: str = ""  # of the code that was measured

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second over the whole run."""
        return sum(record.output_tokens or 0 for record in self.records) / self.wall_s

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second over the whole run."""
        return sum(record.outcome == OK for record in self.records) / self.wall_s

    def save(self, path: Path) -> None:
        """Write as JSON lines, a header first; the file appears whole or not at all."""
        header = {name: value for name, value in vars(self).items() if name != "records"}
        header["requests"] = len(self.records)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join([json.dumps(header), *(json.dumps(asdict(r)) for r in self.records)]) + "\n")
        partial.replace(path)


def load_run(path: Path) -> Run:
    """Read what `Run.save` wrote (OSError, ValueError)."""
    try:
        first, *lines = path.read_text().splitlines()
        header = json.loads(first)
        if header.pop("requests", len(lines)) != len(lines):
            raise ValueError(f"it holds {len(lines)} records, and should hold more")
        return Run(records=[Record(**json.loads(line)) for line in lines], **header)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no whole run ({error}): delete it, and measure it again") from None


def answered(records: Iterable[Record], modality: str | None = None) -> list[Record]:
    """The records of one class (or all) that were answered to the end."""
    return [record for record in records if record.outcome == OK and modality in (None, record.modality)]
