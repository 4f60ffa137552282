"""Makes packing_goldens.npz: what transformers makes of the features of tiles, for pictures of several sizes.

Run by hand, with transformers and torch (the extra `train` or `export`): `python -m tests.golden.make_packing_goldens`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

GOLDENS = Path(__file__).parent / "packing_goldens.npz"
SIZES = ((300, 300), (500, 375), (700, 200), (300, 640), (1600, 1500), (5, 3000))
TILE, SIDE, HIDDEN = 56, 4, 2
NEXT_CANVASES = ((112, 56), (56, 112), (112, 112), (56, 168), (168, 56))  # width, height
ONE_CANVASES = tuple((TILE * columns, TILE * rows) for rows in range(1, 5) for columns in range(1, 5))
MAX_TILES = 4
ROW_END = np.array([7.0, -7.0], np.float32)


def features(tiles: int) -> NDArray[np.float32]:
    """Of as many tiles, [tiles, SIDE * SIDE, HIDDEN], exact in float16."""
    random = np.random.default_rng(tiles)
    return random.standard_normal((tiles, SIDE * SIDE, HIDDEN)).astype(np.float16).astype(np.float32)


def main() -> None:
    """Write them."""
    import torch  # noqa: PLC0415
    from transformers.models.llava_next.modeling_llava_next import (  # noqa: PLC0415
        LlavaNextModel,
        image_size_to_num_patches,
    )
    from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionModel  # noqa: PLC0415

    goldens = {}
    for family, model, canvases, extra in (
        ("llava_next", LlavaNextModel, NEXT_CANVASES, {"vision_feature_select_strategy": "default"}),
        ("llava_onevision", LlavaOnevisionModel, ONE_CANVASES, {"vision_aspect_ratio": f"anyres_max_{MAX_TILES}"}),
    ):
        pinpoints = [[height, width] for width, height in canvases]
        vision = SimpleNamespace(image_size=TILE, patch_size=TILE // SIDE)
        itself = SimpleNamespace(config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=pinpoints))
        for width, height in SIZES:
            tiles = image_size_to_num_patches([height, width], pinpoints, TILE)
            (tokens,), _ = model.pack_image_features(
                itself, [torch.from_numpy(features(tiles))], torch.tensor([[height, width]]),
                image_newline=torch.from_numpy(ROW_END), **extra,
            )  # fmt: skip
            goldens[f"{family}_{width}x{height}"] = tokens.numpy()
    np.savez_compressed(GOLDENS, **goldens)


if __name__ == "__main__":
    main()
