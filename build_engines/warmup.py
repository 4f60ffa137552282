"""Triton's model warm-up: one request through a stage before it is called ready.

Each stage's worker warms its own kernels up as it loads. This warms what lies around it up: the stub, its shared memory
and, on a GPU, the memory pools that the first request would wait for.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines.errors import BuildError
from python_backends.checkpoint import Checkpoint


def add_warmup(model: Path, checkpoint: Checkpoint) -> None:
    """Add one request of one picture to the config.pbtxt of a stage's folder (BuildError: an input is not known here).

    Its tensors lie in the folder `warmup`, as Triton wants those that are not all zeros.
    """
    path = model / "config.pbtxt"
    text = path.read_text()
    config = text_format.Parse(text, ModelConfig())
    request = config.model_warmup.add(name="one picture", batch_size=1, count=1)
    (model / "warmup").mkdir()
    for tensor in config.input:
        dims, data = _example(tensor.name, checkpoint)
        (model / "warmup" / tensor.name).write_bytes(data)
        value = request.inputs[tensor.name]
        value.data_type, value.input_data_file = tensor.data_type, tensor.name
        value.dims[:] = dims
    header = text[: text.index("\n") + 1]
    path.write_text(header + text_format.MessageToString(config))


def _example(name: str, checkpoint: Checkpoint) -> tuple[list[int], bytes]:
    """Shape without the batch, and the bytes, of one grey picture in the tensor of this name."""
    side = checkpoint.image_size
    examples: dict[str, Any] = {
        "image": lambda: ([1], _bytes_element(_picture(side))),
        "tiles": lambda: ([1, side, side, 3], np.full((side, side, 3), 128, np.uint8).tobytes()),
        "in_decode": lambda: ([1], np.zeros(1, np.int32).tobytes()),
        "picture_size": lambda: ([2], np.array([side, side], np.int32).tobytes()),
    }
    if name not in examples:
        raise BuildError(f"no warm-up is known for an input named '{name}'")
    shape, data = examples[name]()
    return shape, data


def _picture(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "gray").save(file, "JPEG")
    return file.getvalue()


def _bytes_element(data: bytes) -> bytes:
    """As Triton writes an element of a BYTES tensor: its length before it."""
    return struct.pack("<I", len(data)) + data
