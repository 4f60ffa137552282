"""The workloads: what arrives when. Each takes a random generator, a rate (requests/s) and a length (s)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from perf.workloads import arrivals, sizes

BURST = (1 / 3, 2 / 3)  # where in an image-burst the requests carry many pictures
_BURST_EVERY = 4  # requests from one with pictures to the next: no luck, so that short runs have their burst too
_BURST_PICTURES = (10, sizes.MOST_PICTURES)
_VIDEO_PICTURES = 8  # a short clip's keyframes
_TRACE_MINUTES = 20  # of the Azure trace in one run, whatever its length
_SERVEGEN_TEXT_SHARE = 0.3


@dataclass(frozen=True)
class Draw:
    """A request before it has a prompt and pictures."""

    at_s: float
    modality: str
    pictures: int
    prompt_tokens: int
    answer_tokens: int


Shape = Callable[[np.random.Generator, float, float], Iterator[Draw]]


def azure_lmm(
    rng: np.random.Generator, rate: float, seconds: float, image_share: float | None = None
) -> Iterator[Draw]:
    """Azure's multimodal trace of 2025: its minutes' ups and downs, half of the requests with pictures."""
    data = sizes.trace("azure_lmm2025.json")
    minutes = np.array(data["requests_per_minute"], float)
    begin = int(rng.integers(len(minutes) - _TRACE_MINUTES))
    share = data["image_share"] if image_share is None else image_share
    stretch = minutes[begin : begin + _TRACE_MINUTES]
    for at_s in arrivals.modulated(rng, rate / stretch.mean() * stretch, seconds):  # so that every seed has the load
        image = rng.random() < share
        yield Draw(
            at_s,
            "image" if image else "text",
            sizes.from_counts(rng, data["images_per_request"]) if image else 0,
            sizes.prompt_tokens(sizes.from_quantiles(rng, data["context_text_quantiles"])),
            sizes.answer_tokens(
                sizes.from_quantiles(rng, data["output_image_quantiles" if image else "output_text_quantiles"])
            ),
        )


def servegen_mm(rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Draw]:
    """ServeGen's mm-image clients, every field drawn independently, and a text stream of Azure's conversations."""
    clients = sizes.trace("servegen_mm_image.json")["clients"]
    share = rate * (1 - _SERVEGEN_TEXT_SHARE) / sum(client["rate"] for client in clients)
    draws = [
        Draw(
            at_s,
            "image",
            max(1, sizes.from_counts(rng, client["image_count"])),
            sizes.prompt_tokens(sizes.one_of(rng, client["text_tokens"])),
            sizes.answer_tokens(sizes.one_of(rng, client["output_tokens"])),
        )
        for client in clients
        for at_s in arrivals.renewal(_gap(rng, client["family"], client["shape"], client["rate"] * share), seconds)
    ]
    draws += [_conversation(rng, at_s) for at_s in arrivals.poisson(rng, rate * _SERVEGEN_TEXT_SHARE, seconds)]
    yield from sorted(draws, key=lambda draw: draw.at_s)


def image_burst(rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Draw]:
    """A constant rate; every fourth request has a picture, and in the middle third ten or more."""
    for index, at_s in enumerate(arrivals.poisson(rng, rate, seconds)):
        draw = _conversation(rng, at_s)
        if index % _BURST_EVERY == _BURST_EVERY // 2:
            burst = BURST[0] <= at_s / seconds < BURST[1]
            yield _with_pictures(draw, int(rng.integers(_BURST_PICTURES[0], _BURST_PICTURES[1] + 1)) if burst else 1)
        else:
            yield draw


def mix_80_15_5(rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Draw]:
    """Poisson: 80 % text, 15 % with a picture, 5 % video (many pictures)."""
    for at_s in arrivals.poisson(rng, rate, seconds):
        draw, chance = _conversation(rng, at_s), rng.random()
        if chance < 0.80:
            yield draw
        elif chance < 0.95:
            yield _with_pictures(draw, 1)
        else:
            yield _with_pictures(draw, _VIDEO_PICTURES, "video")


def single_text(rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Draw]:
    """Poisson, text only."""
    for at_s in arrivals.poisson(rng, rate, seconds):
        yield _conversation(rng, at_s)


def single_image(rng: np.random.Generator, rate: float, seconds: float) -> Iterator[Draw]:
    """Poisson, every request with one picture."""
    for at_s in arrivals.poisson(rng, rate, seconds):
        yield _with_pictures(_conversation(rng, at_s), 1)


def _conversation(rng: np.random.Generator, at_s: float) -> Draw:
    context, generated = sizes.one_of(rng, sizes.trace("azure_llm2023_conv.json")["context_and_generated_tokens"])
    return Draw(at_s, "text", 0, sizes.prompt_tokens(context), sizes.answer_tokens(generated))


def _with_pictures(draw: Draw, pictures: int, modality: str = "image") -> Draw:
    return Draw(draw.at_s, modality, pictures, draw.prompt_tokens, draw.answer_tokens)


def _gap(rng: np.random.Generator, family: str, shape: float, rate: float) -> Callable[[], float]:
    """Gaps of a family and shape with a mean of 1 / rate seconds."""
    if family == "Gamma":
        return lambda: float(rng.gamma(shape)) / shape / rate
    mean = math.gamma(1 + 1 / shape)
    return lambda: float(rng.weibull(shape)) / mean / rate
