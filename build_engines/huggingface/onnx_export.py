"""PyTorch modules to ONNX files, and the proof that both compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from build_engines.errors import BuildError

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
OUTPUT = "visual_tokens"
TOLERANCE = 1e-3  # of the largest absolute feature
_OPSET = 20  # the first with Gelu; TensorRT 10 and 11, TensorRT-RTX and OpenVINO read it
_EMBEDDED_BYTES = 1 << 30  # larger weights go into a file beside the graph, which holds 2 GB at most


def export(module: nn.Module, inputs: Mapping[str, torch.Tensor], path: Path, dynamic: Mapping[str, Any]) -> None:
    """Write a module as ONNX; `dynamic` names the axes of each input that vary, as {input: {axis: name}}.

    A name of the form `4*units` stands for multiples of 4.
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    dims = {name: _dim(name) for axes in dynamic.values() for name in axes.values()}
    shapes = {name: {axis: dims[dim] for axis, dim in dynamic.get(name, {}).items()} for name in inputs}
    path.with_suffix(".onnx.data").unlink(missing_ok=True)
    with torch.no_grad():
        torch.onnx.export(
            module,
            args=(),
            kwargs=dict(inputs),
            f=str(path),
            input_names=list(inputs),
            output_names=[OUTPUT],
            dynamic_shapes=shapes,
            opset_version=_OPSET,
            external_data=size > _EMBEDDED_BYTES,
            verbose=False,
        )
    _drop_traces(path)


def verify(module: nn.Module, path: Path, cases: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Hold ONNX Runtime against PyTorch, in float32 (BuildError)."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for inputs in cases:
        with torch.no_grad():
            expected = module(**inputs).numpy()
        (given,) = session.run([OUTPUT], {name: value.numpy() for name, value in inputs.items()})
        error = float(np.abs(given - expected).max() / np.abs(expected).max())
        if given.shape != expected.shape or not error <= TOLERANCE:
            shapes = {name: list(value.shape) for name, value in inputs.items()}
            raise BuildError(
                f"{path.name} is not what PyTorch computes: off by {error:.2g} of the largest value for {shapes}"
            )


def _dim(name: str) -> Any:
    factor, _, base = name.rpartition("*")
    dim = torch.export.Dim(base, min=1)
    return int(factor) * dim if factor else dim


def _drop_traces(path: Path) -> None:
    """The exporter's notes hold file paths of this machine, and would make equal builds differ."""
    model = onnx.load(str(path), load_external_data=False)
    del model.metadata_props[:]
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, str(path))
