"""Third stage: the connector learns to write the codebook's words from the trained tower's features."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from build_engines.demo_checkpoint import facts
from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.language_stage import MIX as ASKED
from build_engines.demo_checkpoint.model import TRAINED_WIDTH, VISUAL_TOKENS
from build_engines.demo_checkpoint.place_channels import widen
from build_engines.demo_checkpoint.tower_stage import Pictures, TowerState, normalised

RATE = 6e-4  # Adam
MIX = {**ASKED, "shape off places": 1.0, "object off places": 2.0}
PICTURES = 33_000  # of 11,000 half were learned by heart


def train_connector(state: TowerState, book: Codebook, output: Path, minutes: float, batch_size: int = 128) -> None:
    """Widen the tower, then train the connector on it for `minutes` of CPU time on every thread; logs to `output`.

    The connector starts close to the answer: its first layer from what tells values and places apart, its second from a
    regression on that. Then both learn: the LLM forgives little of what remains wrong. It works on standardised
    features; at the end the standardisation is folded into its weights.
    """
    state.path = widen(state.path)
    features, values = _features(state)
    mean, spread = features.mean((0, 1)), features.std((0, 1))
    features = (features - mean) / spread
    connector = state.path.multi_modal_projector
    _start_first_layer(state, features, values, spread)
    _solve_second_layer(state, book, features, values)
    optimiser = torch.optim.Adam(connector.parameters(), RATE, betas=(0.9, 0.99))
    started, steps, sums = time.process_time(), 0, [0.0, 0.0]
    budget = minutes * 60 * torch.get_num_threads()
    while (progress := (time.process_time() - started) / budget) < 1:
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (steps + 1) / 20, (1 - progress) / 0.7)
        chosen = torch.randint(len(features), (batch_size,))
        tokens = connector(features[chosen, facts.FIRST_FACT_TOKEN :])
        error, confusion = book.distance(tokens, values[chosen])
        # A few pictures are enough for the tokens that always say the same.
        workspace = connector(features[chosen[:8], : facts.FIRST_FACT_TOKEN])
        (error + 0.1 * confusion + book.workspace_error(workspace)).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        steps += 1
        for index, value in enumerate((error, confusion)):
            sums[index] += float(value.detach()) / 20
        if steps % 20 == 0:
            entry = {"minutes": round(progress * minutes, 2), "steps": steps}
            entry |= dict(zip(("error", "confusion"), [round(s, 3) for s in sums], strict=True))
            with (output / "connector.jsonl").open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
            sums = [0.0, 0.0]
    with torch.no_grad():
        weight = connector.linear_1.weight / spread
        connector.linear_1.bias -= weight @ mean
        connector.linear_1.weight.copy_(weight)


@torch.no_grad()
def _features(state: TowerState) -> tuple[Tensor, Tensor]:
    features, values = [], []
    for batch in DataLoader(Pictures(int(time.time()), MIX), 64, num_workers=1):
        features.append(state.path.features(normalised(batch["pixels"]))[-1])
        values.append(batch["facts"])
        if sum(map(len, values)) >= PICTURES:
            break
    return torch.cat(features), torch.cat(values)


@torch.no_grad()
def _start_first_layer(state: TowerState, features: Tensor, values: Tensor, spread: Tensor) -> None:
    """One hidden unit for every token's place and one for every value of a fact; random ones for the rest.

    A unit is about 4 for its own place or value and about 0 otherwise: to the second layer they are labels.
    """
    layer = state.path.multi_modal_projector.linear_1
    torch.nn.init.xavier_uniform_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    channels = slice(TRAINED_WIDTH, TRAINED_WIDTH + VISUAL_TOKENS)
    own = features[0, :, channels]  # [64, 64], the same for every picture
    away, home = own[1, 0], own[0, 0]
    # In these units a place's channel is 1 at its own token and 0 at the others.
    step = 1 / (home - away)
    layer.weight[:VISUAL_TOKENS] = 0
    layer.weight[:VISUAL_TOKENS, channels] = 8 * step * torch.eye(VISUAL_TOKENS)
    layer.bias[:VISUAL_TOKENS] = -4 - 8 * step * away
    heads = state.heads.fact.weight * state.heads.fact_norm.weight
    heads = (heads - heads.mean(1, keepdim=True)) * spread[:TRAINED_WIDTH]
    for group, names in facts.GROUPS.items():
        spots = [facts.FIRST_FACT_TOKEN + i for i, name in enumerate(facts.FACTS) if name == group]
        tokens = features[:, spots, :TRAINED_WIDTH].flatten(0, 1)
        targets = values[:, [spot - facts.FIRST_FACT_TOKEN for spot in spots]].flatten()
        start = facts.OFFSETS[group]
        scores = tokens @ heads[start : start + len(names)].T
        gate = torch.zeros(layer.in_features)
        gate[TRAINED_WIDTH + torch.tensor(spots)] = 12 * step
        for index in range(len(names)):
            mine, others = scores[targets == index, index], scores[targets != index, index]
            high = mine.mean() if len(mine) > 2 else others.mean() + 5 * others.std()
            slope = 8 / (high - others.mean()).clamp(min=1e-3)
            unit = VISUAL_TOKENS + start + index
            layer.weight[unit] = gate
            layer.weight[unit, :TRAINED_WIDTH] = slope * heads[start + index]
            # The gate costs 12 at the tokens of other facts.
            layer.bias[unit] = -4 - slope * others.mean() - 12 - 12 * step * away * len(spots)


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
