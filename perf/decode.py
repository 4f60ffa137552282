"""Pictures a second from JPEG files to tiles, this product's path against its peers, in one run.

    pip install '.[perf]'       # OpenCV, PyTurboJPEG (which needs libturbojpeg on the system), DALI
    python -m perf.decode
    python -m perf.decode --size 384 --threads 4 --turbojpeg /usr/lib/x86_64-linux-gnu/libturbojpeg.so.0

Eight 1280 x 960 JPEG files, half photographs, half text. The rounds of all contestants take turns, and the best round
of each counts. The difference is to the reference processor (everything decoded, Pillow's bicubic filter with
antialias), mean absolute of 255 levels, the worst file; 2/255 of a pixel tensor from -1 to 1 is 1 level.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from python_backends.media.bicubic import bicubic
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from tests.media.scenes import photo, text

Tile = NDArray[np.uint8]
Batch = Callable[[list[bytes]], list[Tile]]
LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)
TOLERANCE = 1.0  # levels


def reference(file: bytes, size: int) -> Tile:
    """What the reference processor makes of the file."""
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


def contestants(size: int, threads: int, turbojpeg: str | None) -> dict[str, Batch]:
    """Each takes the files of a round and gives their tiles."""
    import cv2  # noqa: PLC0415
    from turbojpeg import TJPF_RGB, TJPF_RGBX, TurboJPEG  # noqa: PLC0415

    cv2.setNumThreads(1)
    turbo = TurboJPEG(turbojpeg)
    pool = ThreadPoolExecutor(threads)

    def parallel(one: Callable[[bytes], Tile]) -> Batch:
        return lambda files: list(pool.map(one, files))

    def opencv(file: bytes) -> Tile:
        whole = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
        tile: Tile = cv2.resize(whole, (size, size), interpolation=cv2.INTER_AREA)[..., ::-1]  # its only antialias
        return tile

    def turbojpeg_whole(file: bytes) -> Tile:
        return _bicubic(turbo.decode(file, pixel_format=TJPF_RGB), size)

    def turbojpeg_scaled(file: bytes) -> Tile:
        return _bicubic(turbo.decode(file, pixel_format=TJPF_RGB, scaling_factor=scale(file)), size)

    def scale(file: bytes) -> tuple[int, int]:
        """The smallest that keeps three times the tile, as this product lets Pillow do."""
        shorter = min(turbo.decode_header(file)[:2])
        return 1, next((n for n in (8, 4, 2) if shorter >= size * 3 * n), 1)

    def turbojpeg_vectorised(file: bytes) -> Tile:
        pixels = turbo.decode(file, pixel_format=TJPF_RGBX, scaling_factor=scale(file))
        whole = Image.frombuffer("RGBa", (pixels.shape[1], pixels.shape[0]), pixels, "raw", "RGBa", 0, 1)  # no copy
        return np.asarray(bicubic(whole, (size, size)))[..., :3]

    return {
        "triton-vlm": parallel(lambda file: decode(file, size, LIMITS)),
        "Pillow, everything decoded": parallel(lambda file: reference(file, size)),
        "OpenCV, area": parallel(opencv),
        "PyTurboJPEG, Pillow's filter": parallel(turbojpeg_whole),
        "PyTurboJPEG scaled, Pillow's filter": parallel(turbojpeg_scaled),
        "PyTurboJPEG scaled, the product's filter": parallel(turbojpeg_vectorised),
        "DALI CPU": _dali(size, threads),
    }


def _bicubic(pixels: Any, size: int) -> Tile:
    resized = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=4.0)
    return np.asarray(resized)


def _dali(size: int, threads: int) -> Batch:
    from nvidia.dali import fn, types  # noqa: PLC0415
    from nvidia.dali.pipeline import Pipeline  # noqa: PLC0415

    feed: list[bytes] = []
    pipeline = Pipeline(batch_size=8, num_threads=threads, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        files = fn.external_source(source=lambda: [np.frombuffer(f, np.uint8) for f in feed], dtype=types.UINT8)
        whole = fn.decoders.image(files, device="cpu", output_type=types.RGB)
        pipeline.set_outputs(fn.resize(whole, size=(size, size), interp_type=types.INTERP_CUBIC, antialias=True))

    def run(files: list[bytes]) -> list[Tile]:
        feed[:] = files
        (tiles,) = pipeline.run()
        return [np.array(tiles[i]) for i in range(len(files))]

    return run


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128, help="pixels of a tile's side (the demo's: 128)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turbojpeg", default=None, help="where libturbojpeg lies, when the loader does not know")
    options = parser.parse_args()
    files = []
    for draw in (photo, text):
        for quality in (75, 80, 85, 90):
            file = io.BytesIO()
            draw(1280, 960).save(file, "JPEG", quality=quality)
            files.append(file.getvalue())
    wanted = [reference(file, options.size).astype(float) for file in files]
    batches = contestants(options.size, options.threads, options.turbojpeg)
    worst = {
        name: max(float(np.abs(tile - want).mean()) for tile, want in zip(batch(files), wanted, strict=True))
        for name, batch in batches.items()
    }
    seconds = dict.fromkeys(batches, float("inf"))
    for _ in range(options.rounds):
        for name, batch in batches.items():
            begin = time.perf_counter()
            batch(files)
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    table = Table(title=f"1280 x 960 JPEG to {options.size} x {options.size}, {options.threads} threads")
    for column in ("path", "pictures/s", "of ours", "difference", "within tolerance"):
        table.add_column(column)
    for name in sorted(batches, key=lambda name: seconds[name]):
        table.add_row(
            name,
            f"{len(files) / seconds[name]:.0f}",
            f"{seconds['triton-vlm'] / seconds[name]:.2f}",
            f"{worst[name]:.2f}",
            "yes" if worst[name] <= TOLERANCE else "no",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
