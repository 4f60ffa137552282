"""ONNX of vision towers against transformers: features through our graph and packing are those of its own model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    LlavaNextImageProcessorPil,
    LlavaOnevisionImageProcessorPil,
    Qwen2VLImageProcessorPil,
)

from build_engines.huggingface import facts
from build_engines.huggingface.qwen_vision import build_qwen_vision
from build_engines.huggingface.vision import build_vision
from python_backends.media.cutting import cut
from python_backends.media.layout import Layout
from python_backends.media.packing import load_row_end, pack
from python_backends.media.patches import cut_patches
from python_backends.media.patches import pack as pack_patches
from python_backends.media.pixels import to_rgb
from python_backends.media.tiling import PatchGrid, Size
from tests.export.random_checkpoints import FAMILIES, make, make_qwen
from tests.media.scenes import photo

PROCESSORS = {
    "llava": CLIPImageProcessorPil,
    "llava_next": LlavaNextImageProcessorPil,
    "llava_onevision": LlavaOnevisionImageProcessorPil,
}
SIZES = ((56, 56), (100, 100), (160, 60), (50, 190), (220, 180), (57, 300), (400, 390))
TOLERANCE = 1e-3  # of the largest absolute value, in float32


def run(model: Path, **inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(model / "model.onnx"), providers=["CPUExecutionProvider"])
    (output,) = session.run(["visual_tokens"], inputs)
    return np.asarray(output, np.float32)


def relative(given: NDArray[np.float32], expected: torch.Tensor) -> float:
    reference = expected.numpy()
    assert given.shape == reference.shape
    return float(np.abs(given - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_visual_tokens_are_those_of_transformers_for_any_size(family: str, tmp_path: Path) -> None:
    checkpoint = make(family, tmp_path / family)
    build_vision(checkpoint, tmp_path / "vision")
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = PROCESSORS[family].from_pretrained(checkpoint)
    layout = Layout.of(facts.read(checkpoint))
    row_end = load_row_end(tmp_path / "vision").astype(np.float32) if layout.ends_rows else None
    for width, height in SIZES:
        picture, size = photo(width, height), Size(width, height)
        inputs = processor(images=picture, return_tensors="pt")
        inputs.pop("batch_num_images", None)
        with torch.no_grad():
            expected = torch.cat(list(model.get_image_features(**inputs, return_dict=True).pooler_output))
        tiles = cut(scaler(picture), size, layout, alone=True)
        assert len(tiles) == layout.tiles(size)
        given = pack(run(tmp_path / "vision", tiles=tiles), size, layout, row_end)
        assert len(given) == layout.tokens(size, alone=True)
        assert relative(given.astype(np.float32), expected.reshape(-1, expected.shape[-1])) < TOLERANCE, size


def scaler(picture: Image.Image):  # type: ignore[no-untyped-def]
    return lambda size: to_rgb(picture, (size.width, size.height))


def test_pictures_among_others_are_one_tile_in_onevision(tmp_path: Path) -> None:
    checkpoint = make("llava_onevision", tmp_path / "one")
    build_vision(checkpoint, tmp_path / "vision")
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    pictures = [photo(160, 60), photo(220, 180)]
    inputs = LlavaOnevisionImageProcessorPil.from_pretrained(checkpoint)(images=[pictures], return_tensors="pt")
    with torch.no_grad():
        expected = model.get_image_features(**inputs, return_dict=True).pooler_output
    layout, row_end = Layout.of(facts.read(checkpoint)), load_row_end(tmp_path / "vision").astype(np.float32)
    for picture, reference in zip(pictures, expected, strict=True):
        size = Size(*picture.size)
        tiles = cut(scaler(picture), size, layout, alone=False)
        given = pack(run(tmp_path / "vision", tiles=tiles), size, layout, row_end)
        assert len(given) == layout.tokens(size, alone=False)
        assert relative(given.astype(np.float32), reference) < TOLERANCE


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_half_precision_is_computed_in_half(precision: str, tmp_path: Path) -> None:
    import onnx  # noqa: PLC0415

    build_vision(make("llava_next", tmp_path / "next"), tmp_path / "vision", precision)
    graph = onnx.load(str(tmp_path / "vision" / "model.onnx")).graph
    kinds = {"f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
    assert graph.output[0].type.tensor_type.elem_type == kinds[precision]
    weights = [tensor for tensor in graph.initializer if len(tensor.dims) >= 2]
    assert {tensor.data_type for tensor in weights} == {kinds[precision]}


@pytest.mark.parametrize("sizes", [[(112, 112)], [(56, 300), (84, 84)], [(500, 420), (30, 30), (224, 112)]])
def test_qwen_s_packed_patches_give_transformers_visual_tokens(sizes: list[tuple[int, int]], tmp_path: Path) -> None:
    checkpoint = make_qwen(tmp_path / "qwen")
    build_qwen_vision(checkpoint, tmp_path / "vision")
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    pictures = [photo(*size) for size in sizes]
    inputs = Qwen2VLImageProcessorPil()(images=pictures, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(list(model.get_image_features(**inputs, return_dict=True).pooler_output))
    rule = PatchGrid()
    resized = [rule.resized(Size(*size)) for size in sizes]
    patches = [
        cut_patches(np.asarray(to_rgb(picture, (size.width, size.height))), rule)
        for picture, size in zip(pictures, resized, strict=True)
    ]
    packed = pack_patches([rule.grid(Size(*size)) for size in sizes], rule)
    given = run(tmp_path / "vision", patches=np.concatenate(patches), **vars(packed))
    assert relative(given, expected) < TOLERANCE
