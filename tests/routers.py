"""A router over fake stages, its clients and its metrics, for the tests of the router."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, parse_deployment
from python_backends.errors import ServingError
from python_backends.metrics import Metric
from python_backends.router.answer import Piece
from python_backends.router.service import Router
from tests.fakes.stages import HIDDEN, TOKENS, FakeStages
from tests.fakes.tokenizer import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else '<image>' }}"
    "{% endfor %}{% endfor %}:"
)


class Recorder:
    """A client that keeps what it is sent."""

    def __init__(self, request_id: str = "") -> None:
        self.request_id = request_id
        self.pieces: list[Piece] = []
        self.error: ServingError | None = None
        self.gone = False
        self.first = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def send(self, piece: Piece, last: bool) -> None:
        self.pieces.append(piece)
        self.first.set()

    def fail(self, error: ServingError) -> None:
        self.error = error

    def is_cancelled(self) -> bool:
        return self.gone


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    checkpoint = Checkpoint(
        name="fake", image_size=8, tokens_per_tile=TOKENS, hidden_size=HIDDEN, vocab_size=258, kv_bytes_per_token=1,
        context_tokens=64,
        image_token="<image>", eos_token_ids=(257,),
    )  # fmt: skip
    limits = {"context_tokens": 64, "default_max_tokens": 16}
    deployment = parse_deployment({"checkpoint": "x", "limits": limits, "pools": {"text": {"max_running": 2}}}, "test")
    (tmp_path / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (tmp_path / BUILT_FILE).write_text(deployment.model_dump_json())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


class Counts:
    """A metrics registry that keeps what it is given."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], list[float]] = {}

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        assert sorted(labels) == sorted(metric.labels)
        self.values.setdefault((metric.name, *labels.values()), []).append(value)

    def last(self, *series: str) -> float:
        """The newest value of a gauge, 0 before the first."""
        return self.values.get(series, [0.0])[-1]


def run(
    artifacts: Path,
    stages: FakeStages,
    scenario: Callable[[Router], Awaitable[None]],
    registry: Counts | None = None,
) -> None:
    async def main() -> None:
        router = Router(stages, artifacts, registry or Counts())
        try:
            await asyncio.wait_for(scenario(router), 20)
        finally:
            stages.detach()
            router.close()

    asyncio.run(main())


def tensors(text: str, *images: bytes, **flags: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {"text_input": np.array([text.encode()], np.object_)}
    if images:
        arrays["image"] = np.array(images, np.object_)
    if "sampling" in flags:
        arrays["sampling_parameters"] = np.array([flags.pop("sampling").encode()], np.object_)
    return arrays | {name: np.array([value]) for name, value in flags.items()}
