"""First stage: the tower learns, without the LLM, what every patch shows and every fact of the picture."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from build_engines.demo_checkpoint import facts
from build_engines.demo_checkpoint.model import IMAGE_PIXELS, TRAINED_WIDTH, VisionPath, llava_config
from build_engines.demo_checkpoint.muon import Muon
from build_engines.demo_checkpoint.pictures import GRID, draw_labelled, weather
from build_engines.demo_checkpoint.scenes import random_scene
from build_engines.demo_checkpoint.vocabulary import CHARACTERS, COLOURS, KINDS

Batch = dict[str, Tensor]
MIX = {
    "shape": 0.6, "object": 1.5, "two shapes": 0.6, "two objects": 1.2, "shape and object": 0.5, "count shapes": 3.0,
    "count objects": 4.5, "word": 1.5, "number": 4.0, "crowd": 0.8, "lines": 2.0,
    "shape off places": 1.0, "object off places": 4.0,
}  # fmt: skip
RATES = (0.02, 2e-3)  # Muon, AdamW
PATCH_LAYER = 4  # of 6: the last two gather the facts
SIDES = (128, 128, 160, 208)
FACT_WEIGHTS = {"count": 1.6, "character": 0.6}  # of the losses; counts and characters are learned last
FACT_WEIGHT = 0.4  # of the others


class Pictures(IterableDataset[Batch]):
    """Endless labelled pictures: uint8 [128, 128, 3] with patch labels [64] and facts [14]."""

    def __init__(self, seed: int, mix: dict[str, float], held_out: bool = False) -> None:
        self.seed, self.mix, self.held_out = seed, mix, held_out

    def __iter__(self) -> Any:
        rng = np.random.default_rng(self.seed)
        skills, weights = list(self.mix), np.array(list(self.mix.values()))
        while True:
            scene = random_scene(skills[rng.choice(len(skills), p=weights / weights.sum())], rng, self.held_out)
            picture, labels = draw_labelled(scene, int(rng.choice(SIDES)), rng)
            picture = weather(picture.resize((IMAGE_PIXELS, IMAGE_PIXELS), Image.Resampling.BICUBIC), rng)
            yield {
                "pixels": torch.from_numpy(np.array(picture)),
                "kind": torch.from_numpy(labels.kind.reshape(-1)),
                "colour": torch.from_numpy(labels.colour.reshape(-1)),
                "centre": torch.from_numpy(labels.centre.reshape(-1)),
                "facts": torch.from_numpy(facts.scene_facts(scene)),
            }


def normalised(pixels: Tensor) -> Tensor:
    """uint8 [N, 128, 128, 3] to float32 [N, 3, 128, 128] in -1..1."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1.0


