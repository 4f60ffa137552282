"""The LLM of a LLaVA-family checkpoint for OpenVINO GenAI, through optimum-intel, with weights as asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig, OVWeightQuantizationConfig
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from build_engines.errors import BuildError
from build_engines.llm_openvino import write_llm

_TASK = "text-generation-with-past"
_BITS = {"int8": 8, "int4": 4}


def build_llm(checkpoint: Path, output: Path, weights: str) -> None:
    """Write everything that `ContinuousBatchingPipeline(output, ...)` needs to take embeddings [1, tokens, hidden].

    `weights` is f32, int8 or int4 (asymmetric, in groups, as optimum-intel has them by default).

    Raises:
        BuildError: optimum-intel can't export it.
    """
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        plain, exported = Path(scratch) / "plain", Path(scratch) / "openvino"
        _save_language_model(checkpoint, plain)
        try:
            main_export(
                str(plain), exported, task=_TASK, ov_config=_config(weights), library_name="transformers",
                convert_tokenizer=True,
            )  # fmt: skip
        except (ValueError, RuntimeError, KeyError) as error:
            raise BuildError(f"optimum-intel can't export the LLM: {' '.join(str(error).split())[:300]}") from error
        if not (exported / "openvino_detokenizer.xml").is_file():
            raise BuildError(f"checkpoint {checkpoint}: OpenVINO can't convert its tokenizer")
        write_llm(ov.Core().read_model(exported / "openvino_model.xml"), exported, output)


def _config(weights: str) -> OVConfig:
    if weights == "f32":
        return OVConfig(dtype="fp32")
    return OVConfig(quantization_config=OVWeightQuantizationConfig(bits=_BITS[weights]))


def _save_language_model(checkpoint: Path, folder: Path) -> None:
    """The LLM by itself, as a checkpoint of its own architecture, which optimum-intel knows."""
    whole = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    alone: Any = AutoModelForCausalLM.from_config(whole.config.get_text_config(), dtype=torch.float32)
    alone.model, alone.lm_head = whole.model.language_model, whole.lm_head
    alone.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
