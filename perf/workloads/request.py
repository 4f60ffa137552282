"""What a workload is made of, and the file that holds one so that any run can replay it.

The file is JSON lines: a header, then one request a line in order of arrival. Pictures are stored as seed and size,
from which `payload.picture_bytes` makes the same file every time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

MODALITIES = ("text", "image", "video")


@dataclass(frozen=True)
class Picture:
    """A synthetic picture: the same seed and size (pixels) always give the same JPEG file."""

    seed: int
    width: int
    height: int


@dataclass(frozen=True)
class Request:
    """One request. `at_s` is its intended arrival in seconds from the run's begin."""

    number: int
    at_s: float
    modality: str  # one of MODALITIES; a video is a request with many pictures
    prompt: str
    pictures: tuple[Picture, ...]
    answer_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and what they were made from."""

    name: str
    rate: float  # requests a second
    seconds: float  # in which they arrive
    seed: int
    notes: str  # choices that a report must state
    requests: tuple[Request, ...]

    def save(self, path: Path) -> None:
        """Write the file."""
        header = {name: value for name, value in vars(self).items() if name != "requests"}
        lines = [json.dumps(header), *(json.dumps(asdict(request)) for request in self.requests)]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(lines) + "\n")
        partial.replace(path)


def load_workload(path: Path) -> Workload:
    """Read a file that `Workload.save` wrote (OSError, ValueError)."""
    try:
        header, *lines = path.read_text().splitlines()
        return Workload(**json.loads(header), requests=tuple(_request(json.loads(line)) for line in lines))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a workload file: {error}") from None


def _request(values: dict[str, object]) -> Request:
    pictures = values.pop("pictures")
    assert isinstance(pictures, list)
    return Request(**values, pictures=tuple(Picture(**picture) for picture in pictures))  # type: ignore[arg-type]