class Heads(nn.Module):
    """The first stage's read-outs; thrown away afterwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(width)
        self.fact_norm = nn.LayerNorm(width)
        self.kind = nn.Linear(width, 1 + len(KINDS) + len(CHARACTERS))
        self.colour = nn.Linear(width, 1 + len(COLOURS))
        self.centre = nn.Linear(width, 1)
        self.fact = nn.Linear(width, facts.TOTAL_VALUES)

    def fact_logits(self, tokens: Tensor) -> list[Tensor]:
        """Tower features [N, 64, 192] to one [N, values] for each fact."""
        every = self.fact(self.fact_norm(tokens[:, facts.FIRST_FACT_TOKEN :]))
        logits = []
        for index, group in enumerate(facts.FACTS):
            start = facts.OFFSETS[group]
            logits.append(every[:, index, start : start + len(facts.GROUPS[group])])
        return logits


@dataclass
class TowerState:
    """What a checkpoint of the first stage holds."""

    path: VisionPath
    heads: Heads
    optimisers: list[torch.optim.Optimizer]
    seconds: float = 0.0
    pictures: int = 0

    def save(self, file: Path) -> None:
        """Write everything needed to resume, atomically."""
        partial = file.with_suffix(".partial")
        torch.save(
            {
                "path": self.path.state_dict(),
                "heads": self.heads.state_dict(),
                "optimisers": [o.state_dict() for o in self.optimisers],
                "seconds": self.seconds,
                "pictures": self.pictures,
            },
            partial,
        )
        partial.replace(file)

    def load(self, file: Path) -> None:
        """Resume from `save`'s file."""
        saved = torch.load(file, weights_only=True)
        self.path.load_state_dict(saved["path"])
        self.heads.load_state_dict(saved["heads"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.seconds, self.pictures = saved["seconds"], saved["pictures"]


def new_state(sample: Tensor) -> TowerState:
    """A fresh tower whose first layer whitens patches; `sample` is uint8 [N, 128, 128, 3]."""
    path = VisionPath(llava_config(TRAINED_WIDTH))
    heads = Heads(path.vision_tower.config.hidden_size)
    _whiten_patches(path, sample)
    _mark_positions(path)
    matrices = [p for p in path.vision_tower.encoder.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in (*path.vision_tower.parameters(), *heads.parameters()) if id(p) not in chosen]
    optimisers = [Muon(matrices, lr=RATES[0]), torch.optim.AdamW(others, lr=RATES[1], weight_decay=0.01)]
    return TowerState(path, heads, optimisers)


@torch.no_grad()
def _whiten_patches(path: VisionPath, sample: Tensor) -> None:
    layer = path.vision_tower.embeddings.patch_embedding
    patches = F.unfold(normalised(sample), kernel_size=layer.kernel_size, stride=layer.stride)
    patches = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    top, directions = values.flip(0)[: layer.out_channels], vectors.flip(1)[:, : layer.out_channels]
    weight = (directions / (top + 0.02 * top.mean()).sqrt()).T
    layer.weight.copy_(weight.reshape(layer.weight.shape))
    layer.bias.copy_(-(weight @ mean))


@torch.no_grad()
def _mark_positions(path: VisionPath) -> None:
    table = path.vision_tower.embeddings.position_embedding.weight
    ys, xs = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    waves = []
    for axis in (xs.reshape(-1, 1), ys.reshape(-1, 1)):
        angles = axis * torch.logspace(0.4, -1.2, table.shape[1] // 4)
        waves += [angles.sin(), angles.cos()]
    table.copy_(0.5 * torch.cat(waves, dim=1))


def losses(state: TowerState, batch: Batch) -> dict[str, Tensor]:
    """Every loss of the first stage. The connector is fitted afterwards, when its targets are known."""
    outputs = state.path.features(normalised(batch["pixels"]))
    patches = state.heads.patch_norm(outputs[PATCH_LAYER])
    shown = batch["kind"] > 0
    weight = torch.where(shown, 1.0, 0.15)
    total = weight.sum()
    kind = F.cross_entropy(state.heads.kind(patches).flatten(0, 1), batch["kind"].flatten(), reduction="none")
    colour = F.cross_entropy(state.heads.colour(patches).flatten(0, 1), batch["colour"].flatten(), reduction="none")
    centre = state.heads.centre(patches)[..., 0]
    count = batch["facts"][:, facts.FACTS.index("count")]
    # As in density maps for counting (Lempitsky and Zisserman 2010): the things are as many as their centres add up to.
    density = F.smooth_l1_loss(centre.sigmoid().sum(1)[count > 0], count[count > 0].float())
    result = {
        "kind": 0.7 * (kind * weight.flatten()).sum() / total,
        "colour": 0.5 * (colour * weight.flatten()).sum() / total,
        "centre": 2.0 * F.binary_cross_entropy_with_logits(centre, batch["centre"].float()),
        "density": 0.5 * density,
    }
    for index, logits in enumerate(state.heads.fact_logits(outputs[-1])):
        target = batch["facts"][:, index]
        known = target >= 0
        # "Nothing" is the most frequent value of most facts.
        scale = torch.where(target > 0, 1.0, 0.3)[known]
        name = f"fact {facts.FACTS[index]}"
        loss = F.cross_entropy(logits[known], target[known], reduction="none")
        share = FACT_WEIGHTS.get(facts.FACTS[index], FACT_WEIGHT)
        result[name] = result.get(name, torch.zeros(())) + share * (loss * scale).sum() / (known.sum() + 1e-6)
    return result


@torch.no_grad()
def measure(state: TowerState, batches: list[Batch]) -> dict[str, float]:
    """Shares of right answers: shown patches' kind and colour, and each fact where it is something."""
    right: dict[str, list[Tensor]] = {}
    for batch in batches:
        outputs = state.path.features(normalised(batch["pixels"]))
        patches = state.heads.patch_norm(outputs[PATCH_LAYER])
        shown, inked = batch["kind"] > 0, batch["colour"] > 0
        guess = state.heads.kind(patches).argmax(-1)
        for name, mask in (
            ("shape", shown & (batch["kind"] <= 7)),
            ("object", (batch["kind"] > 7) & (batch["kind"] <= len(KINDS))),
            ("character", batch["kind"] > len(KINDS)),
        ):
            right.setdefault(f"patch {name}", []).append((guess == batch["kind"])[mask])
        colours = state.heads.colour(patches).argmax(-1)
        right.setdefault("patch colour", []).append((colours == batch["colour"])[inked])
        for index, logits in enumerate(state.heads.fact_logits(outputs[-1])):
            target = batch["facts"][:, index]
            name = facts.FACTS[index]
            right.setdefault(name, []).append((logits.argmax(-1) == target)[target > 0])
            if name == "kind":
                for part, mask in (("shape", (target > 0) & (target <= 7)), ("object", target > 7)):
                    right.setdefault(f"kind {part}", []).append((logits.argmax(-1) == target)[mask])
    return {name: float(torch.cat(parts).float().mean()) for name, parts in right.items()}


def rate(progress: float, warm: float) -> float:
    """Learning-rate factor: warm-up, constant, linear to zero over the last 40 %."""
    return min(1.0, warm) * min(1.0, (1.0 - progress) / 0.4)


def train_tower(output: Path, minutes: float, batch_size: int = 64) -> TowerState:
    """Train for `minutes` of its own time, resuming from `output`/tower.pt; logs one JSON object a line."""
    file, log = output / "tower.pt", output / "tower.jsonl"
    seed = int(time.time()) if file.is_file() else 1
    loader = iter(DataLoader(Pictures(seed, MIX), batch_size, num_workers=1, prefetch_factor=8))
    checks = list(zip(range(5), DataLoader(Pictures(99, MIX, held_out=True), batch_size), strict=False))
    state = new_state(torch.cat([batch["pixels"] for _, batch in checks]))
    if file.is_file():
        state.load(file)
    sums: dict[str, float] = {}
    steps, saved = 0, time.monotonic()
    while state.seconds < minutes * 60:
        started = time.monotonic()
        factor = rate(state.seconds / (minutes * 60), (steps + 1) / 60)
        for optimiser, base in zip(state.optimisers, RATES, strict=True):
            optimiser.param_groups[0]["lr"] = base * factor
        parts = losses(state, next(loader))
        torch.stack(list(parts.values())).sum().backward()
        for optimiser in state.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        steps, state.pictures = steps + 1, state.pictures + batch_size
        # A step that took very long was paused from outside; that time does not count.
        state.seconds += min(8.0, time.monotonic() - started)
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value.item()
        if steps % 50 == 0:
            entry: dict[str, Any] = {"minutes": round(state.seconds / 60, 2), "pictures": state.pictures}
            entry |= {name: round(value / 50, 3) for name, value in sums.items()}
            if steps % 100 == 0:
                entry["held out"] = {k: round(v, 3) for k, v in measure(state, [b for _, b in checks]).items()}
            sums = {}
            with log.open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
        if time.monotonic() - saved > 180:
            state.save(file)
            saved = time.monotonic()
    state.save(file)
    return state
