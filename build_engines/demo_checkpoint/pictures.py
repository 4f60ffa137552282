"""Draw the demo's pictures: shapes, objects, counts, words and numbers, with the labels of every patch.

Needs numpy and Pillow only. Objects come from the Noto Color Emoji font and words from whatever common system fonts
are installed, with Pillow's own font otherwise.
"""

from __future__ import annotations

import functools
import glob
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from build_engines.demo_checkpoint.vocabulary import CHARACTERS, COLOURS, KINDS, OBJECTS, SHAPES

GRID = 8  # patches along one side of a picture
EMOJI_FONTS = "/usr/share/fonts/**/NotoColorEmoji*.ttf"
TEXT_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSansCondensed-Bold",
    "FreeSans", "FreeSansBold", "FreeSerif", "FreeSerifBold", "FreeMonoBold", "LiberationSans-Regular",
    "LiberationSans-Bold", "LiberationSerif-Regular", "LiberationSerif-Bold", "LiberationMono-Bold",
)  # fmt: skip
_MASK = 192  # pixels of a cached drawing; its content keeps inside the middle 128, so that rotation cuts nothing
_INNER = 128


@dataclass(frozen=True)
class Thing:
    """One shape or object; x, y (centre) and size are fractions of the picture, angle is in degrees."""

    kind: str
    colour: str | None = None
    x: float = 0.5
    y: float = 0.5
    size: float = 0.6
    angle: float = 0.0
    place: str | None = None


@dataclass(frozen=True)
class Line:
    """One printed word or number; x, y (centre) and width are fractions of the picture."""

    text: str
    font: int = 0
    x: float = 0.5
    y: float = 0.5
    width: float = 0.7
    angle: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What a picture shows. `asks` is False for crowded pictures that only teach patch labels."""

    skill: str
    things: tuple[Thing, ...] = ()
    lines: tuple[Line, ...] = ()
    asks: bool = True


@dataclass
class PatchLabels:
    """Per patch, int64 [8, 8]: kind (0 none, KINDS, CHARACTERS), colour (0 none, COLOURS), centre (0 or 1)."""

    kind: NDArray[np.int64]
    colour: NDArray[np.int64]
    centre: NDArray[np.int64]


def draw(scene: Scene, side: int, rng: np.random.Generator) -> Image.Image:
    """The picture of a scene, RGB, `side` pixels square, on a random background."""
    return draw_labelled(scene, side, rng)[0]


def draw_labelled(scene: Scene, side: int, rng: np.random.Generator) -> tuple[Image.Image, PatchLabels]:
    """The picture of a scene and what each of its 8 x 8 patches shows."""
    inks = [_jitter(COLOURS[thing.colour], rng) for thing in scene.things if thing.colour is not None]
    dark_text = bool(rng.integers(2))
    picture = _background(side, inks, dark_text if scene.lines else None, rng)
    labels = Image.new("L", (GRID * 8, GRID * 8))
    for index, thing in enumerate(scene.things):
        stamp = _thing_stamp(thing, side, inks.pop(0) if thing.colour is not None else None)
        _paste(picture, labels, stamp, (thing.x, thing.y), index + 1)
    owners: list[tuple[int, int]] = [
        (1 + KINDS.index(t.kind), 1 + list(COLOURS).index(t.colour) if t.colour else 0) for t in scene.things
    ]
    for line in scene.lines:
        tone = rng.integers(0, 70, 3) if dark_text else rng.integers(190, 256, 3)
        stamp, marks = _line_stamp(line, side, (int(tone[0]), int(tone[1]), int(tone[2])), len(owners) + 1)
        _paste(picture, labels, stamp, (line.x, line.y), 0, marks)
        owners += [(1 + len(KINDS) + CHARACTERS.index(char), 0) for char in line.text.lower()]
    return picture, _patch_labels(labels, owners, scene.things)


def weather(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The picture as a worse camera or encoder would give it: colour cast, brightness, noise, JPEG."""
    pixels = np.asarray(picture, dtype=np.float32)
    pixels = pixels * rng.uniform(0.9, 1.1, 3).astype(np.float32) + np.float32(rng.uniform(-12, 12))
    if rng.random() < 0.5:
        grain = rng.standard_normal(pixels.shape[:2], dtype=np.float32)
        pixels = pixels + (grain * np.float32(rng.uniform(1, 8)))[..., None]
    picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if rng.random() < 0.3:
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=int(rng.integers(35, 95)))
        picture = Image.open(stream).convert("RGB")
    return picture


