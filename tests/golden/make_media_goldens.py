"""Makes media_goldens.npz: what the reference image processor makes of pictures of every kind.

Run by hand, with transformers and torch (the extra `train`) and ImageMagick 6:
`python -m tests.golden.make_media_goldens`.
ImageMagick alone reads the files, so that no part of the product's path has a say: it turns them upright, lays them on
white, and brings them to sRGB. The processor squashes what comes out, to the sizes of SigLIP and CLIP towers.

A golden is the processor's tensor at 1,024 places that are drawn once for each size, uint8 [1024, 3]: the levels that
it resized to, before it normalised them.
"""

from __future__ import annotations

import io
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from tests.media.make_corpus import FOLDER
from tests.media.scenes import SCENES

FILE = Path(__file__).parent / "media_goldens.npz"
SIZES = (128, 224, 384)
PLACES = 1024
# ImageMagick 6 looks for EXIF data in JPEG and TIFF only.
TURN_BY_HAND = {"png_exif6.png": "90", "webp_exif6.webp": "90", "photo_upside_down": "180"}


PICTURES = (*sorted(path.name for path in FOLDER.iterdir()), *SCENES)
# It drops the transparency of AVIF and HEIC, and its old libheif is a level off in AVIF's green: so it reads the same
# picture in another format.
READ_INSTEAD = {
    "avif_alpha.avif": "png_rgba.png",
    "heic_alpha.heic": "png_rgba.png",
    "avif_animated.avif": "png_rgb.png",
    "photo_avif": "photo_png",
    "tiff_grey12.tif": "png_grey16.png",  # whose last bits it cuts off
}


def picture(name: str) -> bytes:
    """The file: of the corpus, or a scene."""
    return SCENES[name].file() if name in SCENES else (FOLDER / name).read_bytes()


def sample(tile: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Uint8 [S, S, 3] to [1024, 3], always at the same places."""
    side = tile.shape[0]
    return tile.reshape(-1, 3)[np.sort(np.random.default_rng(side).choice(side * side, PLACES, replace=False))]


def upright(name: str, file: bytes, srgb: Path) -> Image.Image:
    """RGB, as ImageMagick sees it."""
    steps = ["-auto-orient", "-rotate", TURN_BY_HAND.get(name, "0")]
    steps += ["-background", "white", "-alpha", "remove", "-alpha", "off"]
    steps += ["-profile", str(srgb)] if "profile" in name else ["-colorspace", "sRGB"]
    with tempfile.NamedTemporaryFile(suffix=Path(name).suffix) as source:
        Path(source.name).write_bytes(file)
        command = ["convert", f"{source.name}[0]", *steps, "-strip", "-type", "TrueColor", "-depth", "8", "ppm:-"]
        return Image.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout))


def main() -> None:
    """Write the file."""
    from pillow_heif import register_heif_opener  # noqa: PLC0415
    from transformers import SiglipImageProcessorPil  # noqa: PLC0415

    register_heif_opener()  # writes one of the scenes
    processors = {size: SiglipImageProcessorPil(size={"height": size, "width": size}) for size in SIZES}
    goldens = {}
    with tempfile.NamedTemporaryFile(suffix=".icc") as profile:
        Path(profile.name).write_bytes(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
        for name in PICTURES:
            image = upright(name, picture(READ_INSTEAD.get(name, name)), Path(profile.name))
            for size, processor in processors.items():
                (pixels,) = processor(images=image, return_tensors="np")["pixel_values"]
                levels = (pixels.transpose(1, 2, 0) + 1) * 127.5
                assert np.abs(levels - levels.round()).max() < 0.01, "the processor resizes whole levels"
                goldens[f"{name}_{size}"] = sample(levels.round().astype(np.uint8))
    np.savez_compressed(FILE, **goldens)


if __name__ == "__main__":
    main()
