"""Facts of a Hugging Face checkpoint: its configuration with transformers' defaults filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from build_engines.errors import BuildError
from build_engines.facts import CONFIG, GENERATION_CONFIG, kv_bytes_per_token, read_json
from build_engines.huggingface.picture import PictureRule, read_picture_rule
from build_engines.huggingface.towers import PACKED_PATCHES
from python_backends.checkpoint import Checkpoint, NativeResolution, Tiling
from python_backends.media.layout import patch_grid
from python_backends.media.tiling import Size

ANY_RESOLUTION = ("llava_next", "llava_onevision")
_EXAMPLE_PIXELS = 448  # a side of an ordinary picture, where they may have any size
_NAME_OF_MAX_TILES = "anyres_max_"


def write_facts(checkpoint: Path, output: Path) -> None:
    """Write the facts of a folder as `Checkpoint` JSON (BuildError)."""
    output.write_text(read(checkpoint).model_dump_json())


def read(checkpoint: Path) -> Checkpoint:
    """The facts of a folder of a family in `build_engines.facts.FAMILIES` (BuildError)."""
    config = AutoConfig.from_pretrained(checkpoint)
    rule, text = read_picture_rule(checkpoint), config.get_text_config()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    pictures = _patches if config.model_type in PACKED_PATCHES else _tiles
    return Checkpoint(
        name=checkpoint.name,
        **pictures(checkpoint / CONFIG, config, rule),
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        kv_bytes_per_token=kv_bytes_per_token(text.to_dict()),
        context_tokens=text.max_position_embeddings,
        image_token=str(tokenizer.convert_ids_to_tokens(config.image_token_id)),
        eos_token_ids=_eos(checkpoint, text, tokenizer),
        bos_token=tokenizer.bos_token or "",
        eos_token=tokenizer.eos_token or "",
    )


def _patches(path: Path, config: Any, rule: PictureRule) -> dict[str, Any]:
    """What `Checkpoint` says of pictures, of a family of native resolution."""
    vision, (least, most) = config.vision_config, rule.area
    native = NativeResolution(
        patch=vision.patch_size, merge=vision.spatial_merge_size, window=vision.window_size,
        min_pixels=least, max_pixels=most,
    )  # fmt: skip
    grid = patch_grid(native)
    example = grid.resized(Size(_EXAMPLE_PIXELS, _EXAMPLE_PIXELS))
    return {"native": native, "image_size": example.width, "tokens_per_tile": grid.tokens(example)}


def _tiles(path: Path, config: Any, rule: PictureRule) -> dict[str, Any]:
    """The same of a family of square tiles."""
    vision = config.vision_config
    features = vision.image_size // vision.patch_size
    with_class = vision.model_type.startswith("clip")  # CLIP's class token comes first; SigLIP has none
    tokens = features**2 + with_class - (config.vision_feature_select_strategy == "default")
    tiling = _tiling(path, config, rule) if config.model_type in ANY_RESOLUTION else None
    if tiling is not None and tokens != features**2:
        raise BuildError(f"{path}: {tokens} features of a tile are no square of {features} a side")
    return {
        "image_size": vision.image_size,
        "tokens_per_tile": tokens,
        "fit": "pad" if config.model_type == "llava_onevision" else rule.fit,
        "pad_colour": rule.pad_colour,
        "tiling": tiling,
    }


def _tiling(path: Path, config: Any, rule: PictureRule) -> Tiling:
    pinpoints = [list(point) for point in config.image_grid_pinpoints]
    if rule.canvases is not None and [list(point) for point in rule.canvases] != pinpoints:
        raise BuildError(f"{path}: image_grid_pinpoints are not those of the image processor")
    side = config.vision_config.image_size
    if any(height % side or width % side for height, width in pinpoints):
        raise BuildError(f"{path}: image_grid_pinpoints hold what is not whole tiles of {side} pixels")
    canvases = tuple((width, height) for height, width in pinpoints)
    if config.model_type == "llava_next":
        return Tiling(canvases=canvases)
    ratio = config.vision_aspect_ratio
    if not ratio.startswith(_NAME_OF_MAX_TILES):
        raise BuildError(f"{path}: vision_aspect_ratio is {ratio!r}, not {_NAME_OF_MAX_TILES}N")
    return Tiling(canvases=canvases, max_tiles=int(ratio.removeprefix(_NAME_OF_MAX_TILES)), alone_only=True)


def _eos(checkpoint: Path, text: Any, tokenizer: Any) -> tuple[int, ...]:
    path = checkpoint / GENERATION_CONFIG
    named = read_json(path).get("eos_token_id") if path.is_file() else None
    eos = next((ids for ids in (named, text.eos_token_id, tokenizer.eos_token_id) if ids is not None), None)
    if eos is None:
        raise BuildError(f"checkpoint {checkpoint} names no eos_token_id")
    return tuple(eos) if isinstance(eos, list) else (eos,)
