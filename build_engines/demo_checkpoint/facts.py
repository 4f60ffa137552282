"""What a picture says, as sixteen facts: the order in which the last visual tokens carry them.

The first 48 visual tokens are the tower's workspace; each of the last 16 stands for one fact, so the connector can be
taught to write it in the LLM's word embeddings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from build_engines.demo_checkpoint.pictures import Scene
from build_engines.demo_checkpoint.vocabulary import CHARACTERS, COLOURS, COUNTS, KINDS, PLACES, WORDS

NONE = ""
# Every group starts with "nothing", but for the type.
GROUPS: dict[str, tuple[str, ...]] = {
    "type": ("picture", "word", "number"),
    "count": (NONE, *COUNTS),
    "colour": (NONE, *COLOURS),
    "kind": (NONE, *KINDS),
    "place": (NONE, *PLACES),
    "word": (NONE, *WORDS),
    "character": (NONE, *CHARACTERS),
}
FACTS = ("type", "count", *("colour", "kind", "place") * 2, "word", *("character",) * 5)
FACT_TOKENS = 16
FIRST_FACT_TOKEN = 48
IGNORED = -100
OFFSETS = dict(zip(GROUPS, np.cumsum([0, *(len(values) for values in GROUPS.values())]).tolist(), strict=False))
TOTAL_VALUES = sum(len(values) for values in GROUPS.values())


def scene_facts(scene: Scene) -> NDArray[np.int64]:
    """The value of every fact, int64 [14], as an index into its group; all IGNORED for a crowded picture.

    So is the place of a single thing that has none.
    """
    values = np.zeros(len(FACTS), np.int64)
    if not scene.asks:
        values[:] = IGNORED
        return values
    if scene.lines:
        text = scene.lines[0].text.lower()
        values[0] = 2 if text.isdigit() else 1
        values[8] = GROUPS["word"].index(text) if text in WORDS else 0
        for index, char in enumerate(text[:5]):
            values[9 + index] = 1 + CHARACTERS.index(char)
        return values
    values[1] = len(scene.things)
    same = len({thing.kind for thing in scene.things}) == 1
    for index, thing in enumerate(scene.things[: 1 if same else 2]):
        values[2 + 3 * index] = GROUPS["colour"].index(thing.colour or NONE)
        values[3 + 3 * index] = GROUPS["kind"].index(thing.kind)
        values[4 + 3 * index] = GROUPS["place"].index(thing.place or NONE)
    if len(scene.things) == 1 and scene.things[0].place is None:
        values[4] = IGNORED
    return values
