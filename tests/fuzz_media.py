"""Feeds mutated files of every format to the real decode stage, and keeps the first that hurts.

    python -m tests.fuzz_media --minutes 30
    python -m tests.fuzz_media --minutes 1 --seed 7 --keep /tmp/culprits

A file hurts when the worker process dies or hangs, when it is answered by anything but tiles or one INVALID_ARG
sentence, when it takes more than 2 s of processor time, or when the worker's memory passes what docs/limits.md
promises.
"""

from __future__ import annotations

import argparse
import base64
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from perf.decode_stage import artifacts_in, started, submit
from python_backends.errors import ServingError, Status
from python_backends.media.stage import DecodeStage
from tests.media.make_corpus import FOLDER

SECONDS_A_FILE = 2.0
MEMORY_BYTES = 24 * 64_000_000 + 200_000_000  # a picture of the largest size, in the decoder that needs most
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
FILES = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}


class Culprit(AssertionError):
    """A file that hurt; the message says how."""

    def __init__(self, problem: str, file: bytes) -> None:
        super().__init__(problem)
        self.file = file


@dataclass
class Report:
    """What a run saw."""

    files: Counter[str] = field(default_factory=Counter)  # by suffix
    tiles: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    slowest: bytes = b""
    peak_bytes: int = 0

    def __str__(self) -> str:
        formats = ", ".join(f"{name} {count:,}" for name, count in sorted(self.files.items()))
        return (
            f"{self.files.total():,} files ({formats}): {self.tiles:,} tiles, {self.refused:,} refused; slowest "
            f"{self.slowest_s:.2f} s of processor time ({len(self.slowest):,} bytes); worker's memory at most "
            f"{self.peak_bytes / 1e6:,.0f} MB"
        )


def mutated(file: bytes, random_: random.Random) -> bytes:
    """The file with one to six things wrong, in ways that get past its first checks."""
    data = bytearray(file)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 6))):
        random_.choice(_MUTATIONS)(data, random_)
    if data.startswith(PNG_MAGIC) and random_.random() < 0.8:
        data = _with_right_checksums(data)
    if random_.random() < 0.05:
        return b"data:image/png;base64," + base64.b64encode(data)
    return bytes(data)


def _place(data: bytearray, random_: random.Random) -> int:
    """Headers are at the front, and where the damage is."""
    length = len(data)
    return random_.randrange(min(length, 256) if random_.random() < 0.5 else length) if length else 0


def _flip(data: bytearray, random_: random.Random) -> None:
    if data:
        data[_place(data, random_)] ^= 1 << random_.randrange(8)


def _number(data: bytearray, random_: random.Random) -> None:
    at, size, order = _place(data, random_), random_.choice((1, 2, 4)), random_.choice(("big", "little"))
    value = random_.choice(NUMBERS) & (1 << 8 * size) - 1
    data[at : at + size] = value.to_bytes(size, order)  # type: ignore[arg-type]


def _cut(data: bytearray, random_: random.Random) -> None:
    at = _place(data, random_)
    del data[at : at + random_.choice((1, 4, 40, 4000))]


def _repeat(data: bytearray, random_: random.Random) -> None:
    at = _place(data, random_)
    piece = data[at : at + random_.choice((1, 12, 200, 2000))]
    data[at:at] = piece * random_.choice((1, 2, 16, 200))


def _noise(data: bytearray, random_: random.Random) -> None:
    at = _place(data, random_)
    data[at : at + random_.randrange(1, 16)] = random_.randbytes(random_.randrange(1, 16))


def _graft(data: bytearray, random_: random.Random) -> None:
    other = random_.choice(list(FILES.values()))
    data[_place(data, random_) :] = other[random_.randrange(len(other)) :]


_MUTATIONS = (_flip, _flip, _number, _number, _number, _cut, _repeat, _noise, _graft)


def _with_right_checksums(data: bytearray) -> bytearray:
    """Else nearly every mutated PNG ends at its first checksum."""
    at = len(PNG_MAGIC)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return data


def fuzz(seconds: float, seed: int, report: Report) -> None:
    """Runs for that long; the report is filled as it goes (Culprit)."""
    random_ = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        stage = DecodeStage("image_decode", artifacts_in(Path(folder), {"threads": 1, "timeout_ms": 60_000}))
        try:
            worker = started(stage)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                name = random_.choice(list(FILES))
                report.files[name.rpartition(".")[2]] += 1
                _try(stage, worker, mutated(FILES[name], random_), report)
        finally:
            stage.close()


def _try(stage: DecodeStage, worker: psutil.Process, file: bytes, report: Report) -> None:
    before = worker.cpu_times()
    answer = submit(stage, file).result(60)
    if isinstance(answer, ServingError):
        report.refused += 1
        if answer.status is not Status.INVALID_ARG or not answer.message.startswith("image: "):
            raise Culprit(f"answered {answer.status.value}: {answer.message}", file)
    else:
        report.tiles += 1
    after = worker.cpu_times()
    seconds = after.user + after.system - before.user - before.system
    if seconds > report.slowest_s:
        report.slowest_s, report.slowest = seconds, file
    if seconds > SECONDS_A_FILE:
        raise Culprit(f"took {seconds:.1f} s of processor time", file)
    report.peak_bytes = peak_bytes(worker)
    if report.peak_bytes > MEMORY_BYTES:
        raise Culprit(f"the worker took {report.peak_bytes / 1e6:,.0f} MB", file)


def peak_bytes(process: psutil.Process) -> int:
    """The most memory it ever had (VmHWM, resident)."""
    (line,) = (line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


def main() -> None:
    """Run and print; exit code 1 and the file kept when something hurt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time, and printed")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for the culprit")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    report = Report()
    print(f"seed {seed}", flush=True)
    try:
        fuzz(60 * options.minutes, seed, report)
    except Culprit as culprit:
        options.keep.mkdir(parents=True, exist_ok=True)
        path = options.keep / f"culprit_{seed}_{report.files.total()}"
        path.write_bytes(culprit.file)
        print(f"{report}\n{path}: {culprit}")
        sys.exit(1)
    print(report)


if __name__ == "__main__":
    main()
