"""Makes media_goldens.npz: what the reference image processor makes of the scenes.

Run by hand, with transformers and torch (the extra `train`): `python -m tests.golden.make_media_goldens`. The values
are means of the pixel tensor over 16 x 16 blocks, float32 [16, 16, 3] for each scene and tile size.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from tests.media.scenes import encoded_scenes

FILE = Path(__file__).parent / "media_goldens.npz"
SIZES = (128, 224)
BLOCKS = 16


def block_means(pixels: np.ndarray) -> np.ndarray:
    """[S, S, 3] to [16, 16, 3]."""
    side = pixels.shape[0] // BLOCKS
    return pixels.reshape(BLOCKS, side, BLOCKS, side, 3).mean(axis=(1, 3), dtype=np.float64).astype(np.float32)


def main() -> None:
    from transformers import SiglipImageProcessorPil  # noqa: PLC0415

    goldens = {}
    for size in SIZES:
        processor = SiglipImageProcessorPil(size={"height": size, "width": size})
        for name, file in encoded_scenes():
            with Image.open(io.BytesIO(file)) as image:
                pixels = processor(images=image, return_tensors="np")["pixel_values"][0]
            goldens[f"{name}_{size}"] = block_means(pixels.transpose(1, 2, 0))
    np.savez_compressed(FILE, **goldens)


if __name__ == "__main__":
    main()
