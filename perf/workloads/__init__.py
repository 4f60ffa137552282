"""Workloads: who asks what, when. Seeded, kept in a file, replayed by any run.

from perf.workloads import make_workload
make_workload("azure-lmm", rate=2.0, seconds=60, seed=1).save(Path("azure.jsonl"))
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from zlib import crc32

import numpy as np

from perf.workloads import payload, shapes, sizes
from perf.workloads.request import MODALITIES, Picture, Request, Workload, load_workload

__all__ = ["MODALITIES", "SHAPES", "Picture", "Request", "Workload", "load_workload", "make_workload"]

SHAPES: dict[str, shapes.Shape] = {
    "azure-lmm": shapes.azure_lmm,
    "servegen-mm": shapes.servegen_mm,
    "mix-80-15-5": shapes.mix_80_15_5,
    "image-burst": shapes.image_burst,
    "single-text": shapes.single_text,
    "single-image": shapes.single_image,
    # Azure's shape at other shares of image requests, in percent
    **{f"share-{share}": partial(shapes.azure_lmm, image_share=share / 100) for share in (10, 25, 52)},
}
MOST_REQUESTS = 100_000
_NOTES = (
    f"trace lengths x {sizes.TOKEN_SCALE:g}, at most {sizes.LONGEST_PROMPT} prompt and {sizes.LONGEST_ANSWER} answer "
    f"tokens; at most {sizes.MOST_PICTURES} pictures a request; every picture and prompt is new (caches stay cold); "
    "a video is a request with many pictures"
)


def make_workload(name: str, *, rate: float, seconds: float, seed: int) -> Workload:
    """A workload of this shape: `rate` requests a second on average, arriving within `seconds`.

    The same arguments give the same requests.

    Raises:
        ValueError: no shape has this name, rate or seconds are not positive, or there would be too many requests.
    """
    if name not in SHAPES:
        raise ValueError(f"workload {name!r} is not one of {', '.join(SHAPES)}")
    if not (rate > 0 and seconds > 0):
        raise ValueError(f"rate and seconds must be positive, got {rate} and {seconds}")
    if rate * seconds > MOST_REQUESTS:
        raise ValueError(f"rate {rate:g} x seconds {seconds:g} are over the limit of {MOST_REQUESTS:,} requests")
    # a stream of its own for every name: else workloads of one seed would share pictures, and caches would be warm
    rng = np.random.default_rng([seed, crc32(name.encode())])
    return Workload(name, rate, seconds, seed, _NOTES, tuple(_requests(name, rng, rate, seconds)))


def _requests(name: str, rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Request]:
    for number, draw in enumerate(SHAPES[name](rng, rate, seconds)):
        prompt = payload.prompt_text(int(rng.integers(1 << 31)), draw.prompt_tokens)
        pictures = tuple(payload.picture(rng) for _ in range(draw.pictures))
        yield Request(number, round(draw.at_s, 6), draw.modality, prompt, pictures, draw.answer_tokens)
