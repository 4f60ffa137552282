"""vLLM on the same checkpoint, through its OpenAI endpoint.

    python -m perf.peers.vllm_serve --checkpoint checkpoints/bench --folder build/bench-hf --port 9001
    python -m perf.load burst.jsonl --url http://localhost:9001 --model vlm

Writes the checkpoint as a Hugging Face folder (float32) unless it is there, then becomes `vllm serve`. Needs vLLM's
CPU build, and the extra `train` for the first step.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from build_engines.facts import CHAT_TEMPLATE, GENERATION_CONFIG, IMAGE_TOKEN
from perf.peers.options import peer_parser
from perf.workloads.sizes import MOST_PICTURES

_CONTEXT = 4608  # tokens; as deployments/bench-cpu.yaml


def export(checkpoint: Path, folder: Path) -> None:
    """Write weights, tokenizer and processor as transformers and vLLM read them."""
    from transformers import LlavaProcessor, SiglipImageProcessor  # noqa: PLC0415  (slow to import)

    from build_engines.demo_checkpoint.model import load_tokenizer  # noqa: PLC0415
    from perf.peers.model import load  # noqa: PLC0415

    model = load(checkpoint)
    vision = model.config.vision_config
    size = {"height": vision.image_size, "width": vision.image_size}
    pixels = SiglipImageProcessor(size=size, crop_size=size, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor = LlavaProcessor(
        image_processor=pixels,
        tokenizer=load_tokenizer(),
        patch_size=vision.patch_size,
        vision_feature_select_strategy=model.config.vision_feature_select_strategy,
        chat_template=(checkpoint / CHAT_TEMPLATE).read_text(),
        image_token=IMAGE_TOKEN,
        num_additional_image_tokens=0,
    )
    processor.save_pretrained(str(folder))
    model.save_pretrained(str(folder))
    _name_as_vllm_does(folder / "model.safetensors")
    shutil.copyfile(checkpoint / GENERATION_CONFIG, folder / GENERATION_CONFIG)


def _name_as_vllm_does(weights: Path) -> None:
    """transformers writes the tower's names without `vision_model.` since 5.20; vLLM 0.32 looks for it."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    old, new = "vision_tower.", "vision_tower.vision_model."
    named = {
        name.replace(old, new, 1) if name.startswith(old) and not name.startswith(new) else name: tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(named, weights, metadata={"format": "pt"})


def command(folder: Path, port: int) -> list[str]:
    """The server's command line."""
    return [
        "vllm",
        "serve",
        str(folder),
        *("--port", str(port)),
        *("--served-model-name", "vlm"),
        *("--chat-template", str(folder / CHAT_TEMPLATE)),
        *("--max-model-len", str(_CONTEXT)),
        *("--dtype", "float32"),  # else it makes bfloat16 of it, which few CPUs compute with
        *("--gpu-memory-utilization", "0.3"),  # of the machine's memory, weights included; so named on CPUs too
        *("--limit-mm-per-prompt", json.dumps({"image": MOST_PICTURES})),
    ]


def main() -> None:
    """Export when needed, then be vLLM."""
    parser = peer_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the Hugging Face folder is or goes")
    options = parser.parse_args()
    if not (options.folder / GENERATION_CONFIG).exists():  # written last
        export(options.checkpoint, options.folder)
    line = command(options.folder, options.port)
    if shutil.which(line[0]) is None:
        raise SystemExit("vllm is not on PATH: install its CPU build (https://docs.vllm.ai)")
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
