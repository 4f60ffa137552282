"""Ask a running server about held-out pictures and count the right answers, skill by skill.

    tvlm serve &
    python -m build_engines.demo_checkpoint.evaluate --url grpc://localhost:8001 [--samples 100] [--json FILE]

The pictures have combinations that training never showed, sides of 150 to 800 pixels, and come as JPEG or PNG files: so
decode, encode and the LLM are those of the product. An answer is right when it names the asked fact and no other of its
kind.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from build_engines.demo_checkpoint.pictures import Scene, draw
from build_engines.demo_checkpoint.questions import Question, ask
from build_engines.demo_checkpoint.scenes import random_scene
from client import VlmClient

# skill of the question: (kinds of scenes that it is asked about, pictures a request, share of right answers aimed at)
SKILLS: dict[str, tuple[tuple[str, ...], int, float]] = {
    "colour": (("shape", "two shapes", "count shapes"), 1, 0.95),
    "shape": (("shape", "two shapes"), 1, 0.95),
    "position": (("shape", "object", "two shapes", "two objects"), 1, 0.95),
    "count": (("count shapes", "count objects", "shape", "two objects"), 1, 0.90),
    "which picture": (("shape", "object"), 2, 0.95),
    "object": (("object", "two objects"), 1, 0.85),
    "number": (("number",), 1, 0.70),
    "word": (("word",), 1, 0.70),
}


@dataclass(frozen=True)
class Sample:
    """A question with its picture files."""

    question: Question
    files: list[bytes]


def samples(skill: str, count: int, seed: int) -> Iterator[Sample]:
    """Held-out questions of one skill; the same for the same seed."""
    rng = np.random.default_rng([seed, list(SKILLS).index(skill)])
    kinds, pictures, _ = SKILLS[skill]
    made = 0
    while made < count:
        scenes = [random_scene(kinds[int(rng.integers(len(kinds)))], rng, held_out=True) for _ in range(pictures)]
        asked = [question for question in ask(scenes, rng) if question.skill == skill]
        if asked:
            made += 1
            yield Sample(asked[0], [_file(scene, rng) for scene in scenes])


def _file(scene: Scene, rng: np.random.Generator) -> bytes:
    picture = draw(scene, int(rng.integers(150, 800)), rng)
    buffer = io.BytesIO()
    if rng.random() < 0.5:
        picture.save(buffer, "JPEG", quality=int(rng.integers(60, 96)))
    else:
        picture.save(buffer, "PNG")
    return buffer.getvalue()


def main() -> None:
    """Ask, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="grpc://localhost:8001")
    parser.add_argument("--samples", type=int, default=100, help="questions of each skill")
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--json", type=Path, help="also write the shares to this file")
    options = parser.parse_args()
    shares: dict[str, float] = {}
    with VlmClient(options.url) as vlm, ThreadPoolExecutor(8) as pool:

        def right(sample: Sample) -> bool:
            answer = vlm.generate(sample.question.text, images=sample.files, max_tokens=24)
            return sample.question.is_right(answer.text)

        for skill in track(SKILLS, "asking"):
            results = list(pool.map(right, samples(skill, options.samples, options.seed)))
            shares[skill] = sum(results) / len(results)
    table = Table("skill", "right", "aimed at", title=f"{options.samples} held-out questions each")
    for skill, share in shares.items():
        table.add_row(skill, f"{share:.0%}", f"{SKILLS[skill][2]:.0%}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
