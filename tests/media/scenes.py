"""Pictures as large as clients send them, drawn from a seed: too large to keep as files."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageDraw


def photo(width: int, height: int) -> Image.Image:
    """Noise of many scales, with the falling spectrum of a photograph."""
    random = np.random.default_rng(1)
    total = np.zeros((height, width, 3))
    for octave in range(2, 9):
        rows, columns = max(1, height >> (9 - octave)), max(1, width >> (9 - octave))
        layer = Image.fromarray(random.integers(0, 256, (rows, columns, 3), dtype=np.uint8))
        total += (np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC), float) - 128) / 1.6**octave
    return Image.fromarray((total * 1.6 + 128).clip(0, 255).astype(np.uint8))


def shapes(width: int, height: int) -> Image.Image:
    """Plain coloured figures with hard edges."""
    random = np.random.default_rng(2)
    image = Image.new("RGB", (width, height), (240, 236, 220))
    draw = ImageDraw.Draw(image)
    for index in range(12):
        x, y, radius = random.integers(0, width), random.integers(0, height), random.integers(height // 20, height // 4)
        figure = draw.ellipse if index % 2 else draw.rectangle
        figure((x - radius, y - radius, x + radius, y + radius), fill=tuple(random.integers(0, 256, 3).tolist()))
    return image


def text(width: int, height: int) -> Image.Image:
    """Black on white, the hardest for a decoder that leaves out high frequencies."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for row in range(20, height - 30, 34):
        draw.text((30, row), "The quick brown fox jumps over the lazy dog 0123456789 " * 3, fill="black", font_size=24)
    return image


def glass(width: int, height: int) -> Image.Image:
    """A photograph seen through a gradient, with holes whose hidden colour is magenta."""
    image = photo(width, height)
    holes = shapes(width, height).convert("L").point(lambda grey: 255 if grey > 200 else 0)
    image.paste((255, 0, 255), mask=holes)
    alpha = np.tile(np.linspace(40, 255, width, dtype=np.uint8), (height, 1))
    image.putalpha(Image.fromarray(np.where(np.asarray(holes) > 0, 0, alpha).astype(np.uint8)))
    return image


def scan(width: int, height: int) -> Image.Image:
    """16-bit grey."""
    return Image.fromarray(np.asarray(photo(width, height).convert("L")).astype(np.uint16) * 257)


def sticker(width: int, height: int) -> Image.Image:
    """A palette, one of whose colours is transparent."""
    image = shapes(width, height).quantize(32)
    image.info["transparency"] = image.getpixel((0, 0))
    return image


