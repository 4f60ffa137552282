"""Write a checkpoint folder: configuration, processor, chat template, safetensors, ONNX and the LLM's adapter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from transformers import GenerationConfig

from build_engines.demo_checkpoint import model as demo
from build_engines.demo_checkpoint.adapter import Adapter

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] in ('image', 'image_url') -%}
{{- '<image>\\n' -}}
{%- else -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

IMAGE_SIDE = {"height": demo.IMAGE_PIXELS, "width": demo.IMAGE_PIXELS}
PREPROCESSOR = {
    "image_processor_type": "SiglipImageProcessor",
    "processor_class": "LlavaProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": IMAGE_SIDE,
    "crop_size": IMAGE_SIDE,
    "do_center_crop": False,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def export_checkpoint(path: demo.VisionPath, adapter: Adapter, output: Path) -> None:
    """Write every machine-read file of the checkpoint; weights are rounded to float16."""
    output.mkdir(parents=True, exist_ok=True)
    demo.llava_config().save_pretrained(str(output))
    GenerationConfig(bos_token_id=1, eos_token_id=demo.EOS_TOKEN_ID, pad_token_id=2, do_sample=False).save_pretrained(
        str(output)
    )
    (output / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")
    (output / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    state = {f"model.{name}": value.half().contiguous() for name, value in path.state_dict().items()}
    save_file(state, str(output / demo.VISION_FILE), metadata={"format": "pt"})
    adapter.save(output)
    # The graph is traced from the rounded weights, so both files hold the same numbers.
    rounded = demo.load_vision(output)
    write_onnx(rounded, output / "vision.onnx")


def write_onnx(path: demo.VisionPath, target: Path) -> None:
    """Write the graph tiles UINT8 [N, 128, 128, 3] -> visual_tokens float32 [N, 64, 576], weights in float16."""
    tiles = torch.zeros(2, demo.IMAGE_PIXELS, demo.IMAGE_PIXELS, 3, dtype=torch.uint8)
    torch.onnx.export(
        demo.TilesToTokens(path).eval(),
        (tiles,),
        str(target),
        input_names=["tiles"],
        output_names=["visual_tokens"],
        dynamic_shapes={"tiles": {0: torch.export.Dim("N", min=1)}},
        external_data=False,
    )
    graph_model = onnx.load(str(target))
    store_weights_in_half(graph_model.graph)
    del graph_model.metadata_props[:]
    for node in graph_model.graph.node:
        # Tracing notes hold file paths of the exporting machine.
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.checker.check_model(graph_model)
    onnx.save(graph_model, str(target))


def store_weights_in_half(graph: onnx.GraphProto) -> None:
    """Keep float32 arithmetic, but store each large float32 weight as float16 followed by a Cast."""
    kept, casts = [], []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < 64:
            kept.append(tensor)
            continue
        stored = f"{tensor.name}_half"
        kept.append(numpy_helper.from_array(values.astype(np.float16), stored))
        casts.append(helper.make_node("Cast", [stored], [tensor.name], to=TensorProto.FLOAT))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    nodes = casts + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
