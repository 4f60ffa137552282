"""Facts of a checkpoint: of this project's own, with an exported tower, or of a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.adapter_files import ADAPTER_FILES
from build_engines.errors import BuildError
from build_engines.isolated import run_isolated
from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.pools import Device

IMAGE_TOKEN = "<image>"  # LLaVA's; the folder holds its id only
MODEL_TYPE = "llava"  # one squashed tile a picture, its visual tokens in the LLM's sequence
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
VISION_MODEL = "vision.onnx"
SERVED_FILES = (CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE, VISION_MODEL)  # what a build needs of its own kind
_SUFFIXES = (".json", ".jinja", ".model", ".safetensors")  # and of a Hugging Face folder
_IN_EMBEDDINGS = ("llava", "llava_next", "llava_onevision")
FAMILIES = {"cpu": _IN_EMBEDDINGS, "gpu": (*_IN_EMBEDDINGS, "qwen2_5_vl")}  # what can be served, by profile
# OpenVINO GenAI numbers the positions of a prompt of embeddings by itself, along one axis
_ONLY_ON_GPUS = "its LLM wants positions of three axes (M-RoPE), which OpenVINO GenAI takes none of beside embeddings"
_TOWER_EXPORTERS = ("torch", "transformers", "onnx", "onnxruntime", "onnxscript")
_EXPORTERS = {"cpu": (*_TOWER_EXPORTERS, "optimum.intel"), "gpu": _TOWER_EXPORTERS}  # by profile


def is_huggingface(checkpoint: Path) -> bool:
    """Whether it is a folder of weights, still to be exported."""
    return not (checkpoint / VISION_MODEL).is_file() and any(checkpoint.glob("*.safetensors"))


def has_adapter(checkpoint: Path) -> bool:
    """Whether the LLM of a checkpoint of this project's own has a LoRA adapter."""
    return any((checkpoint / name).is_file() for name in ADAPTER_FILES)


def source_files(checkpoint: Path) -> list[Path]:
    """Every file of the folder that a build reads, there or not."""
    if not is_huggingface(checkpoint):
        return [checkpoint / name for name in (*SERVED_FILES, *ADAPTER_FILES)]
    return sorted(path for path in checkpoint.iterdir() if path.suffix in _SUFFIXES and path.is_file())


def read_facts(checkpoint: Path, profile: Device = "cpu") -> Checkpoint:
    """What stages must know of the checkpoint in this folder.

    Raises:
        BuildError: a file is missing or is not that of a LLaVA checkpoint; or the extra [export] is.
    """
    if is_huggingface(checkpoint):
        return _huggingface_facts(checkpoint, profile)
    missing = [name for name in SERVED_FILES if not (checkpoint / name).is_file()]
    if missing:
        raise BuildError(f"checkpoint {checkpoint} lacks {', '.join(missing)}: set 'checkpoint' to a complete folder")
    config, generation = (read_json(checkpoint / name) for name in (CONFIG, GENERATION_CONFIG))
    if config.get("model_type") != MODEL_TYPE:
        raise BuildError(
            f"{checkpoint / CONFIG}: model_type is {config.get('model_type')!r}, and only {MODEL_TYPE!r} can be "
            "served: others cut a picture into tiles of their own"
        )
    try:
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        text = config["text_config"]
        return Checkpoint(
            name=checkpoint.name,
            image_size=config["vision_config"]["image_size"],
            tokens_per_tile=config["image_seq_length"],
            hidden_size=text["hidden_size"],
            vocab_size=text["vocab_size"],
            kv_bytes_per_token=kv_bytes_per_token(text),
            context_tokens=text["max_position_embeddings"],
            image_token=IMAGE_TOKEN,
            eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
            fusion="decoder_only",
        )
    except KeyError as error:
        raise BuildError(f"{checkpoint / CONFIG} has no key {error}: it is not a LLaVA checkpoint") from error
    except ValueError as error:
        raise BuildError(f"{checkpoint / CONFIG}: {' '.join(str(error).split())}") from error


def _huggingface_facts(checkpoint: Path, profile: Device) -> Checkpoint:
    """transformers knows the defaults of what a configuration leaves out."""
    _check_family(checkpoint, profile)
    missing = [name for name in _EXPORTERS[profile] if not _is_installed(name)]
    if missing:
        raise BuildError(
            f"checkpoint {checkpoint} is a Hugging Face folder, and to export it {', '.join(missing)} are missing: "
            "install this project with the extra [export]"
        )
    with tempfile.TemporaryDirectory() as scratch:
        facts = Path(scratch) / CHECKPOINT_FILE
        run_isolated("build_engines.huggingface.facts:write_facts", checkpoint, facts)
        return Checkpoint.model_validate_json(facts.read_text())


def _check_family(checkpoint: Path, profile: Device) -> None:
    family = read_json(checkpoint / CONFIG).get("model_type") if (checkpoint / CONFIG).is_file() else None
    if family in FAMILIES[profile]:
        return
    if family in FAMILIES["gpu"]:
        raise BuildError(f"{checkpoint / CONFIG}: profile {profile} can't serve model_type {family!r}: {_ONLY_ON_GPUS}")
    known = ", ".join(FAMILIES[profile])
    raise BuildError(f"{checkpoint / CONFIG}: model_type is {family!r}; what profile {profile} can serve is {known}")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package
        return False


def kv_bytes_per_token(text: Mapping[str, Any]) -> int:
    """Of an LLM's configuration (KeyError); see `Checkpoint`."""
    head_size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    return int(2 * text["num_hidden_layers"] * kv_heads * head_size * 2)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file (BuildError)."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise BuildError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BuildError(f"{path} is not a JSON object")
    return value
