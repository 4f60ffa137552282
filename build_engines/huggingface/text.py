"""The LLM of a LLaVA-family checkpoint for OpenVINO GenAI, through optimum-intel, with weights as asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nncf
import openvino as ov
import torch
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from build_engines.errors import BuildError
from build_engines.llm_openvino import write_llm

_TASK = "text-generation-with-past"
# `main_export` leaves the weights as they are when it is told how to store them: only its command line compresses
_STORED: dict[str, dict[str, Any]] = {
    "f32": {},
    "int8": {"mode": nncf.CompressWeightsMode.INT8_ASYM},
    "int4": {"mode": nncf.CompressWeightsMode.INT4_ASYM, "group_size": 128, "ratio": 1.0},  # embeddings, head: int8
}


def build_llm(checkpoint: Path, output: Path, weights: str) -> None:
    """Write everything that `ContinuousBatchingPipeline(output, ...)` needs to take embeddings [1, tokens, hidden].

    `weights` is f32, int8 (asymmetric, a scale a row) or int4 (asymmetric, in groups of 128).

    Raises:
        BuildError: optimum-intel can't export it.
    """
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        plain, exported = Path(scratch) / "plain", Path(scratch) / "openvino"
        _save_language_model(checkpoint, plain)
        try:
            main_export(
                str(plain), exported, task=_TASK, ov_config=OVConfig(dtype="fp32"), library_name="transformers",
                convert_tokenizer=True,
            )  # fmt: skip
        except (ValueError, RuntimeError, KeyError) as error:
            raise BuildError(f"optimum-intel can't export the LLM: {' '.join(str(error).split())[:300]}") from error
        if not (exported / "openvino_detokenizer.xml").is_file():
            raise BuildError(f"checkpoint {checkpoint}: OpenVINO can't convert its tokenizer")
        model = ov.Core().read_model(exported / "openvino_model.xml")
        if _STORED[weights]:
            model = nncf.compress_weights(model, **_STORED[weights])
        write_llm(model, exported, output)


def _save_language_model(checkpoint: Path, folder: Path) -> None:
    """The LLM by itself, as a checkpoint of its own architecture, which optimum-intel knows."""
    whole = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    alone: Any = AutoModelForCausalLM.from_config(whole.config.get_text_config(), dtype=torch.float32)
    alone.model, alone.lm_head = whole.model.language_model, whole.lm_head
    alone.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
