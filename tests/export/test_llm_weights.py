"""An LLM with its weights in eight or four bits, against the same one in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from build_engines.huggingface.text import build_llm
from tests.export.random_checkpoints import SPECIAL, VOCABULARY, make

PROMPT = np.random.default_rng(5).integers(len(SPECIAL), VOCABULARY, (1, 40))


def test_eight_bits_are_near_float32_and_four_are_smaller_still(tmp_path: Path) -> None:
    checkpoint = make("llava", tmp_path / "checkpoint")
    folders = {weights: tmp_path / weights for weights in ("f32", "int8", "int4")}
    for weights, folder in folders.items():
        build_llm(checkpoint, folder, weights)
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in folders.values()]
    exact, eight, four = (logits(folder) for folder in folders.values())
    # random weights lose much: seen 0.028 and 0.36; noise would be at 1.4
    assert 0 < distance(eight, exact) < 0.05
    assert distance(eight, exact) < distance(four, exact) < 0.5
    assert sizes[1] < 0.35 * sizes[0]
    assert sizes[2] < 0.8 * sizes[1]


def logits(folder: Path) -> NDArray[np.float32]:
    """Of every position of the prompt, computed in float32: [tokens, vocabulary]."""
    exactly = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}

    def run(name: str, inputs: dict[str, Any]) -> NDArray[np.float32]:
        return np.array(ov.compile_model(folder / f"{name}.xml", "CPU", exactly)(inputs)[0])

    embeds = run("openvino_text_embeddings_model", {"input_ids": PROMPT})
    return run(
        "openvino_model",
        {
            "inputs_embeds": embeds,
            "attention_mask": np.ones_like(PROMPT),
            "position_ids": np.arange(PROMPT.shape[1])[None],
            "beam_idx": np.zeros(1, np.int32),
        },
    )[0]


def distance(values: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(values - reference) / np.linalg.norm(reference))
