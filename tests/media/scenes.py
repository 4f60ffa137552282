"""Pictures as large as clients send them, drawn from a seed: too large to keep as files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


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


SCENES: dict[str, tuple[Callable[[int, int], Image.Image], int, int, str, dict[str, Any]]] = {
    "photo_jpeg": (photo, 1280, 960, "JPEG", {"quality": 85}),
    "photo_progressive": (photo, 1600, 800, "JPEG", {"quality": 85, "progressive": True}),
    "photo_png": (photo, 640, 480, "PNG", {}),
    "photo_small": (photo, 60, 40, "PNG", {}),
    "shapes_jpeg": (shapes, 1280, 960, "JPEG", {"quality": 75}),
    "shapes_webp": (shapes, 1024, 768, "WEBP", {"lossless": True}),
    "text_jpeg": (text, 1280, 960, "JPEG", {"quality": 90}),
    "text_large": (text, 2400, 1800, "JPEG", {"quality": 75}),
}


def encoded_scenes() -> Iterator[tuple[str, bytes]]:
    """Name and file of each scene."""
    for name, (draw, width, height, kind, options) in SCENES.items():
        file = io.BytesIO()
        draw(width, height).save(file, kind, **options)
        yield name, file.getvalue()
