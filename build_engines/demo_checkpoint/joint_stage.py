"""Fourth stage: connector and last tower layers learn from the LLM's answers about drawn pictures."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.language_stage import PAIRS, Chooser, fact_table
from build_engines.demo_checkpoint.model import IMAGE_PIXELS
from build_engines.demo_checkpoint.packing import Language
from build_engines.demo_checkpoint.pictures import Scene, draw, weather
from build_engines.demo_checkpoint.questions import Question
from build_engines.demo_checkpoint.tower_stage import PATCH_LAYER, SIDES, TowerState, normalised

RATE = 1e-4
QUESTIONS = 7  # about each request


def train_joint(  # noqa: PLR0917
    state: TowerState, book: Codebook, language: Language, output: Path, minutes: float, requests: int = 4
) -> None:
    """Train for `minutes` of wall time; logs to `output`. The codebook stays the visual tokens' anchor."""
    connector = state.path.multi_modal_projector
    layers = state.path.vision_tower.encoder.layers[PATCH_LAYER:]
    parameters = [*connector.parameters(), *layers.parameters()]
    optimiser = torch.optim.AdamW(_scaled(state), weight_decay=0.0, betas=(0.9, 0.98))
    rates = [group["lr"] for group in optimiser.param_groups]
    chooser = Chooser(int(time.time()))
    cache, shared = language.shared_start(None)
    started, steps = time.monotonic(), 0
    while (progress := (time.monotonic() - started) / (minutes * 60)) < 1:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (steps + 1) / 5, (1 - progress) / 0.5)
        groups = [chooser.scenes(2 if chooser.rng.random() < PAIRS else 1) for _ in range(requests)]
        scenes = [scene for group in groups for scene in group]
        tokens = state.path(normalised(torch.from_numpy(_pixels(scenes, chooser.rng))))
        error, confusion = book.distance(tokens, fact_table(scenes))
        prefixes, asked, place = [], [], 0
        for group in groups:
            prefixes.append(language.pictures(list(tokens[place : place + len(group)])))
            asked.append(chooser.questions(group, QUESTIONS))
            place += len(group)
        packed = language.pack(shared, prefixes, asked)
        logits = language.answer_logits(cache, packed)
        answers = F.cross_entropy(logits, torch.tensor(packed.targets))
        (answers + 0.1 * error + 0.01 * confusion).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        steps += 1
        right = _judge(language, chooser, groups, asked, logits, packed.targets)
        entry = {"steps": steps, "answers": round(answers.item(), 3), "error": round(error.item(), 3)}
        entry |= {"confusion": round(confusion.item(), 2), "right": round(right, 3)}
        with (output / "joint.jsonl").open("a") as stream:
            stream.write(json.dumps(entry) + "\n")


def _scaled(state: TowerState) -> list[dict[str, object]]:
    connector = state.path.multi_modal_projector
    # The first layer reads unscaled features, tens wide: it moves as much by a smaller rate.
    return [
        {"params": [connector.linear_1.weight], "lr": RATE / 30},
        {"params": [connector.linear_1.bias, *connector.linear_2.parameters()], "lr": RATE},
        {"params": [*state.path.vision_tower.encoder.layers[PATCH_LAYER:].parameters()], "lr": RATE},
    ]


def _pixels(scenes: list[Scene], rng: np.random.Generator) -> NDArray[np.uint8]:
    rows = []
    for scene in scenes:
        picture = draw(scene, int(rng.choice(SIDES)), rng)
        picture = picture.resize((IMAGE_PIXELS, IMAGE_PIXELS), Image.Resampling.BICUBIC)
        rows.append(np.asarray(weather(picture, rng)))
    return np.stack(rows)


def _judge(  # noqa: PLR0917
    language: Language,
    chooser: Chooser,
    groups: list[list[Scene]],
    asked: list[list[Question]],
    logits: Tensor,
    targets: list[int],
) -> float:
    guesses, place, total, good = logits.argmax(-1).tolist(), 0, 0, 0
    for group, questions in zip(groups, asked, strict=True):
        for question in questions:
            length = len(language.ids(question.answer)) + 1
            right = guesses[place : place + length] == targets[place : place + length]
            chooser.learn(question, len(group), right)
            place, total, good = place + length, total + 1, good + right
    return good / total
