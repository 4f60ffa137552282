"""The five questions of `tvlm demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client.api import VlmClient
from client.types import Answer, StageTiming

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
_TIMEOUT_S = 120
_STAGES = ("queue", "decode", "encode", "prefill", "first_token", "total")


@dataclass(frozen=True)
class Question:
    """One thing to ask; `pictures` are files of docs/pictures, in order."""

    text: str
    pictures: Sequence[str] = ()
    stream: bool = False
    max_tokens: int = 24


QUESTIONS = (
    Question("What is the capital of France?"),
    Question("What colour is the circle?", ["circle.png"]),
    Question("What is in the second picture?", ["dog.png", "circle.png"]),
    Question("What colour is the circle?", ["circle.png"]),  # the same picture again
    Question("Name three things that one can see in a kitchen.", stream=True, max_tokens=32),
)


def run_demo(url: str, console: Console) -> None:
    """Ask the five questions of the server at `url` and print a table of answers and times (VlmError)."""
    table = Table(title="Milliseconds by stage, as the server measured them", box=SIMPLE, leading=1)
    table.add_column("question, pictures, answer", ratio=1)
    for stage in _STAGES:
        table.add_column(stage.replace("_", "\n"), justify="right", vertical="top")
    with VlmClient(url) as vlm:
        for question in QUESTIONS:
            console.print(_asked(question))
            answer = _ask(vlm, question, [PICTURES / name for name in question.pictures], console)
            table.add_row(_summary(question, answer), *_cells(answer.timing))
    console.print(table)


def _ask(vlm: VlmClient, question: Question, images: Sequence[Path], console: Console) -> Answer:
    options = {"max_tokens": question.max_tokens, "temperature": 0, "timeout_s": _TIMEOUT_S}
    if not question.stream:
        answer = vlm.generate(question.text, images, **options)
        console.print(answer.text.strip(), markup=False)
        return answer
    with vlm.stream(question.text, images, **options) as pieces:
        for piece in pieces:
            console.print(piece, end="", markup=False, soft_wrap=True)
        console.print()
        return pieces.answer


def _asked(question: Question) -> Text:
    streamed = " (streamed)" if question.stream else ""
    shown = f"  [{', '.join(question.pictures)}]" if question.pictures else ""
    return Text.assemble((question.text, "bold"), (f"{shown}{streamed}", "dim"))


def _summary(question: Question, answer: Answer) -> Text:
    return Text.assemble(_asked(question), "\n", answer.text.strip())


def _cells(timing: StageTiming) -> list[str]:
    values = [getattr(timing, f"{stage}_ms") for stage in _STAGES]
    return ["-" if value is None else f"{value:,.0f}" for value in values]
