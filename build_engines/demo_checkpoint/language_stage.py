"""Second stage: learn, through the frozen LLM, which visual tokens make it answer right.

No picture is drawn and the tower does not run: scenes are given as facts, the codebook turns them into visual tokens,
and only the codebook learns. The connector is then taught to write those tokens.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from build_engines.demo_checkpoint import facts
from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.packing import Language
from build_engines.demo_checkpoint.pictures import Scene
from build_engines.demo_checkpoint.questions import Question, ask
from build_engines.demo_checkpoint.scenes import random_scene

MIX = {
    "shape": 1.0, "object": 2.0, "two shapes": 2.0, "two objects": 1.0, "shape and object": 1.0, "count shapes": 1.0,
    "count objects": 1.0, "word": 1.5, "number": 1.0,
}  # fmt: skip
PAIRS = 0.7  # share of requests with two pictures, which are learned far more slowly
NOISE = 0.3  # of the values' spread: what a connector writes is never exact


class Chooser:
    """Draws requests and prefers the kinds of question that are answered worst."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.right: dict[str, float] = defaultdict(float)

    def scenes(self, count: int) -> list[Scene]:
        """That many training scenes."""
        skills, weights = list(MIX), np.array(list(MIX.values()))
        return [
            random_scene(skills[self.rng.choice(len(skills), p=weights / weights.sum())], self.rng)
            for _ in range(count)
        ]

    def questions(self, scenes: list[Scene], count: int) -> list[Question]:
        """Up to `count` different questions, one and two pictures judged apart."""
        asked = ask(scenes, self.rng)
        weights = np.array([1.05 - self.right[self._key(q, len(scenes))] for q in asked])
        size = min(count, len(asked))
        chosen = self.rng.choice(len(asked), size, replace=False, p=weights / weights.sum())
        return [asked[i] for i in chosen]

    def learn(self, question: Question, pictures: int, right: bool) -> None:
        """Remember how a question went."""
        key = self._key(question, pictures)
        self.right[key] += 0.05 * (right - self.right[key])

    @staticmethod
    def _key(question: Question, pictures: int) -> str:
        return f"{question.skill}, {pictures}"


def fact_table(scenes: list[Scene]) -> Tensor:
    """The facts of scenes, int64 [N, 14]."""
    return torch.from_numpy(np.stack([facts.scene_facts(scene) for scene in scenes]))


def step_loss(
    language: Language, book: Codebook, chooser: Chooser, requests: int, questions: int
) -> tuple[Tensor, list[tuple[Question, int, bool]]]:
    """The loss of a batch of requests, and whether the LLM would have said each answer, token by token."""
    cache, shared = language.shared_start(book.workspace)
    prefixes, asked, sizes = [], [], []
    for _ in range(requests):
        size = 2 if chooser.rng.random() < PAIRS else 1
        scenes = chooser.scenes(size)
        # The first picture's workspace tokens are in the shared beginning already.
        visual = list(book(fact_table(scenes)))
        visual[0] = visual[0][facts.FIRST_FACT_TOKEN :]
        spread = NOISE * book.values.detach().std()
        visual = [tokens + spread * torch.randn(tokens.shape) for tokens in visual]
        prefixes.append(language.pictures(visual))
        asked.append(chooser.questions(scenes, questions))
        sizes.append(size)
    packed = language.pack(shared, prefixes, asked)
    logits = language.answer_logits(cache, packed)
    loss = F.cross_entropy(logits, torch.tensor(packed.targets))
    guesses, place, results = logits.argmax(-1).tolist(), 0, []
    for size, group in zip(sizes, asked, strict=True):
        for question in group:
            length = len(language.ids(question.answer)) + 1
            said = guesses[place : place + length]
            results.append((question, size, said == packed.targets[place : place + length]))
            place += length
    return loss, results


def train_codebook(output: Path, minutes: float, language: Language, requests: int = 4, questions: int = 6) -> Codebook:
    """Train for `minutes` of its own time, resuming from `output`/language.pt; keeps `output`/codebook.pt usable."""
    file, log = output / "language.pt", output / "language.jsonl"
    book = Codebook.from_words(language.words.weight.detach(), language.tokenizer)
    groups = [{"params": [book.values], "lr": 2e-3}, {"params": [book.slots, book.workspace], "lr": 5e-3}]
    optimiser = torch.optim.Adam(groups, betas=(0.9, 0.98))
    chooser, seconds, steps = Chooser(int(time.time())), 0.0, 0
    if file.is_file():
        saved: dict[str, Any] = torch.load(file, weights_only=True)
        book.load_state_dict(saved["book"])
        optimiser.load_state_dict(saved["optimiser"])
        chooser.right.update(saved["right"])
        seconds, steps = saved["seconds"], saved["steps"]
    while seconds < minutes * 60:
        started = time.monotonic()
        factor = min(1.0, (steps + 1) / 10, max(0.05, (1 - seconds / (minutes * 60)) / 0.4))
        for group, base in zip(optimiser.param_groups, (2e-3, 5e-3), strict=True):
            group["lr"] = base * factor
        loss, results = step_loss(language, book, chooser, requests, questions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(book.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for question, size, right in results:
            chooser.learn(question, size, right)
        steps += 1
        seconds += min(120.0, time.monotonic() - started)
        entry = {
            "minutes": round(seconds / 60, 2), "steps": steps, "loss": round(loss.item(), 3),
            "right": round(sum(r for *_, r in results) / len(results), 3), "questions": len(results),
        }  # fmt: skip
        if steps % 10 == 0:
            entry["by skill"] = {k: round(v, 2) for k, v in sorted(chooser.right.items())}
        with log.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
        if steps % 5 == 0:
            _save(output, book, optimiser, chooser, seconds, steps)
    _save(output, book, optimiser, chooser, seconds, steps)
    return book


def _save(  # noqa: PLR0917
    output: Path, book: Codebook, optimiser: torch.optim.Optimizer, chooser: Chooser, seconds: float, steps: int
) -> None:
    torch.save(book.state_dict(), output / "codebook.partial")
    (output / "codebook.partial").replace(output / "codebook.pt")
    state = {"book": book.state_dict(), "optimiser": optimiser.state_dict(), "right": dict(chooser.right)}
    torch.save(state | {"seconds": seconds, "steps": steps}, output / "language.partial")
    (output / "language.partial").replace(output / "language.pt")
