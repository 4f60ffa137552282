"""Facts of a Hugging Face checkpoint: its configuration with transformers' defaults filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from build_engines.errors import BuildError
from build_engines.facts import CONFIG, GENERATION_CONFIG, kv_bytes_per_token, read_json
from build_engines.huggingface.picture import PictureRule, read_picture_rule
from python_backends.checkpoint import Checkpoint, Tiling

ANY_RESOLUTION = ("llava_next", "llava_onevision")
FAMILIES = ("llava", *ANY_RESOLUTION)
_NAME_OF_MAX_TILES = "anyres_max_"


def write_facts(checkpoint: Path, output: Path) -> None:
    """Write the facts of a LLaVA-family folder as `Checkpoint` JSON (BuildError)."""
    output.write_text(read(checkpoint).model_dump_json())


def read(checkpoint: Path) -> Checkpoint:
    """The facts of a LLaVA-family folder (BuildError)."""
    config = AutoConfig.from_pretrained(checkpoint)
    if config.model_type not in FAMILIES:
        raise BuildError(
            f"{checkpoint / CONFIG}: model_type is {config.model_type!r}; what can be served is {', '.join(FAMILIES)}"
        )
    rule, text, vision = read_picture_rule(checkpoint), config.get_text_config(), config.vision_config
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    features = vision.image_size // vision.patch_size
    with_class = vision.model_type.startswith("clip")  # CLIP's class token comes first; SigLIP has none
    tokens = features**2 + with_class - (config.vision_feature_select_strategy == "default")
    tiling = _tiling(checkpoint / CONFIG, config, rule) if config.model_type in ANY_RESOLUTION else None
    if tiling is not None and tokens != features**2:
        raise BuildError(f"{checkpoint / CONFIG}: {tokens} features of a tile are no square of {features} a side")
    return Checkpoint(
        name=checkpoint.name,
        image_size=vision.image_size,
        tokens_per_tile=tokens,
        fit="pad" if config.model_type == "llava_onevision" else rule.fit,
        pad_colour=rule.pad_colour,
        tiling=tiling,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        kv_bytes_per_token=kv_bytes_per_token(text.to_dict()),
        context_tokens=text.max_position_embeddings,
        image_token=str(tokenizer.convert_ids_to_tokens(config.image_token_id)),
        eos_token_ids=_eos(checkpoint, text, tokenizer),
        bos_token=tokenizer.bos_token or "",
        eos_token=tokenizer.eos_token or "",
    )


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
