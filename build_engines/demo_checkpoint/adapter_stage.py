"""Fourth stage: a LoRA adapter learns, through the LLM, to tell which of two pictures shows something.

The frozen LLM answers about a picture that a question names by its place, but doesn't find a picture by what it shows.
As in the second stage no picture is drawn: the codebook stands for tower and connector.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from build_engines.demo_checkpoint import facts
from build_engines.demo_checkpoint.adapter import Adapter
from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.language_stage import fact_table
from build_engines.demo_checkpoint.packing import Language, Packed
from build_engines.demo_checkpoint.pictures import Scene
from build_engines.demo_checkpoint.questions import Question, ask
from build_engines.demo_checkpoint.scenes import random_scene

SINGLE = {
    "shape": 1.0, "object": 2.0, "two shapes": 1.5, "two objects": 1.0, "shape and object": 1.0, "count shapes": 1.0,
    "count objects": 1.0, "word": 1.0, "number": 2.0,
}  # fmt: skip
PAIR = {
    "shape": 2.5, "object": 3.0, "two shapes": 0.5, "two objects": 0.5, "shape and object": 0.3, "count shapes": 0.3,
    "count objects": 0.3, "word": 0.7, "number": 0.7,
}  # fmt: skip
PAIRS = 0.85  # share of requests with two pictures
TAUGHT = "which picture"
SHARE = 0.65  # of a pair's questions that are of this skill
WEIGHT = 4.0  # of the word that tells which
RATES = (8e-4, 2e-3)  # Adam, of A and B: B may learn faster (LoRA+, Hayou et al. 2024)
NOISE = 0.25  # of the values' spread: what a connector writes is never exact
CHECKS = 20  # held-out requests


class Trainer:
    """The adapter with what trains it; codebook and LLM stay as they are."""

    def __init__(self, language: Language, book: Codebook, seed: int) -> None:
        self.language, self.book, self.rng = language, book, np.random.default_rng(seed)
        self.adapter = Adapter(language.model.model.layers)
        groups = [{"params": p, "rate": rate} for p, rate in zip(self.adapter.parameters(), RATES, strict=True)]
        self.optimiser = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self.seconds, self.steps = 0.0, 0
        # The first picture's workspace tokens come before all else and are always the same; the adapter is off there.
        self.cache, self.shared = language.shared_start(book.workspace)

    def request(self, held_out: bool, questions: int) -> tuple[list[Scene], list[Question]]:
        """One or two scenes with up to so many questions."""
        mix = PAIR if self.rng.random() < PAIRS else SINGLE
        weights = np.array(list(mix.values()))
        kinds = self.rng.choice(list(mix), 2 if mix is PAIR else 1, p=weights / weights.sum())
        scenes = [random_scene(str(kind), self.rng, held_out) for kind in kinds]
        rounds = [ask(scenes, self.rng) for _ in range(4 if len(scenes) == 2 else 1)]
        # A set would come in another order every time.
        taught = list({q.text: q for asked in rounds for q in asked if q.skill == TAUGHT}.values())
        taught = [taught[i] for i in self.rng.permutation(len(taught))[: round(SHARE * questions)]]
        others = [q for q in rounds[0] if q.skill != TAUGHT]
        return scenes, taught + others[: questions - len(taught)]

    def forward(self, requests: list[tuple[list[Scene], list[Question]]], noise: float) -> tuple[Tensor, Packed]:
        """Logits of every answer token, and where they are."""
        spread, prefixes = noise * self.book.values.std(), []
        for scenes, _ in requests:
            visual = list(self.book(fact_table(scenes)))
            visual[0] = visual[0][facts.FIRST_FACT_TOKEN :]
            prefixes.append(self.language.pictures([v + spread * torch.randn(v.shape) for v in visual]))
        packed = self.language.pack(self.shared, prefixes, [asked for _, asked in requests])
        gate = torch.ones(packed.positions.shape)
        gate[:, : facts.FACT_TOKENS] = 0
        # An answer's first token is predicted by the prompt's last, the others by tokens that were generated.
        gate[packed.rows, packed.places] = torch.tensor(packed.begins).float()
        self.adapter.switch.gate = gate[..., None]
        logits = self.language.answer_logits(self.cache, packed)
        self.adapter.switch.gate = None
        return logits, packed

    def step(self, requests: int, questions: int, factor: float) -> float:
        """Learn from a batch of requests; gives the loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * factor
        batch = [self.request(held_out=False, questions=questions) for _ in range(requests)]
        logits, packed = self.forward(batch, NOISE)
        losses = F.cross_entropy(logits, torch.tensor(packed.targets), reduction="none")
        weights = torch.ones_like(losses)
        firsts = torch.tensor(packed.begins).nonzero()[:, 0]
        weights[firsts] = torch.tensor([WEIGHT if q.skill == TAUGHT else 1.0 for _, asked in batch for q in asked])
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        for group in self.optimiser.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return loss.item()

    @torch.no_grad()
    def check(self, requests: list[tuple[list[Scene], list[Question]]]) -> dict[str, float]:
        """Share of answers of which every token is right, by skill and number of pictures."""
        right: dict[str, list[bool]] = {}
        for start in range(0, len(requests), 4):
            part = requests[start : start + 4]
            results = iter(right_answers(*self.forward(part, 0.0)))
            for scenes, asked in part:
                for question in asked:
                    right.setdefault(f"{question.skill}, {len(scenes)}", []).append(next(results))
        return {skill: round(sum(oks) / len(oks), 2) for skill, oks in sorted(right.items())}

    def save(self, file: Path) -> None:
        """Write everything needed to resume, atomically."""
        state = {
            "adapter": self.adapter.state(), "optimiser": self.optimiser.state_dict(), "seconds": self.seconds,
            "steps": self.steps,
        }  # fmt: skip
        torch.save(state, file.with_suffix(".partial"))
        file.with_suffix(".partial").replace(file)

    def load(self, file: Path) -> None:
        """Resume from `save`'s file."""
        saved: dict[str, Any] = torch.load(file, weights_only=True)
        self.adapter.load_state(saved["adapter"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.seconds, self.steps = saved["seconds"], saved["steps"]


def right_answers(logits: Tensor, packed: Packed) -> list[bool]:
    """For every answer whether each of its tokens is the likeliest."""
    results: list[bool] = []
    for ok, begins in zip((logits.argmax(-1) == torch.tensor(packed.targets)).tolist(), packed.begins, strict=True):
        if begins:
            results.append(ok)
        else:
            results[-1] = results[-1] and ok
    return results


def train_adapter(  # noqa: PLR0917
    output: Path, minutes: float, language: Language, book: Codebook, requests: int = 2, questions: int = 10
) -> Adapter:
    """Train for `minutes` of computing on all threads, resuming from `output`/adapter.pt; logs to adapter.jsonl.

    The minutes are CPU time: a run that is stopped for a while, or shares its cores, still gets all of them.
    """
    file, log = output / "adapter.pt", output / "adapter.jsonl"
    trainer = Trainer(language, book, 7)
    held_out = [trainer.request(held_out=True, questions=questions) for _ in range(CHECKS)]
    trainer.rng = np.random.default_rng(int(time.time()))
    if file.is_file():
        trainer.load(file)
    saved = time.monotonic()
    while (progress := trainer.seconds / (minutes * 60)) < 1:
        started = time.process_time()
        loss = trainer.step(requests, questions, min(1.0, (trainer.steps + 1) / 10, (1 - progress) / 0.35 + 0.02))
        trainer.seconds += (time.process_time() - started) / torch.get_num_threads()
        entry: dict[str, Any] = {"minutes": round(trainer.seconds / 60, 2), "steps": trainer.steps, "loss": loss}
        if trainer.steps % 50 == 0:
            entry["held out"] = trainer.check(held_out)
        with log.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
        if time.monotonic() - saved > 120:
            trainer.save(file)
            saved = time.monotonic()
    trainer.save(file)
    return trainer.adapter