def wide_gamut() -> bytes:
    """A profile whose red and blue are exchanged, as no display has: easy to tell from none."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * profile[131], 12)}
    red, blue = (slice(tags[name] + 4, tags[name] + 8) for name in (b"rXYZ", b"bXYZ"))
    profile[red], profile[blue] = profile[blue], profile[red]
    return bytes(profile).replace("sRGB built-in".encode("utf-16-be"), "swap built-in".encode("utf-16-be"))


def turned(orientation: int) -> Image.Exif:
    """EXIF data that say how the picture is to be turned."""
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags


@dataclass(frozen=True)
class Scene:
    """A drawing, and the file that it becomes."""

    draw: Callable[[int, int], Image.Image]
    width: int
    height: int
    kind: str  # Pillow's name of the format
    options: dict[str, Any] = field(default_factory=dict)
    mode: str | None = None  # Pillow's, of the file's pixels; None: as drawn

    def file(self) -> bytes:
        """Encoded."""
        image = self.draw(self.width, self.height)
        if self.mode is not None:
            image = image.convert(self.mode)
        file = io.BytesIO()
        image.save(file, self.kind, **self.options)
        return file.getvalue()


SCENES = {
    "photo_jpeg": Scene(photo, 1280, 960, "JPEG", {"quality": 85}),
    "photo_progressive": Scene(photo, 1600, 800, "JPEG", {"quality": 85, "progressive": True}),
    "photo_png": Scene(photo, 640, 480, "PNG"),
    "photo_small": Scene(photo, 60, 40, "PNG"),
    "photo_poor": Scene(photo, 800, 600, "JPEG", {"quality": 25}),
    "photo_444": Scene(photo, 1000, 750, "JPEG", {"quality": 92, "subsampling": 0}),
    "photo_phone": Scene(photo, 2048, 1536, "JPEG", {"quality": 80, "exif": turned(6)}),
    "photo_turned": Scene(photo, 900, 600, "JPEG", {"quality": 85, "exif": turned(5)}),
    "photo_upside_down": Scene(photo, 900, 600, "WEBP", {"quality": 90, "exif": turned(3)}),
    "photo_grey": Scene(photo, 1280, 960, "JPEG", {"quality": 85}, mode="L"),
    "photo_cmyk": Scene(photo, 1200, 900, "JPEG", {"quality": 90}, mode="CMYK"),
    "photo_cmyk_tiff": Scene(photo, 700, 500, "TIFF", {"compression": "tiff_lzw"}, mode="CMYK"),
    "photo_tiff": Scene(photo, 1023, 771, "TIFF", {"compression": "tiff_lzw"}),
    "photo_profile": Scene(photo, 640, 480, "PNG", {"icc_profile": wide_gamut()}),
    "photo_profile_jpeg": Scene(photo, 1280, 960, "JPEG", {"quality": 90, "icc_profile": wide_gamut()}),
    "photo_webp": Scene(photo, 1280, 960, "WEBP", {"quality": 85}),
    "photo_avif": Scene(photo, 640, 480, "AVIF", {"quality": 100, "subsampling": "4:4:4"}),
    "photo_heic": Scene(photo, 320, 240, "HEIF", {"quality": 90}),
    "photo_bmp": Scene(photo, 333, 217, "BMP"),
    "photo_gif": Scene(photo, 500, 400, "GIF", mode="P"),
    "photo_palette": Scene(photo, 1023, 771, "PNG", mode="P"),
    "photo_bits": Scene(photo, 1020, 780, "TIFF", {"compression": "group4"}, mode="1"),
    "photo_restart": Scene(photo, 640, 480, "JPEG", {"quality": 85, "restart_marker_blocks": 7}),
    "shapes_jpeg": Scene(shapes, 1280, 960, "JPEG", {"quality": 75}),
    "shapes_webp": Scene(shapes, 1024, 768, "WEBP", {"lossless": True}),
    "shapes_gif": Scene(shapes, 800, 800, "GIF", mode="P"),
    "shapes_tall": Scene(shapes, 240, 3000, "PNG"),
    "text_jpeg": Scene(text, 1280, 960, "JPEG", {"quality": 90}),
    "text_large": Scene(text, 2400, 1800, "JPEG", {"quality": 75}),
    "text_bits": Scene(text, 850, 1100, "PNG", mode="1"),
    "text_fax": Scene(text, 1650, 2200, "TIFF", {"compression": "group4"}, mode="1"),
    "glass_png": Scene(glass, 1023, 771, "PNG"),
    "glass_webp": Scene(glass, 800, 600, "WEBP", {"lossless": True}),
    "glass_grey": Scene(glass, 800, 600, "PNG", mode="LA"),
    "glass_small": Scene(glass, 70, 50, "PNG"),
    "glass_tiff": Scene(glass, 640, 480, "TIFF", {"compression": "tiff_adobe_deflate"}),
    "scan_png": Scene(scan, 1023, 771, "PNG"),
    "scan_tiff": Scene(scan, 1240, 877, "TIFF", {"compression": "tiff_lzw"}),
    "sticker_png": Scene(sticker, 1023, 771, "PNG"),
    "sticker_gif": Scene(sticker, 300, 200, "GIF"),
    "strip_wide": Scene(photo, 4000, 16, "PNG"),
    "strip_tall": Scene(photo, 16, 4000, "JPEG", {"quality": 90}),
    "line_wide": Scene(photo, 300, 1, "PNG"),
    "line_tall": Scene(photo, 1, 4000, "PNG"),
    "dot": Scene(photo, 1, 1, "PNG"),
    "dots": Scene(photo, 3, 3, "PNG"),
    "dots_jpeg": Scene(photo, 9, 7, "JPEG", {"quality": 95}),
    "size_of_a_tile": Scene(photo, 224, 224, "PNG"),
    "nearly_a_tile": Scene(photo, 225, 383, "PNG"),
}
