"""Writes mrope.json: M-RoPE positions as transformers' Qwen2.5-VL has them, for prompts with pictures.

python -m tests.golden.make_mrope_goldens     # needs the extra [train]
"""

from __future__ import annotations

import json
import random
from pathlib import Path

FILE = Path(__file__).with_name("mrope.json")
IMAGE, TEXT = 7, 5
CASES = 12


def main() -> None:
    """Each case: prompt, grids of its pictures in tokens, and what transformers makes of it."""
    import torch  # noqa: PLC0415
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel  # noqa: PLC0415

    text = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 16, "vocab_size": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE)
    model = Qwen2_5_VLModel(config)
    merge = config.vision_config.spatial_merge_size
    draw = random.Random(0)
    cases = []
    for number in range(CASES):
        grids = [(draw.randint(1, 6), draw.randint(1, 6)) for _ in range(number % 4)]
        gaps = [draw.randint(0 if number % 2 else 1, 5) for _ in grids] + [draw.randint(1, 5)]
        ids = [TEXT] * gaps[0]
        for (height, width), gap in zip(grids, gaps[1:], strict=True):
            ids += [IMAGE] * (height * width) + [TEXT] * gap
        tokens = torch.tensor([ids])
        thw = torch.tensor([[1, height * merge, width * merge] for height, width in grids]) if grids else None
        positions, delta = model.get_rope_index(tokens, (tokens == IMAGE).int(), image_grid_thw=thw)
        cases.append({"ids": ids, "grids": grids, "positions": positions[:, 0].tolist(), "delta": int(delta.item())})
    FILE.write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
