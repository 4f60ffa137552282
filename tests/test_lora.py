"""A LoRA adapter in the LLM's graph: what it adds, where, and what is no adapter for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops
from safetensors.numpy import save_file

from build_engines.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODULES, weight_name
from build_engines.errors import BuildError
from build_engines.lora import add_lora, read_lora

WIDTH, RANK, ALPHA = 8, 2, 6.0
RNG = np.random.default_rng(5)
WEIGHTS = {module: RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) for module in MODULES}


def matrices(layers: int = 1, width: int = WIDTH) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(6)
    shapes = {"lora_A": (RANK, width), "lora_B": (width, RANK)}
    return {
        weight_name(layer, module, part): rng.normal(size=shape).astype(np.float32)
        for layer in range(layers)
        for module in MODULES
        for part, shape in shapes.items()
    }


def write_adapter(folder: Path, values: dict[str, NDArray[np.float32]]) -> Path:
    (folder / ADAPTER_CONFIG).write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
    save_file(values, folder / ADAPTER_WEIGHTS)
    return folder


def graph() -> tuple[Any, Any]:
    """One attention of one head over [batch, tokens, width], and the gate that an adapter would follow."""
    x = ops.parameter([-1, -1, WIDTH], ov.Type.f32, name="x")
    gate = ops.parameter([-1, -1, 1], ov.Type.f32, name="gate")
    for node in (x, gate):
        node.output(0).set_names({node.get_friendly_name()})
    head = ops.constant([0, 0, 1, WIDTH], dtype=np.int64)

    def project(source: Any, module: str) -> Any:
        return ops.matmul(source, ops.constant(WEIGHTS[module]), False, True)

    q, k, v = (ops.reshape(project(x, module), head, True) for module in MODULES[:3])
    swapped = [ops.transpose(part, ops.constant([0, 2, 1, 3], dtype=np.int64)) for part in (q, k, v)]
    mixed = ops.scaled_dot_product_attention(*swapped, causal=True)
    flat = ops.reshape(
        ops.transpose(mixed, ops.constant([0, 2, 1, 3], dtype=np.int64)),
        ops.constant([0, 0, WIDTH], dtype=np.int64),
        True,
    )
    return ov.Model([project(flat, MODULES[3])], [x, gate], "attention"), gate.output(0)


def run(model: Any, x: NDArray[np.float32], gate: NDArray[np.float32]) -> NDArray[np.float32]:
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled({"x": x, "gate": gate})[0])


def by_numpy(x: NDArray[np.float32], gate: NDArray[np.float32], values: dict[str, NDArray[np.float32]]) -> Any:
    """LoRA as in the paper, section 4.1: W x + alpha / r B A x."""

    def project(source: NDArray[Any], module: str) -> NDArray[Any]:
        a, b = (values[weight_name(0, module, part)].astype(np.float64) for part in ("lora_A", "lora_B"))
        added: NDArray[Any] = source @ WEIGHTS[module].T + gate * ALPHA / RANK * (source @ a.T @ b.T)
        return added

    q, k, v = (project(x.astype(np.float64), module) for module in MODULES[:3])
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH)
    scores[:, ~np.tri(x.shape[1], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return project(weights / weights.sum(-1, keepdims=True) @ v, MODULES[3])


def test_adapter_adds_what_the_paper_says_where_the_gate_is_on(tmp_path: Path) -> None:
    values = matrices()
    model, gate = graph()
    plain = graph()[0]
    add_lora(model, read_lora(write_adapter(tmp_path, values)), gate)
    x = np.random.default_rng(7).normal(size=(2, 5, WIDTH)).astype(np.float32)
    switch = np.array([[[0], [0], [1], [1], [0]]] * 2, np.float32)
    adapted = run(model, x, switch)
    np.testing.assert_allclose(adapted, by_numpy(x, switch, values), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(adapted[:, :2], run(plain, x, switch)[:, :2])
    assert np.abs(adapted[:, 4] - run(plain, x, switch)[:, 4]).max() > 0.1, "it reads what the adapter wrote"
    off = np.zeros_like(switch)
    np.testing.assert_array_equal(run(model, x, off), run(plain, x, off))


def test_adapter_of_another_llm_is_refused(tmp_path: Path) -> None:
    model, gate = graph()
    with pytest.raises(BuildError, match="changes layer 1, and the LLM has 1"):
        add_lora(model, read_lora(write_adapter(tmp_path, matrices(layers=2))), gate)
    with pytest.raises(BuildError, match="lora_A of q_proj, k_proj, v_proj is 4 wide, and the LLM's layers 8"):
        add_lora(model, read_lora(write_adapter(tmp_path, matrices(width=4))), gate)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"r": 0, "lora_alpha": 1}', '{"r": "x", "lora_alpha": 1}'])
def test_bad_configuration_is_named(tmp_path: Path, text: str) -> None:
    folder = write_adapter(tmp_path, matrices())
    (folder / ADAPTER_CONFIG).write_text(text)
    with pytest.raises(BuildError, match=f"{ADAPTER_CONFIG}: not the configuration of a LoRA adapter"):
        read_lora(folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "text"])
def test_bad_weights_are_named(tmp_path: Path, damage: str) -> None:
    file = write_adapter(tmp_path, matrices()) / ADAPTER_WEIGHTS
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100] if damage == "cut" else b"no weights")
    with pytest.raises(BuildError, match=f"{ADAPTER_WEIGHTS} can't be read"):
        read_lora(tmp_path)


def test_matrix_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    values = matrices()
    lacking = {name: value for name, value in values.items() if name != weight_name(0, "v_proj", "lora_B")}
    with pytest.raises(BuildError, match=r"lacks .*v_proj\.lora_B"):
        read_lora(write_adapter(tmp_path, lacking))
    more = values | {"base_model.model.lm_head.lora_A.weight": np.zeros((1, 1), np.float32)}
    with pytest.raises(
        BuildError,
        match=r"holds base_model\.model\.lm_head\.lora_A\.weight: only q_proj, k_proj, v_proj, o_proj of attention",
    ):
        read_lora(write_adapter(tmp_path, more))
    unfit = values | {weight_name(0, "k_proj", "lora_B"): np.zeros((WIDTH, RANK + 1), np.float32)}
    with pytest.raises(BuildError, match="don't fit each other"):
        read_lora(write_adapter(tmp_path, unfit))


def test_adapter_may_leave_layers_out(tmp_path: Path) -> None:
    values = {name: value for name, value in matrices().items() if "q_proj" in name}
    model, gate = graph()
    add_lora(model, read_lora(write_adapter(tmp_path, values)), gate)
    x = np.random.default_rng(8).normal(size=(1, 4, WIDTH)).astype(np.float32)
    switch = np.ones((1, 4, 1), np.float32)
    zeros = {name: np.zeros_like(value) for name, value in matrices().items()}
    np.testing.assert_allclose(run(model, x, switch), by_numpy(x, switch, zeros | values), rtol=1e-4, atol=1e-4)
