"""The LLM for OpenVINO GenAI, from a GGUF file and without PyTorch.

GenAI reads the GGUF and writes a graph that takes token ids. Its continuous batching takes ready embeddings when the
folder holds the parts of a VLM instead: token ids to embeddings, and embeddings to logits. So the graph is cut at its
embedding lookup.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from openvino import opset13 as ops

from build_engines.errors import BuildError
from build_engines.gguf_minimums import restore_minimums
from build_engines.lora import Lora, add_lora, read_lora

_TOKENIZER_FILES = [f"openvino_{part}.{suffix}" for part in ("tokenizer", "detokenizer") for suffix in ("xml", "bin")]


def build_llm(gguf: Path, output: Path, adapter: str = "") -> None:
    """Write everything that `ContinuousBatchingPipeline(output, ...)` needs to take embeddings [1, tokens, hidden].

    `adapter` is a folder with a LoRA adapter: embeddings then have one channel more (see `lora`).

    Raises:
        BuildError: GenAI can't read the file, its graph is not the one known here, or the adapter is not for it.
    """
    lora = read_lora(Path(adapter)) if adapter else None
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        model = _read_gguf(gguf, Path(scratch))
        restore_minimums(model, gguf)
        write_llm(model, Path(scratch), output, lora)


def write_llm(model: Any, tokenizers: Path, output: Path, lora: Lora | None = None) -> None:
    """Write a graph that takes token ids to the folder `output` as one that takes embeddings.

    `tokenizers` is a folder with OpenVINO's tokenizer and detokenizer (BuildError: the graph is not as known here).
    """
    hidden_size = _split_embedding(model, output, lora)
    for name in _TOKENIZER_FILES:  # unused for embeddings, but GenAI refuses a folder without them
        shutil.copyfile(tokenizers / name, output / name)
    _save(_no_vision(), output / "openvino_vision_embeddings_model.xml")
    # any VLM type whose positions simply count up makes GenAI take embeddings
    (output / "config.json").write_text(json.dumps({"model_type": "llava", "hidden_size": hidden_size}))


def _read_gguf(gguf: Path, scratch: Path) -> Any:
    link = scratch / "model.gguf"  # GenAI writes beside the file that it reads: not into site-packages
    link.symlink_to(gguf.resolve())
    try:
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        raise BuildError(f"OpenVINO GenAI can't read {gguf.name}: {str(error).strip().splitlines()[-1]}") from error
    return ov.Core().read_model(scratch / "openvino_model.xml")


def _split_embedding(model: Any, output: Path, lora: Lora | None) -> int:
    """Save the two halves of `model`, cut at the embedding lookup, one with the adapter; returns the hidden size."""
    ids = model.input("input_ids").get_node()
    consumers = [target.get_node() for target in ids.output(0).get_target_inputs()]
    shapes = [node for node in consumers if node.get_type_name() == "ShapeOf"]
    casts = [node for node in consumers if node.get_type_name() == "Convert"]
    if len(casts) != 1 or len(shapes) + 1 != len(consumers):
        raise BuildError("the LLM's graph has an unknown form at `input_ids`: install the pinned openvino-genai")
    (lookup,) = (target.get_node() for target in casts[0].output(0).get_target_inputs())
    gated = lora is not None
    _save(_text_embeddings(lookup, gated), output / "openvino_text_embeddings_model.xml")

    hidden_size = int(lookup.output(0).get_partial_shape()[2].get_length())
    embeds = _parameter("inputs_embeds", [-1, -1, hidden_size + gated], ov.Type.f32)
    zero = ops.constant(0, dtype=np.int64)
    # the rest of the graph asks the ids for [batch, tokens]
    batch_and_tokens = ops.gather(ops.shape_of(embeds, "i64"), ops.constant([0, 1], dtype=np.int64), zero)
    for shape in shapes:
        _redirect(shape, batch_and_tokens)
    if lora is None:
        _redirect(lookup, embeds)
    else:
        lengths = ops.constant([1, hidden_size], dtype=np.int64)
        gate, rows = ops.variadic_split(embeds, ops.constant(2, dtype=np.int64), lengths).outputs()
        for target in list(lookup.output(0).get_target_inputs()):
            target.replace_source_output(rows)
        add_lora(model, lora, gate)
    model.add_parameters([embeds])
    model.remove_parameter(ids)
    model.validate_nodes_and_infer_types()
    _save(model, output / "openvino_model.xml")
    return hidden_size


def _text_embeddings(lookup: Any, gated: bool) -> Any:
    """Token ids int64 [batch, tokens] to float32 [batch, tokens, hidden], over the table of `lookup`; a gate is 0."""
    ids = _parameter("input_ids", [-1, -1], ov.Type.i64)
    table, _, axis = lookup.input_values()
    rows = ops.gather(table, ops.convert(ids, "i32"), axis)
    if gated:
        rows = ops.pad(rows, [0, 0, 1], [0, 0, 0], "constant", np.float32(0))
    rows.output(0).set_names({"inputs_embeds"})
    return ov.Model([rows], [ids], "text_embeddings")


def _no_vision() -> Any:
    """GenAI wants a vision model in the folder; the real one runs in its own process, so this one does nothing."""
    pixels = _parameter("pixel_values", [-1, 3, -1, -1], ov.Type.f32)
    result = ops.result(pixels)
    result.output(0).set_names({"last_hidden_state"})
    return ov.Model([result], [pixels], "no_vision")


def _parameter(name: str, shape: list[int], dtype: Any) -> Any:
    parameter = ops.parameter(shape, dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _redirect(old: Any, new: Any) -> None:
    for target in list(old.output(0).get_target_inputs()):
        target.replace_source_output(new.output(0))


def _save(model: Any, path: Path) -> None:
    ov.save_model(model, path, compress_to_fp16=False)  # weights stay compressed as they are
