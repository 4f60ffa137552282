"""Random scenes for every skill, and the split that keeps some combinations out of training."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from build_engines.demo_checkpoint.pictures import TEXT_FONTS, Line, Scene, Thing
from build_engines.demo_checkpoint.vocabulary import COLOURS, OBJECTS, PLACES, SHAPES, WORDS

HELD_OUT_ONE_IN = 8
_CENTRES = {"left": (0.25, 0.5), "right": (0.75, 0.5), "top": (0.5, 0.25), "bottom": (0.5, 0.75), "middle": (0.5, 0.5)}


def is_held_out(scene: Scene) -> bool:
    """Whether the scene shows a combination kept for evaluation.

    Combinations are colour, kind and place of one thing; number and kind of a count; word and font; and whole numbers
    of two digits and more. One thing in no place of its own is never held out.
    """
    one_without_place = len(scene.things) == 1 and scene.things[0].place is None
    keys = [f"{t.colour}/{t.kind}/{t.place}/{len(scene.things)}" for t in scene.things if not one_without_place]
    for line in scene.lines:
        keys.append(line.text if line.text.isdigit() and len(line.text) > 1 else f"{line.text.lower()}/{line.font}")
    return any(zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0 for key in keys)


def random_scene(skill: str, rng: np.random.Generator, held_out: bool = False) -> Scene:
    """A scene of one skill (a key of SKILLS), from the training or the held-out combinations."""
    while True:
        scene = SKILLS[skill](rng)
        if not scene.asks or is_held_out(scene) == held_out:
            return scene


def _pick(values: tuple[str, ...], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]


_COLOUR_NAMES = tuple(COLOURS)
_OBJECT_NAMES = tuple(OBJECTS)


def _thing(is_shape: bool, place: str, size: tuple[float, float], spread: float, rng: np.random.Generator) -> Thing:
    x, y = _CENTRES[place]
    return Thing(
        kind=_pick(SHAPES if is_shape else _OBJECT_NAMES, rng),
        colour=_pick(_COLOUR_NAMES, rng) if is_shape else None,
        x=x + rng.uniform(-spread, spread),
        y=y + rng.uniform(-spread, spread),
        size=rng.uniform(*size),
        angle=rng.uniform(-12, 12),
        place=place,
    )


def _single(is_shape: bool) -> Callable[[np.random.Generator], Scene]:
    def make(rng: np.random.Generator) -> Scene:
        place = "middle" if rng.random() < 0.3 else _pick(PLACES, rng)
        size = (0.35, 0.9) if place == "middle" else (0.3, 0.48)
        return Scene("shape" if is_shape else "object", (_thing(is_shape, place, size, 0.05, rng),))

    return make


def _off_places(is_shape: bool) -> Callable[[np.random.Generator], Scene]:
    """One thing beside every place, mostly large.

    Only the middle has room for large things: without these, kinds held out of the middle are never seen large.
    """

    def make(rng: np.random.Generator) -> Scene:
        thing = _thing(is_shape, "middle", (0.35, 0.95), 0.0, rng)
        room = max(0.14, (1 - thing.size) / 2 + 0.05)
        x, y = (0.5 + float(rng.choice((-1, 1))) * rng.uniform(0.08, room) for _ in range(2))
        return Scene("off places", (replace(thing, x=x, y=y, place=None),))

    return make


def _pair(first_is_shape: bool, second_is_shape: bool) -> Callable[[np.random.Generator], Scene]:
    def make(rng: np.random.Generator) -> Scene:
        places = ("left", "right") if rng.random() < 0.5 else ("top", "bottom")
        order = (first_is_shape, second_is_shape) if rng.random() < 0.5 else (second_is_shape, first_is_shape)
        while True:
            things = tuple(_thing(s, p, (0.3, 0.46), 0.05, rng) for s, p in zip(order, places, strict=True))
            if things[0].kind != things[1].kind and (things[0].colour or 0) != (things[1].colour or 1):
                return Scene("pair", things)

    return make


def _count(is_shape: bool) -> Callable[[np.random.Generator], Scene]:
    def make(rng: np.random.Generator) -> Scene:
        number = int(rng.integers(2, 5))
        kind = _pick(SHAPES if is_shape else _OBJECT_NAMES, rng)
        colour = _pick(_COLOUR_NAMES, rng) if is_shape else None
        size = rng.uniform(0.22, 0.44 if number == 2 else 0.38 if number == 3 else 0.34)
        spots: list[tuple[float, float]] = []
        tries = 0
        while len(spots) < number:
            spot = (rng.uniform(size / 2, 1 - size / 2), rng.uniform(size / 2, 1 - size / 2))
            if all(max(abs(spot[0] - x), abs(spot[1] - y)) > size * 1.05 for x, y in spots):
                spots.append(spot)
            tries += 1
            if tries > 60:
                spots, tries, size = [], 0, size * 0.9
        things = tuple(Thing(kind, colour, x, y, size * rng.uniform(0.9, 1.0), rng.uniform(-12, 12)) for x, y in spots)
        return Scene("count", things)

    return make


def _line(text: str, y: float, height: tuple[float, float], rng: np.random.Generator) -> Line:
    # The width follows from a height, as one character is about 0.62 as wide as its line is high.
    width = min(0.94, rng.uniform(*height) * 0.62 * len(text))
    slack = (1 - width) / 2 * 0.7
    return Line(
        text, int(rng.integers(len(TEXT_FONTS))), 0.5 + rng.uniform(-slack, slack), y, width, rng.uniform(-6, 6)
    )


def _cased(word: str, rng: np.random.Generator) -> str:
    return (word, word.upper(), word.capitalize())[int(rng.integers(3))]


def _word(rng: np.random.Generator) -> Scene:
    return Scene("word", lines=(_line(_cased(_pick(WORDS, rng), rng), rng.uniform(0.3, 0.7), (0.26, 0.5), rng),))


def _number(rng: np.random.Generator) -> Scene:
    digits = "".join(str(d) for d in rng.integers(0, 10, int(rng.integers(1, 5))))
    return Scene("number", lines=(_line(digits, rng.uniform(0.32, 0.68), (0.28, 0.6), rng),))


def _crowd(rng: np.random.Generator) -> Scene:
    things = []
    for x, y in ((0.26, 0.26), (0.74, 0.26), (0.26, 0.74), (0.74, 0.74)):
        thing = _thing(rng.random() < 0.25, "middle", (0.28, 0.5), 0.04, rng)
        things.append(Thing(thing.kind, thing.colour, thing.x + x - 0.5, thing.y + y - 0.5, thing.size, thing.angle))
    return Scene("crowd", tuple(things), asks=False)


def _lines(rng: np.random.Generator) -> Scene:
    texts = []
    for _ in range(3):
        if rng.random() < 0.5:
            texts.append(_cased(_pick(WORDS, rng), rng))
        else:
            texts.append("".join(str(d) for d in rng.integers(0, 10, int(rng.integers(2, 5)))))
    spots = (0.2, 0.5, 0.8)
    lines = tuple(_line(t, y + rng.uniform(-0.04, 0.04), (0.25, 0.33), rng) for t, y in zip(texts, spots, strict=True))
    return Scene("lines", lines=lines, asks=False)


SKILLS: dict[str, Callable[[np.random.Generator], Scene]] = {
    "shape": _single(True),
    "object": _single(False),
    "two shapes": _pair(True, True),
    "two objects": _pair(False, False),
    "shape and object": _pair(True, False),
    "count shapes": _count(True),
    "count objects": _count(False),
    "word": _word,
    "number": _number,
    "shape off places": _off_places(True),  # these four only teach
    "object off places": _off_places(False),
    "crowd": _crowd,
    "lines": _lines,
}
