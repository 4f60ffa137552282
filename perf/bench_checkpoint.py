"""A checkpoint with a vision tower of realistic cost and random weights, for load tests.

    python -m perf.bench_checkpoint [--output checkpoints/bench]

The LLM is the demo's (SmolLM2-135M); the tower has the shape of SigLIP-B/16 at 224 pixels (Zhai et al. 2023, table of
model sizes: 12 layers of width 768, 12 heads, MLP 3072; 86 M parameters, 196 tokens an image) and LLaVA's two-layer
connector. Its visual tokens mean nothing; they cost what they would. Needs the package onnx (extra `[bench]`).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from build_engines.facts import CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, VISION_MODEL

DEMO = Path(__file__).resolve().parent.parent / "checkpoints" / "demo"
IMAGE, PATCH, WIDTH, LAYERS, HEADS, MLP = 224, 16, 768, 12, 12, 3072
GRID = IMAGE // PATCH
TOKENS = GRID * GRID
_TOKEN_SCALE = 0.05  # about the size of the LLM's own embeddings, so that its softmaxes see ordinary numbers


class _Graph:
    """Nodes and weights in order; every method gives the name of its result."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, values: NDArray[Any] | np.floating[Any]) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        """Random float16, as a checkpoint of this size would be stored, computed with in float32."""
        values = self._rng.standard_normal(shape, np.float32) * scale
        return self.op("Cast", self.constant(values.astype(np.float16)), to=TensorProto.FLOAT)

    def linear(self, x: str, wide: int, out: int) -> str:
        product = self.op("MatMul", x, self.weight(wide, out, scale=wide**-0.5))
        return self.op("Add", product, self.weight(out, scale=0.02))

    def norm(self, x: str) -> str:
        ones, zeros = self.constant(np.ones(WIDTH, np.float32)), self.constant(np.zeros(WIDTH, np.float32))
        return self.op("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-6)

    def shape(self, *sizes: int) -> str:
        return self.constant(np.array(sizes, np.int64))


def tower(hidden: int, seed: int = 7) -> Any:
    """The ONNX model: tiles UINT8 [N, 224, 224, 3] -> visual_tokens float32 [N, 196, hidden]."""
    g = _Graph(seed)
    pixels = g.op("Cast", "tiles", to=TensorProto.FLOAT)
    pixels = g.op("Sub", g.op("Mul", pixels, g.constant(np.float32(1 / 127.5))), g.constant(np.float32(1)))
    patches = g.op("Reshape", pixels, g.shape(-1, GRID, PATCH, GRID, PATCH, 3))
    patches = g.op("Transpose", patches, perm=[0, 1, 3, 2, 4, 5])
    patches = g.op("Reshape", patches, g.shape(-1, TOKENS, PATCH * PATCH * 3))
    x = g.op("Add", g.linear(patches, PATCH * PATCH * 3, WIDTH), g.weight(1, TOKENS, WIDTH, scale=0.02))
    for _ in range(LAYERS):
        x = g.op("Add", x, _attention(g, g.norm(x)))
        inner = g.op("Gelu", g.linear(g.norm(x), WIDTH, MLP), approximate="tanh")
        x = g.op("Add", x, g.linear(inner, MLP, WIDTH))
    x = g.op("Gelu", g.linear(g.norm(x), WIDTH, hidden))
    scaled = g.op("Mul", g.linear(x, hidden, hidden), g.constant(np.float32(_TOKEN_SCALE)))
    g.nodes.append(helper.make_node("Identity", [scaled], ["visual_tokens"]))
    graph = helper.make_graph(
        g.nodes,
        "bench_tower",
        [helper.make_tensor_value_info("tiles", TensorProto.UINT8, ["N", IMAGE, IMAGE, 3])],
        [helper.make_tensor_value_info("visual_tokens", TensorProto.FLOAT, ["N", TOKENS, hidden])],
        g.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _attention(g: _Graph, x: str) -> str:
    size = WIDTH // HEADS
    split = g.shape(-1, TOKENS, HEADS, size)
    query, key, value = (
        g.op("Transpose", g.op("Reshape", g.linear(x, WIDTH, WIDTH), split), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = g.op("Mul", g.op("MatMul", query, key), g.constant(np.float32(size**-0.5)))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    joined = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.shape(-1, TOKENS, WIDTH))
    return g.linear(joined, WIDTH, WIDTH)


def write(output: Path) -> None:
    """The whole checkpoint folder: the demo's texts, with the numbers of this tower."""
    config = json.loads((DEMO / CONFIG).read_text())
    config["image_seq_length"] = TOKENS
    config["vision_config"] |= {
        "image_size": IMAGE,
        "patch_size": PATCH,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    output.mkdir(parents=True, exist_ok=True)
    for name in (GENERATION_CONFIG, CHAT_TEMPLATE):
        shutil.copyfile(DEMO / name, output / name)
    (output / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    onnx.save(tower(config["text_config"]["hidden_size"]), str(output / VISION_MODEL))


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DEMO.parent / "bench")
    options = parser.parse_args()
    write(options.output)
    print(f"{options.output}: {sum(path.stat().st_size for path in options.output.iterdir()) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
