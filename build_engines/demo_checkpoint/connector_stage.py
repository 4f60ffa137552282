"""Third stage: the connector learns to write the codebook's words; the tower's last layers follow it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.language_stage import MIX
from build_engines.demo_checkpoint.muon import Muon
from build_engines.demo_checkpoint.tower_stage import PATCH_LAYER, Pictures, TowerState, normalised

RATES = (0.006, 0.003, 0.003, 2e-4)  # Muon of connector, layers and heads; AdamW of biases and norms
START_PICTURES = 1536


def train_connector(state: TowerState, book: Codebook, output: Path, minutes: float, batch_size: int = 48) -> None:
    """Train the connector and the tower's last two layers for `minutes` of wall time; logs to `output`.

    The connector starts close to the answer: its first layer from the directions that tell values and places apart, its
    second from a regression on that. It works on standardised features, which train far better; at the end the
    standardisation is folded into its weights.
    """
    loader = iter(DataLoader(Pictures(int(time.time()), MIX), batch_size, num_workers=1, prefetch_factor=8))
    features, values = _start_features(state, loader)
    mean, spread = features.mean((0, 1)), features.std((0, 1))
    features = (features - mean) / spread
    connector = state.path.multi_modal_projector
    _start_first_layer(state, features, spread)
    _solve_second_layer(state, book, features, values)
    layers = state.path.vision_tower.encoder.layers[PATCH_LAYER:]
    modules = [connector, layers, state.heads.fact]
    matrices = [[p for p in module.parameters() if p.ndim == 2] for module in modules]
    others = [p for module in modules for p in module.parameters() if p.ndim != 2]
    # Muon, as the features are far from independent: AdamW crawls here.
    optimisers = [Muon(group, rate, weight_decay=0.0) for group, rate in zip(matrices, RATES, strict=False)]
    optimisers.append(torch.optim.AdamW(others, lr=RATES[-1], weight_decay=0.0))
    started, steps, sums = time.monotonic(), 0, [0.0, 0.0, 0.0]
    while (progress := (time.monotonic() - started) / (minutes * 60)) < 1:
        factor = min(1.0, (steps + 1) / 20, (1 - progress) / 0.8)
        for optimiser, rate in zip(optimisers, RATES, strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
        batch = next(loader)
        with torch.no_grad():
            hidden = state.path.features(normalised(batch["pixels"]), PATCH_LAYER)[-1]
        for layer in layers:
            hidden = layer(hidden, None)
        error, confusion = book.distance(connector((hidden - mean) / spread), batch["facts"])
        # The facts stay readable for the first stage's heads: a gradient with less noise.
        read = sum(
            F.cross_entropy(logits, batch["facts"][:, i]) for i, logits in enumerate(state.heads.fact_logits(hidden))
        )
        (error + 0.03 * confusion + 0.05 * read).backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        steps += 1
        for index, value in enumerate((error, confusion, read)):
            sums[index] += float(value.detach()) / 20
        if steps % 20 == 0:
            entry = {"minutes": round(progress * minutes, 2), "steps": steps}
            entry |= dict(zip(("error", "confusion", "heads"), [round(s, 3) for s in sums], strict=True))
            with (output / "connector.jsonl").open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
            sums = [0.0, 0.0, 0.0]
    with torch.no_grad():
        weight = connector.linear_1.weight / spread
        connector.linear_1.bias -= weight @ mean
        connector.linear_1.weight.copy_(weight)


@torch.no_grad()
def _start_features(state: TowerState, loader: object) -> tuple[Tensor, Tensor]:
    features, values = [], []
    for batch in loader:  # type: ignore[attr-defined]
        features.append(state.path.features(normalised(batch["pixels"]))[-1])
        values.append(batch["facts"])
        if sum(map(len, values)) >= START_PICTURES:
            break
    return torch.cat(features), torch.cat(values)


@torch.no_grad()
def _start_first_layer(state: TowerState, features: Tensor, spread: Tensor) -> None:
    """One hidden unit for every token's place, one for every value of a fact, random ones for the rest."""
    layer = state.path.multi_modal_projector.linear_1
    flat = features[:500].flatten(0, 1)
    place = torch.eye(features.shape[1]).repeat(len(flat) // features.shape[1], 1) - 1 / features.shape[1]
    places = _regression(flat.T @ flat, flat.T @ place).T
    heads = state.heads.fact.weight * state.heads.fact_norm.weight
    directions = [places, (heads - heads.mean(1, keepdim=True)) * spread]
    directions.append(torch.randn(layer.out_features - sum(map(len, directions)), layer.in_features))
    layer.weight.copy_(torch.cat(directions))
    scores = flat @ layer.weight.T
    scale = 1.5 / scores.std(0)
    layer.weight.mul_(scale[:, None])
    # Below zero for most tokens, so that a unit speaks of its own value only.
    layer.bias.copy_(-scores.mean(0) * scale - 0.7)


@torch.no_grad()
def _solve_second_layer(state: TowerState, book: Codebook, features: Tensor, values: Tensor) -> None:
    connector = state.path.multi_modal_projector
    width = connector.linear_1.out_features + 1
    gram, mixed = torch.zeros(width, width), torch.zeros(width, connector.linear_2.out_features)
    for part, part_values in zip(features.split(100), values.split(100), strict=True):
        hidden = connector.act(connector.linear_1(part)).flatten(0, 1)
        hidden = torch.cat([hidden, torch.ones(len(hidden), 1)], dim=1)
        gram += hidden.T @ hidden
        mixed += hidden.T @ book(part_values).flatten(0, 1)
    solution = _regression(gram, mixed)
    connector.linear_2.weight.copy_(solution[:-1].T)
    connector.linear_2.bias.copy_(solution[-1])


def _regression(gram: Tensor, mixed: Tensor) -> Tensor:
    """Ridge regression; in float64, as the inputs are far from independent."""
    ridge = gram.diagonal().mean() * 1e-5 * torch.eye(len(gram))
    return torch.linalg.solve((gram + ridge).double(), mixed.double()).float()
