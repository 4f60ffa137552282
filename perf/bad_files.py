"""A load of pictures of which some are bad, on a real server: who fails, why, and what it costs the others.

    tvlm serve --deployment deployments/demo-cpu.yaml
    python -m perf.bad_files --requests 1000 --bad 0.1
    python -m perf.bad_files --requests 1000 --bad 0        # the same good pictures alone

Every request asks for one token about one picture. Good ones are all different; bad ones take turns among ten kinds,
each of which has its own reason to be refused. Good pictures a second are counted over the time of the whole load, in
which the bad ones come on top.
"""

from __future__ import annotations

import argparse
import io
import random
import struct
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from client import VlmClient, VlmError


@dataclass(frozen=True)
class Case:
    """A picture, and a part of the refusal it must meet (None: an answer)."""

    file: bytes
    reason: str | None


@dataclass(frozen=True)
class Outcome:
    """What a load came to."""

    answered: int
    refused: Counter[str]  # by the reason that was expected
    wrong: list[str]  # every answer that should have been another
    seconds: float


def good(number: int) -> bytes:
    """A photograph-like JPEG that no other number gives."""
    noise = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def bad_kinds(number: int) -> list[Case]:
    """The ten kinds; `number` makes the files differ."""
    jpeg = good(1_000_000 + number)
    png_header = struct.pack(">II5B", 50_000, 50_000, 1, 0, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", png_header)
        + _chunk(b"IDAT", str(number).encode())
        + _chunk(b"IEND", b"")
    )
    corrupt = bytearray(_png(number))
    corrupt[len(corrupt) // 2] ^= 0xFF
    return [
        Case(b"", "it is empty"),
        Case(f"not a picture! {number}".encode(), "is not supported (accepted: JPEG"),
        Case(f"<svg xmlns='http://www.w3.org/2000/svg' id='{number}'/>".encode(), "SVG is not supported"),
        Case(f"%PDF-1.7 {number}".encode(), "PDF is not supported"),
        Case(f"https://example.com/{number}.png".encode(), "a https: URL is not fetched"),
        Case(f"data:image/png;base64,iVBOR*{number}".encode(), "is not valid base64"),
        Case(jpeg[:20], "has no readable header"),
        Case(jpeg[: len(jpeg) // 2], "truncated"),
        Case(bomb, "= 2,500,000,000 pixels are over the limit"),
        Case(bytes(corrupt), "can't be decoded"),
    ]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def cases(requests: int, bad: float, seed: int) -> list[Case]:
    """The load, shuffled; the same seed gives the same good pictures whatever the share of bad ones."""
    bad_count = round(requests * bad)
    load = [Case(good(seed * 1_000_003 + i), None) for i in range(requests - bad_count)]
    for i in range(bad_count):
        kinds = bad_kinds(seed * 1_000_003 + i)
        load.append(kinds[i % len(kinds)])
    random.Random(seed).shuffle(load)
    return load


def run(endpoint: str, load: list[Case], clients: int) -> Outcome:
    """Send the load, so many requests at a time."""

    def ask(case: Case) -> str | None:
        try:
            vlm.generate("What is it?", images=[case.file], max_tokens=1)
            return None
        except VlmError as error:
            return f"{error.status}: {error.message}"

    with VlmClient(endpoint) as vlm, ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(ask, load))
        seconds = time.perf_counter() - begin
    refused: Counter[str] = Counter()
    wrong = []
    for case, answer in zip(load, answers, strict=True):
        if case.reason is None or answer is None:
            if (case.reason is None) != (answer is None):
                wrong.append(f"expected {case.reason}, got {answer}")
        elif case.reason in answer and ("image[0]: " in answer):
            refused[case.reason] += 1
        else:
            wrong.append(f"expected {case.reason}, got {answer}")
    return Outcome(sum(answer is None for answer in answers), refused, wrong, seconds)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="grpc://localhost:8001")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--bad", type=float, default=0.1, help="share of bad files")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="another one, for pictures that the cache has not seen")
    options = parser.parse_args()
    load = cases(options.requests, options.bad, options.seed)
    outcome = run(options.endpoint, load, options.clients)
    print(
        f"{len(load):,} requests in {outcome.seconds:.1f} s: {outcome.answered:,} answered "
        f"({outcome.answered / outcome.seconds:.1f} a second), {outcome.refused.total():,} refused, "
        f"{len(outcome.wrong):,} wrong"
    )
    for reason, count in sorted(outcome.refused.items()):
        print(f"  {count:4} refused: ... {reason} ...")
    for sentence in outcome.wrong[:10]:
        print(f"  wrong: {sentence}")


if __name__ == "__main__":
    main()
