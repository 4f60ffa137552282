"""Makes tests/media/corpus: small pictures of every accepted kind, and what an independent decoder sees in them.

Run by hand after a change: `python -m tests.media.make_corpus`. Needs ImageMagick 6 (`convert`), which writes the kinds
that Pillow can't, and which alone says what is expected: the mean colours of the four quadrants of the upright picture
over white. Each quadrant has its own colour, so a wrong turn shows as well as a wrong colour.
"""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image
from pillow_heif import register_heif_opener

FOLDER = Path(__file__).parent / "corpus"
EXPECTED = Path(__file__).parent / "expected.json"
WIDTH, HEIGHT = 48, 32
QUADRANTS = ((200, 40, 40), (40, 180, 60), (50, 60, 200), (220, 210, 60))


def base() -> Image.Image:
    """Four quadrants, each with a slight gradient."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.int16)
    for index, colour in enumerate(QUADRANTS):
        rows = slice(0, HEIGHT // 2) if index < 2 else slice(HEIGHT // 2, HEIGHT)
        columns = slice(0, WIDTH // 2) if index % 2 == 0 else slice(WIDTH // 2, WIDTH)
        pixels[rows, columns] = colour
    pixels += (np.arange(WIDTH) % (WIDTH // 2))[None, :, None].astype(np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGB")


def faded() -> Image.Image:
    """Half transparent on the left, wholly transparent in the upper right quadrant."""
    alpha = np.full((HEIGHT, WIDTH), 255, np.uint8)
    alpha[:, : WIDTH // 2] = 128
    alpha[: HEIGHT // 2, WIDTH // 2 :] = 0
    image = base().convert("RGBA")
    image.putalpha(Image.fromarray(alpha, "L"))
    return image


def deep() -> Image.Image:
    """16-bit grey whose quadrants would all be white when clipped to 8 bits."""
    grey = np.asarray(base().convert("L")).astype(np.uint16) * 257
    return Image.fromarray(np.maximum(grey, 300))


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags


def palette_with_hole() -> Image.Image:
    """One palette entry is transparent, and hides red."""
    image = base().quantize(16)
    image.info["transparency"] = image.getpixel((2, 2))
    return image


def _pillow(name: str, image: Image.Image, **options: object) -> None:
    image.save(FOLDER / name, **options)  # type: ignore[arg-type]


def _magick(name: str, *options: str, source: str = "png_rgb.png", prefix: str = "") -> None:
    subprocess.run(["convert", str(FOLDER / source), "-strip", *options, f"{prefix}{FOLDER / name}"], check=True)


def _ycck(name: str) -> None:
    """CMYK as Photoshop writes it: the first three inks as luma and chroma, which only the Adobe segment tells."""
    *inks, black = base().convert("CMYK").split()
    luma_chroma = Image.merge("RGB", inks).convert("YCbCr").split()
    inverted = [channel.point(lambda level: 255 - level) for channel in luma_chroma]  # as Pillow does when it writes
    file = io.BytesIO()
    Image.merge("CMYK", (*inverted, black)).save(file, "JPEG", quality=95)
    data = bytearray(file.getvalue())
    data[data.index(b"Adobe") + 11] = 2  # transform: YCCK
    (FOLDER / name).write_bytes(data)


def make_jpeg() -> None:
    _pillow("jpeg_baseline.jpg", base(), quality=95, subsampling=0)
    _pillow("jpeg_progressive.jpg", base(), quality=95, progressive=True)
    _pillow("jpeg_grey.jpg", base().convert("L"), quality=95)
    _pillow("jpeg_cmyk.jpg", base().convert("CMYK"), quality=95)
    _ycck("jpeg_ycck.jpg")
    _pillow("jpeg_restart.jpg", base(), quality=95, restart_marker_blocks=1)
    _pillow("jpeg_422.jpg", base(), quality=95, subsampling=1)
    _pillow("jpeg_rgb.jpg", base(), quality=95, keep_rgb=True)
    _pillow("jpeg_mpo.jpg", base(), format="MPO", save_all=True, append_images=[base().rotate(180)], quality=95)
    _magick("jpeg_411.jpg", "-sampling-factor", "4x1", "-quality", "95")
    _magick("jpeg_440.jpg", "-sampling-factor", "1x2", "-quality", "95")
    for orientation in range(1, 9):
        _pillow(f"jpeg_exif{orientation}.jpg", base(), quality=95, exif=exif(orientation))


def make_png() -> None:
    _pillow("png_grey.png", base().convert("L"))
    _pillow("png_rgba.png", faded())
    _pillow("png_la.png", faded().convert("LA"))
    _pillow("png_palette.png", base().quantize(16))
    _pillow("png_palette_trns.png", palette_with_hole())
    _pillow("png_1bit.png", base().convert("1"))
    _pillow("png_grey16.png", deep())
    _pillow("png_exif6.png", base(), exif=exif(6))
    _pillow("png_grey_trns.png", base().convert("L"), transparency=base().convert("L").getpixel((0, 0)))
    _pillow("png_rgb_trns.png", base(), transparency=QUADRANTS[0])
    _pillow("apng.png", base(), save_all=True, append_images=[base().rotate(180)], duration=100)
    _magick("png_interlaced.png", "-interlace", "PNG")
    _magick("png_rgb16.png", prefix="png48:")
    _magick("png_rgba16.png", source="png_rgba.png", prefix="png64:")
    _magick("png_2bit.png", "-colors", "4", "-define", "png:bit-depth=2", prefix="png8:")


def make_webp() -> None:
    _pillow("webp_lossy.webp", base(), quality=95)
    _pillow("webp_lossless.webp", base(), lossless=True)
    _pillow("webp_alpha.webp", faded(), lossless=True)
    _pillow("webp_lossy_alpha.webp", faded(), quality=95)
    _pillow("webp_animated.webp", base(), save_all=True, append_images=[base().rotate(180)], lossless=True)
    _pillow("webp_exif6.webp", base(), lossless=True, exif=exif(6))


def make_gif_and_bmp() -> None:
    _pillow("gif.gif", base().quantize(64))
    _pillow("gif_transparent.gif", palette_with_hole())
    _pillow("gif_animated.gif", base().quantize(64), save_all=True, append_images=[base().rotate(180)], duration=100)
    _magick("gif_interlaced.gif", "-interlace", "GIF")
    _pillow("bmp24.bmp", base())
    _pillow("bmp8.bmp", base().quantize(64))
    _pillow("bmp1.bmp", base().convert("1"))
    _magick("bmp_rle.bmp", "-colors", "16", "-compress", "RLE", prefix="bmp3:")
    _magick("bmp_v4.bmp", prefix="bmp:")


def make_tiff() -> None:
    _pillow("tiff_lzw.tif", base(), compression="tiff_lzw")
    _pillow("tiff_deflate.tif", faded(), compression="tiff_adobe_deflate")
    _pillow("tiff_g4.tif", base().convert("1"), compression="group4")
    _pillow("tiff_pages.tif", base(), save_all=True, append_images=[base().rotate(180)])
    _pillow("tiff_cmyk.tif", base().convert("CMYK"))
    _pillow("tiff_grey16.tif", deep())
    _pillow("tiff_orientation6.tif", base(), tiffinfo={ExifTags.Base.Orientation: 6})
    _magick("tiff_grey16_big_endian.tif", "-endian", "MSB", "-compress", "none", source="png_grey16.png")
    _magick("tiff_grey12.tif", "-depth", "12", "-compress", "none", source="png_grey16.png")
    _magick("tiff_grey16_white_is_zero.tif", "-define", "quantum:polarity=min-is-white", source="png_grey16.png")
    _magick("tiff_rgb16.tif", "-depth", "16", "-compress", "LZW")
    _magick("tiff_tiled.tif", "-define", "tiff:tile-geometry=16x16", "-compress", "none")
    _magick("tiff_jpeg.tif", "-compress", "JPEG", "-quality", "95")
    _magick("tiff_big.tif", "-compress", "none", prefix="tiff64:")


def make_avif() -> None:
    _pillow("avif.avif", base(), quality=95, subsampling="4:4:4")
    _pillow("avif_alpha.avif", faded(), quality=100, subsampling="4:4:4")
    _pillow("avif_exif6.avif", base(), quality=95, subsampling="4:4:4", exif=exif(6))
    _pillow(
        "avif_animated.avif", base(), quality=95, subsampling="4:4:4", save_all=True, append_images=[base().rotate(180)]
    )


def make_heic() -> None:
    register_heif_opener()
    _pillow("heic.heic", base(), quality=95, chroma=444)
    _pillow("heic_420.heic", base(), quality=95)
    _pillow("heic_alpha.heic", faded(), quality=-1, chroma=444)
    _pillow("heic_exif6.heic", base(), quality=95, chroma=444, exif=exif(6).tobytes())
    _pillow("heic_exif_alone.heic", base(), quality=95, chroma=444, exif=exif(6))  # without irot it has no meaning
    _pillow("heic_grid.heic", base(), quality=95, chroma=444, tile_size=16)
    _pillow("heic_pages.heic", base(), quality=95, chroma=444, save_all=True, append_images=[base().rotate(180)])
    _pillow("heic_thumbnail.heic", base(), quality=95, chroma=444, thumbnails=[16])


# ImageMagick 6 can't read these here: the same picture in a format that it can read stands for them.
STAND_INS = {
    "avif.avif": "png_rgb.png",
    "avif_alpha.avif": "png_rgba.png",
    "avif_exif6.avif": "jpeg_exif6.jpg",
    "avif_animated.avif": "png_rgb.png",
    "heic.heic": "png_rgb.png",
    "heic_420.heic": "png_rgb.png",
    "heic_alpha.heic": "png_rgba.png",
    "heic_exif6.heic": "jpeg_exif6.jpg",
    "heic_exif_alone.heic": "png_rgb.png",
    "heic_grid.heic": "png_rgb.png",
    "heic_pages.heic": "png_rgb.png",
    "heic_thumbnail.heic": "png_rgb.png",
    "png_exif6.png": "jpeg_exif6.jpg",
    "webp_exif6.webp": "jpeg_exif6.jpg",
    "webp_animated.webp": "png_rgb.png",
}


def expected(name: str) -> list[list[int]]:
    """Mean colours of the quadrants: upper left, upper right, lower left, lower right."""
    source = FOLDER / STAND_INS.get(name, name)
    steps = ["-auto-orient", "-background", "white", "-alpha", "remove", "-colorspace", "sRGB", "-scale", "2x2!"]
    command = ["convert", f"{source}[0]", *steps, "-depth", "8", "rgb:-"]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    return [list(raw[at : at + 3]) for at in range(0, 12, 3)]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    _pillow("png_rgb.png", base())
    makers: tuple[Callable[[], None], ...] = (
        make_jpeg, make_png, make_webp, make_gif_and_bmp, make_tiff, make_avif, make_heic,
    )  # fmt: skip
    for make in makers:
        make()
    table = {path.name: expected(path.name) for path in sorted(FOLDER.iterdir())}
    lines = (f"  {json.dumps(name)}: {json.dumps(colours)}" for name, colours in table.items())
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
