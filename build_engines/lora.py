"""A checkpoint's LoRA adapter in the LLM's graph, switched on token by token.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. GenAI's own adapters act on everything in a step,
and a step holds requests with pictures and without. Here embeddings get one more channel, the gate: 1 where the adapter
acts, 0 where it doesn't. GenAI itself embeds the tokens that it generates, with 0; the engine sets 1 on a prompt's
tokens after its first picture. Elsewhere the LLM computes what it does without an adapter.

The gate is the first channel, as GenAI knows KV blocks again by a few channels of their embeddings (0, 10, ... 90 in
2026.4): an answer's tokens, computed without the adapter, are not taken for the same ones in the next turn's prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset13 as ops
from safetensors import SafetensorError
from safetensors.numpy import load_file

from build_engines.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODULES, parse_weight_name, weight_name
from build_engines.errors import BuildError

Matrix = NDArray[np.float32]


# of one layer: module -> (A [rank, in], B [out, rank] with the adapter's scale in it)
Pairs = dict[str, tuple[Matrix, Matrix]]


@dataclass(frozen=True)
class Lora:
    """The layers that an adapter changes, by their numbers from 0."""

    layers: dict[int, Pairs]


def read_lora(folder: Path) -> Lora:
    """The adapter of a checkpoint folder (BuildError: it is not of the kind known here)."""
    config, weights = folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS
    try:
        values = json.loads(config.read_text())
        scale = np.float32(values["lora_alpha"] / values["r"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BuildError(f"{config}: not the configuration of a LoRA adapter as PEFT writes it: {error!r}") from error
    try:
        matrices = {name: matrix.astype(np.float32) for name, matrix in load_file(weights).items()}
    except (OSError, SafetensorError, TypeError) as error:
        raise BuildError(f"{weights} can't be read: {error}") from error
    layers: dict[int, Pairs] = {}
    for name in sorted(matrices):
        found = parse_weight_name(name)
        if found is None:
            raise BuildError(f"{weights} holds {name}: only {', '.join(MODULES)} of attention layers can be adapted")
        layer, module, part = found
        if part == "lora_B":
            continue
        other = weight_name(layer, module, "lora_B")
        if other not in matrices:
            raise BuildError(f"{weights} lacks {other}")
        down, up = matrices[name], matrices[other]
        if down.ndim != 2 or up.ndim != 2 or len(down) != up.shape[1]:
            raise BuildError(f"{weights}: {name} {down.shape} and lora_B {up.shape} don't fit each other")
        layers.setdefault(layer, {})[module] = (down, up * scale)
    return Lora(layers)


def add_lora(model: Any, lora: Lora, gate: Any) -> None:
    """Put the adapter into a graph that GenAI read from a GGUF file; `gate` is an output float32 [batch, tokens, 1].

    Raises:
        BuildError: the graph lacks a layer of the adapter's, or has one of another width.
    """
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    if (last := max(lora.layers, default=-1)) >= len(attentions):
        raise BuildError(f"the LoRA adapter changes layer {last}, and the LLM has {len(attentions)}")
    for layer, pairs in lora.layers.items():
        attention = attentions[layer]
        inputs = [_nearest(attention.input_value(index).get_node(), _sources) for index in range(3)]
        projections = dict(zip(MODULES, [*inputs, _nearest(attention, _readers)], strict=True))
        for together in (MODULES[:3], MODULES[3:]):  # q, k and v read the same
            if group := [module for module in together if module in pairs]:
                _add(group, projections, pairs, gate)


def _add(group: list[str], projections: dict[str, Any], pairs: Pairs, gate: Any) -> None:
    """`projection(x)` becomes `projection(x) + B(gate * A(x))`; the As of a group are one matrix, which is faster."""
    source = projections[group[0]].input_value(0)
    down = np.concatenate([pairs[module][0] for module in group])
    _check_shape(group, "lora_A", down.shape[1], source)
    inner = ops.multiply(ops.matmul(source, ops.constant(down), False, True), gate)
    start = 0
    for module in group:
        matrix, projection = pairs[module][1], projections[module]
        _check_shape([module], "lora_B", len(matrix), projection.output(0))
        up = np.zeros((len(matrix), len(down)), np.float32)
        up[:, start : start + matrix.shape[1]] = matrix
        start += matrix.shape[1]
        readers = list(projection.output(0).get_target_inputs())
        total = ops.add(projection, ops.matmul(inner, ops.constant(up), False, True))
        for reader in readers:
            reader.replace_source_output(total.output(0))


def _check_shape(modules: list[str], part: str, width: int, output: Any) -> None:
    expected = output.get_partial_shape()[2]
    if expected.is_static and expected.get_length() != width:
        raise BuildError(
            f"the LoRA adapter's {part} of {', '.join(modules)} is {width} wide, and the LLM's layers "
            f"{expected.get_length()}: it was trained for another LLM"
        )


def _nearest(start: Any, following: Callable[[Any], list[Any]]) -> Any:
    """The first multiplication with weights that a walk from `start` comes to."""
    return next(node for node in _walk(start, following) if _is_projection(node))


def _walk(start: Any, following: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Breadth first."""
    front, seen = [start], set()
    while front:
        node = front.pop(0)
        if node.get_name() not in seen:
            seen.add(node.get_name())
            yield node
            front += following(node)


def _sources(node: Any) -> list[Any]:
    return [value.get_node() for value in node.input_values()]


def _readers(node: Any) -> list[Any]:
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]


def _is_projection(node: Any) -> bool:
    return bool(node.get_type_name() == "MatMul" and node.input_value(1).get_partial_shape().is_static)
