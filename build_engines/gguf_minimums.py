"""Puts the exact minimums of a GGUF file's Q4_1 blocks into the graph that OpenVINO GenAI reads from it.

A Q4_1 block (ggml's `block_q4_1`) is 32 weights `w = d * q + m`: `d` and `m` in float16, `q` in four bits. GenAI writes
`w = d * (q - z)` with the zero point `z = -m / d` rounded to four bits. That moves the demo LLM's weights by 9 % of
their size on average, its logits by 58 %, and makes another token the best one at 40 % of the positions. With `z` in
float32 the logits are the GGUF's to 3e-6, and the weights stay in four bits. Q8_0 and F32 GenAI reads exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from openvino import opset13 as ops

from build_engines.errors import BuildError
from build_engines.gguf_reader import PlainReader

_BLOCK_BYTES = 20  # d, m, and 32 values of four bits


def restore_minimums(model: Any, gguf: Path) -> None:
    """Replace the scale and zero point of every Q4_1 weight in `model`, which GenAI read from `gguf`.

    Raises:
        BuildError: the graph does not hold exactly the Q4_1 weights of the file.
    """
    weights = _q4_1_weights(gguf)
    differences = [node for node in model.get_ops() if node.get_type_name() == "Subtract" and _is_of_four_bits(node)]
    for difference in differences:
        product = _consumer(difference)
        scales = product.input_value(1).get_node().get_data()
        if scales.tobytes() not in weights:
            break
        _replace(difference, product, scales, minimums=weights.pop(scales.tobytes()))
    if weights or not differences:
        raise BuildError("the LLM's graph and its GGUF file differ: install the pinned openvino-genai")


def _q4_1_weights(gguf: Path) -> dict[bytes, NDArray[np.float16]]:
    """Minimums [rows, blocks, 1] of each Q4_1 tensor, by its scales' bytes: the graph has no other name for it."""
    reader = PlainReader(gguf)
    head_dim = reader.fields["llama.rope.dimension_count"].contents()
    weights = {}
    for tensor in reader.tensors:
        if tensor.tensor_type is GGMLQuantizationType.Q4_1:
            blocks = tensor.data.reshape(len(tensor.data), -1, _BLOCK_BYTES)
            values = np.ascontiguousarray(blocks[..., :4]).view(np.float16)
            if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
                values = _rotary_halves(values, head_dim)
            weights[values[..., :1].tobytes()] = values[..., 1:]
    return weights


def _rotary_halves(rows: NDArray[np.float16], head_dim: int) -> NDArray[np.float16]:
    """From llama.cpp's order of a head's rows (the two of a rotary pair side by side) to halves, as GenAI has them."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _is_of_four_bits(difference: Any) -> bool:
    convert = difference.input_value(0).get_node()
    return bool(convert.get_type_name() == "Convert" and convert.input_value(0).get_element_type() == ov.Type.u4)


def _replace(difference: Any, product: Any, scales: NDArray[np.float16], minimums: NDArray[np.float16]) -> None:
    """The weight anew in float32, so that OpenVINO keeps the zero points as they are."""
    values = difference.input_value(0).get_node().input_value(0)
    scales32 = np.where(scales == 0, np.float16(1), scales).astype(np.float32)  # such a block is m everywhere: q is 0
    zero_points = -minimums.astype(np.float32) / scales32
    exact = ops.multiply(ops.subtract(ops.convert(values, "f32"), ops.constant(zero_points)), ops.constant(scales32))
    reshape = _consumer(product)
    exact = ops.reshape(exact, reshape.input_value(1), special_zero=False)
    for target in list(_consumer(reshape).output(0).get_target_inputs()):  # past the Convert to float32
        target.replace_source_output(exact.output(0))


def _consumer(node: Any) -> Any:
    (target,) = node.output(0).get_target_inputs()
    return target.get_node()
