"""Requests of text and pictures, each of them different, the same ones for the same seed."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

_COLOURS = ("red", "green", "blue", "orange", "purple", "black")
_SUBJECTS = ("a fox", "a ship", "the sea", "an old clock", "a baker", "the moon", "two brothers", "a train")
_TASKS = ("Tell a story about", "Write a poem about", "Explain", "List facts about", "Describe")


@dataclass(frozen=True)
class Ask:
    """One request; `image` is a PNG file."""

    text: str
    image: bytes | None


def mix(count: int, image_share: float, seed: int = 7) -> Iterator[Ask]:
    """So many requests, of which about `image_share` carry one picture that no other has."""
    rng = random.Random(seed)
    for number in range(count):
        if rng.random() < image_share:
            yield Ask("What is in the picture?", picture(rng, number))
        else:
            yield Ask(f"{rng.choice(_TASKS)} {rng.choice(_SUBJECTS)} and the number {number}.", None)


def picture(rng: random.Random, number: int, size: int = 200) -> bytes:
    """A few shapes; the number makes it unlike any other."""
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(3):
        x, y, side = rng.randrange(size // 2), rng.randrange(size // 2), rng.randrange(20, size // 2)
        getattr(draw, rng.choice(("ellipse", "rectangle")))((x, y, x + side, y + side), fill=rng.choice(_COLOURS))
    image.putpixel((0, 0), (number & 255, number >> 8 & 255, number >> 16 & 255))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
