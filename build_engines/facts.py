"""Facts of a checkpoint, from the files of a Hugging Face LLaVA folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from python_backends.checkpoint import Checkpoint

IMAGE_TOKEN = "<image>"  # LLaVA's; the folder holds its id only
MODEL_TYPE = "llava"  # one squashed tile a picture, its visual tokens in the LLM's sequence
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
VISION_MODEL = "vision.onnx"
SERVED_FILES = (CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE, VISION_MODEL)  # what a build reads


def read_facts(checkpoint: Path) -> Checkpoint:
    """What stages must know of the checkpoint in this folder.

    Raises:
        BuildError: a file is missing or is not that of a LLaVA checkpoint.
    """
    missing = [name for name in SERVED_FILES if not (checkpoint / name).is_file()]
    if missing:
        raise BuildError(f"checkpoint {checkpoint} lacks {', '.join(missing)}: set 'checkpoint' to a complete folder")
    config, generation = (_read_json(checkpoint / name) for name in (CONFIG, GENERATION_CONFIG))
    if config.get("model_type") != MODEL_TYPE:
        raise BuildError(
            f"{checkpoint / CONFIG}: model_type is {config.get('model_type')!r}, and only {MODEL_TYPE!r} can be "
            "served: others cut a picture into tiles of their own"
        )
    try:
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        text = config["text_config"]
        head_size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        return Checkpoint(
            name=checkpoint.name,
            image_size=config["vision_config"]["image_size"],
            tokens_per_tile=config["image_seq_length"],
            hidden_size=text["hidden_size"],
            vocab_size=text["vocab_size"],
            kv_bytes_per_token=2 * text["num_hidden_layers"] * text["num_key_value_heads"] * head_size * 2,
            context_tokens=text["max_position_embeddings"],
            image_token=IMAGE_TOKEN,
            eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
            fusion="decoder_only",
        )
    except KeyError as error:
        raise BuildError(f"{checkpoint / CONFIG} has no key {error}: it is not a LLaVA checkpoint") from error
    except ValueError as error:
        raise BuildError(f"{checkpoint / CONFIG}: {' '.join(str(error).split())}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise BuildError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BuildError(f"{path} is not a JSON object")
    return value
