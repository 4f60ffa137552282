"""The five questions of `tvlm demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL.Image import Image
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client.api import VlmClient
from client.types import Answer, StageTiming

_TIMEOUT_S = 120
_STAGES = ("queue", "decode", "encode", "prefill", "first_token", "total")


@dataclass(frozen=True)
class Question:
    """One thing to ask; `pictures` by name, in order."""

    text: str
    pictures: Sequence[str] = ()
    stream: bool = False
    max_tokens: int = 24


QUESTIONS = (
    Question("What is the capital of France?"),
    Question("What is in the picture?", ["red circle"]),
    Question("What is in the second picture?", ["red circle", "blue square"]),
    Question("What is in the picture?", ["red circle"]),  # again: its visual tokens may be cached
    Question("Name three things that one can see in a kitchen.", stream=True, max_tokens=32),
)


def run_demo(url: str, console: Console) -> None:
    """Ask the five questions of the server at `url` and print a table of answers and times (VlmError)."""
    table = Table(title="Milliseconds by stage, as the server measured them", box=SIMPLE, leading=1)
    table.add_column("question, pictures, answer", ratio=1)
    for stage in _STAGES:
        table.add_column(stage.replace("_", "\n"), justify="right", vertical="top")
    pictures = draw_pictures()
    with VlmClient(url) as vlm:
        for question in QUESTIONS:
            answer = _ask(vlm, question, [pictures[name] for name in question.pictures], console)
            table.add_row(_summary(question, answer), *_cells(answer.timing))
    console.print(table)


def _ask(vlm: VlmClient, question: Question, images: Sequence[Image], console: Console) -> Answer:
    options = {"max_tokens": question.max_tokens, "temperature": 0, "timeout_s": _TIMEOUT_S}
    if not question.stream:
        return vlm.generate(question.text, images, **options)
    console.print(question.text, style="bold")
    with vlm.stream(question.text, images, **options) as pieces:
        for piece in pieces:
            console.print(piece, end="", markup=False, soft_wrap=True)
        console.print()
        return pieces.answer


def _summary(question: Question, answer: Answer) -> Text:
    streamed = " (streamed)" if question.stream else ""
    shown = f"  [{', '.join(question.pictures)}]" if question.pictures else ""
    return Text.assemble((question.text, "bold"), (f"{shown}{streamed}\n", "dim"), answer.text.strip())


def _cells(timing: StageTiming) -> list[str]:
    values = [getattr(timing, f"{stage}_ms") for stage in _STAGES]
    return ["-" if value is None else f"{value:,.0f}" for value in values]


def draw_pictures() -> dict[str, Image]:
    """The pictures of the questions, by name."""
    from PIL import Image as images  # noqa: PLC0415
    from PIL import ImageDraw  # noqa: PLC0415

    circle, square = (images.new("RGB", (224, 224), "white") for _ in range(2))
    ImageDraw.Draw(circle).ellipse((52, 52, 172, 172), fill="red")
    ImageDraw.Draw(square).rectangle((52, 52, 172, 172), fill="blue")
    return {"red circle": circle, "blue square": square}