def has_emoji_font() -> bool:
    """Whether objects can be drawn here."""
    return bool(glob.glob(EMOJI_FONTS, recursive=True))


def _jitter(rgb: Sequence[int], rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = np.clip(np.asarray(rgb) + rng.integers(-18, 19, 3), 0, 255).tolist()
    return red, green, blue


def _background(
    side: int, inks: list[tuple[int, int, int]], dark_text: bool | None, rng: np.random.Generator
) -> Image.Image:
    ends: list[NDArray[np.float64]] = []
    while len(ends) < 2:
        base = rng.integers(0, 256) + rng.integers(-60, 61, 3) * rng.uniform(0, 1)
        if dark_text is not None:
            base = np.clip(base, 150, 255) if dark_text else np.clip(base, 0, 110)
        base = np.clip(base, 0, 255)
        if all(np.abs(base - ink).sum() > 170 for ink in inks):
            ends.append(base)
    if rng.random() < 0.4:
        ends[1] = ends[0]
    cells = 12
    direction = rng.uniform(0, 2 * math.pi)
    ys, xs = np.mgrid[0:cells, 0:cells] / (cells - 1) - 0.5
    ramp = np.clip(0.5 + (xs * math.cos(direction) + ys * math.sin(direction)) / 1.2, 0, 1)[..., None]
    field = ends[0] * (1 - ramp) + ends[1] * ramp
    if rng.random() < 0.5:
        field = field + rng.normal(0, rng.uniform(2, 12), (cells, cells, 1))
    small = Image.fromarray(np.clip(field, 0, 255).astype(np.uint8))
    return small.resize((side, side), Image.Resampling.BILINEAR)


@functools.cache
def _shape_mask(kind: str) -> Image.Image:
    scale = 4
    size = _MASK * scale
    mask = Image.new("L", (size, size))
    pen = ImageDraw.Draw(mask)
    middle, half = size / 2, _INNER * scale / 2
    if kind == "circle":
        pen.ellipse((middle - half, middle - half, middle + half, middle + half), fill=255)
    elif kind == "cross":
        arm = half * 0.36
        pen.rectangle((middle - half, middle - arm, middle + half, middle + arm), fill=255)
        pen.rectangle((middle - arm, middle - half, middle + arm, middle + half), fill=255)
    else:
        pen.polygon([(middle + x * half, middle + y * half) for x, y in _outline(kind)], fill=255)
    return mask.resize((_MASK, _MASK), Image.Resampling.BOX)


def _outline(kind: str) -> list[tuple[float, float]]:
    if kind == "square":
        return [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]
    if kind == "triangle":
        return [(0, -0.95), (1, 0.85), (-1, 0.85)]
    if kind == "diamond":
        return [(0, -1), (0.68, 0), (0, 1), (-0.68, 0)]
    if kind == "star":
        turns = [(math.pi * i / 5 - math.pi / 2, 1.0 if i % 2 == 0 else 0.42) for i in range(10)]
        return [(r * math.cos(a), r * math.sin(a)) for a, r in turns]
    # The classic heart curve.
    points = []
    for t in np.linspace(0, 2 * math.pi, 80):
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((16 * math.sin(t) ** 3 / 17, -(y + 2.5) / 17))
    return points


@functools.cache
def _emoji(kind: str) -> Image.Image:
    paths = sorted(glob.glob(EMOJI_FONTS, recursive=True))
    if not paths:
        raise RuntimeError(f"pictures: drawing {kind} needs the font NotoColorEmoji (package fonts-noto-color-emoji)")
    font = ImageFont.truetype(paths[0], 109)  # the one size of its bitmaps
    glyph = Image.new("RGBA", (180, 180))
    ImageDraw.Draw(glyph).text((20, 20), OBJECTS[kind], font=font, embedded_color=True)
    glyph = glyph.crop(glyph.getbbox())
    scale = _INNER / max(glyph.size)
    glyph = glyph.resize((max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale))))
    framed = Image.new("RGBA", (_MASK, _MASK))
    framed.paste(glyph, ((_MASK - glyph.width) // 2, (_MASK - glyph.height) // 2))
    return framed


@functools.cache
def _reduced(kind: str, pixels: int) -> Image.Image:
    """A shape's mask (L) or an object (RGBA), `pixels` square: small stamps start from small drawings, for speed."""
    full = _shape_mask(kind) if kind in SHAPES else _emoji(kind)
    return full.resize((pixels, pixels), Image.Resampling.BOX)


def _thing_stamp(thing: Thing, side: int, ink: tuple[int, int, int] | None) -> Image.Image:
    pixels = max(4, round(thing.size * side * _MASK / _INNER))
    source = _reduced(thing.kind, next((size for size in (48, 64, 96) if size >= pixels), _MASK))
    if thing.angle:
        source = source.rotate(thing.angle, Image.Resampling.BILINEAR)
    if thing.kind in SHAPES:
        stamp = Image.new("RGBA", (pixels, pixels), ink or (128, 128, 128))
        stamp.putalpha(source.resize((pixels, pixels), Image.Resampling.BILINEAR))
        return stamp
    return source.resize((pixels, pixels), Image.Resampling.BILINEAR)


@functools.cache
def _font_file(name: str) -> str | None:
    return next(iter(sorted(glob.glob(f"/usr/share/fonts/**/{name}.ttf", recursive=True))), None)


@functools.cache
def _font(index: int, pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    file = _font_file(TEXT_FONTS[index % len(TEXT_FONTS)])
    return ImageFont.truetype(file, pixels) if file else ImageFont.load_default(pixels)


def _line_stamp(line: Line, side: int, tone: tuple[int, int, int], first_mark: int) -> tuple[Image.Image, Image.Image]:
    """The text on a transparent square, and an L picture of the same size marking each character's box."""
    unit = _font(line.font, 64).getlength(line.text)
    font = _font(line.font, max(8, round(64 * line.width * side / unit)))
    ends = [font.getlength(line.text[: i + 1]) for i in range(len(line.text))]
    left, top, right, bottom = font.getbbox(line.text)
    frame = int(max(right - left, bottom - top) * 1.2) + 8
    stamp = Image.new("RGBA", (frame, frame), (*tone, 0))
    marks = Image.new("L", (frame, frame))
    x, y = (frame - (right - left)) / 2 - left, (frame - (bottom - top)) / 2 - top
    ImageDraw.Draw(stamp).text((x, y), line.text, font=font, fill=(*tone, 255))
    pen = ImageDraw.Draw(marks)
    for index, end in enumerate(ends):
        start = ends[index - 1] if index else 0
        pen.rectangle((x + start, y + top, x + end, y + bottom), fill=first_mark + index)
    pixels = max(4, round(line.width * side * frame / (right - left)))
    if line.angle:
        stamp, marks = stamp.rotate(line.angle, Image.Resampling.BILINEAR), marks.rotate(line.angle)
    marks = marks.resize((round(pixels * GRID * 8 / side),) * 2, Image.Resampling.NEAREST)
    return stamp.resize((pixels, pixels), Image.Resampling.BICUBIC, reducing_gap=2.0), marks


def _paste(  # noqa: PLR0917
    picture: Image.Image,
    labels: Image.Image,
    stamp: Image.Image,
    centre: tuple[float, float],
    mark: int,
    marks: Image.Image | None = None,
) -> None:
    side, grid = picture.width, labels.width
    picture.paste(stamp, (round(centre[0] * side - stamp.width / 2), round(centre[1] * side - stamp.height / 2)), stamp)
    if marks is None:
        pixels = max(1, round(stamp.width * grid / side))
        mask = stamp.getchannel("A").resize((pixels, pixels), Image.Resampling.BOX).point(lambda v: 255 * (v > 127))
        marks = Image.new("L", mask.size, mark)
    else:
        mask = marks.point(lambda v: 255 * (v > 0))
    labels.paste(marks, (round(centre[0] * grid - marks.width / 2), round(centre[1] * grid - marks.height / 2)), mask)


def _patch_labels(labels: Image.Image, owners: list[tuple[int, int]], things: tuple[Thing, ...]) -> PatchLabels:
    marks = np.asarray(labels).reshape(GRID, 8, GRID, 8).transpose(0, 2, 1, 3).reshape(GRID, GRID, 64)
    cover = np.stack([(marks == index).sum(-1) for index in range(len(owners) + 1)], axis=-1)
    cover[..., 0] = 20  # a patch belongs to a thing that covers a third of it
    owner = cover.argmax(-1)
    table = np.array([(0, 0), *owners])
    centre = np.zeros((GRID, GRID), np.int64)
    for thing in things:
        centre[min(GRID - 1, int(thing.y * GRID)), min(GRID - 1, int(thing.x * GRID))] = 1
    return PatchLabels(table[owner, 0].astype(np.int64), table[owner, 1].astype(np.int64), centre)
