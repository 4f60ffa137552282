"""The media decode stage as its Triton stub sees it: a request in, tiles or an error out as soon as they are there.

Every picture is a call of its own in the worker process, so none waits for a slower one that came with it. Large
pictures have threads of their own, and share the memory of one picture of the largest size; small ones pass them by.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.errors import ServingError, Status
from python_backends.media.lanes import Budget, Company, Tally
from python_backends.media.layout import Layout
from python_backends.media.limits import SMALL_PIXELS, ImageLimits, refuse
from python_backends.media.payload import unwrap
from python_backends.media.sniff import ImageHeader, read_header
from python_backends.workers import SupervisedWorker, WorkerSpec
from python_backends.workers.targets import DECODE, gpu_environment

log = logging.getLogger(__name__)

_SMALL_BYTES = 4_000_000  # of a file; more of them take long to read whatever they show
_MIN_SLOT_BYTES = 32 << 20


@dataclass(frozen=True)
class _Picture:
    tiles: NDArray[np.uint8]  # [images, tiles, H, W, 3]
    picture_size: NDArray[np.int32]  # [images, 2]: width and height, upright
    decode_ms: NDArray[np.float32]  # [images, 1]


@dataclass(frozen=True)
class Decoded(_Picture):
    """A request's pictures, as the model's outputs are named.

    `in_decode`, int32 [images, 1]: how many pictures of other requests the stage had not answered then.
    """

    in_decode: NDArray[np.int32]


_Item = _Picture | ServingError  # one image, or why there is none
Answer = Callable[[Decoded | ServingError], None]


class DecodeStage:
    """Owns the worker process; thread-safe."""

    def __init__(
        self, name: str, artifacts: Path, on_death: Callable[[str], None] | None = None, *, gpus: Sequence[int] = ()
    ) -> None:
        """`on_death` gets the reason whenever the worker is replaced; `gpus` are those that it may use."""
        deployment = load_built_deployment(artifacts)
        pool = deployment.pools.preprocess
        checkpoint = load_checkpoint(artifacts)
        tiles_bytes = Layout.of(checkpoint).most_pixels * 3
        threads = pool.threads or len(os.sched_getaffinity(0))
        self._limits = ImageLimits.of(deployment.limits)
        self._timeout_s = pool.timeout_ms / 1000
        self._small, self._large = (ThreadPoolExecutor(threads, lane) for lane in ("small", "large"))
        self._large_pixels = Budget(self._limits.max_pixels)
        self._waiting_bytes = Budget(pool.batch_size * self._limits.max_payload_bytes)
        self._company = Company()
        self._in_decode = Tally()
        self._worker = SupervisedWorker(
            WorkerSpec(
                name=name,
                target=DECODE[pool.device],
                config={
                    "checkpoint": checkpoint.model_dump(mode="json"),
                    "max_bytes": self._limits.max_bytes,
                    "max_pixels": self._limits.max_pixels,
                    "max_side": self._limits.max_side,
                    "threads": threads,
                    "batch_size": pool.batch_size,
                    "hw_decoder_load": pool.hw_decoder_load,
                },
                slots=2 * threads,
                slot_bytes=max(_MIN_SLOT_BYTES, self._limits.max_bytes + tiles_bytes + 4096),
                call_timeout_s=self._timeout_s,
                environment=gpu_environment(gpus),
            ),
            on_death=on_death,
        )

    def start(self) -> None:
        """Start the worker process (ServingError)."""
        self._worker.start()

    def close(self) -> None:
        """End the worker process; what waits is not decoded any more."""
        for lane in (self._small, self._large):
            lane.shutdown(wait=False, cancel_futures=True)
        self._worker.close()

    def submit(self, request: NDArray[np.object_], answer: Answer, alone: bool = True) -> None:
        """Decode the `image` tensor of one request ([images, 1], payloads as clients sent them).

        `alone` says whether the picture is the only one of the client's request (see media/layout.py).
        `answer` is called once, from any thread, as soon as its last image is done. Blocks while too many bytes wait:
        they lie in Triton's shared memory until they are answered.
        """
        images = list(request.reshape(-1))
        weight = sum(len(image) for image in images if isinstance(image, bytes))
        self._waiting_bytes.take(weight)
        self._in_decode.add(len(images))

        def finish(items: Sequence[_Item]) -> None:
            others = self._in_decode.add(-len(images))
            try:
                answer(_together(items, others))
            finally:
                self._waiting_bytes.give_back(weight)

        gather = _Gather(len(images), finish)
        for index, image in enumerate(images):
            self._start(image, alone, lambda item, index=index: gather.put(index, item))  # type: ignore[misc]

    def _start(self, image: object, alone: bool, done: Callable[[_Item], None]) -> None:
        try:
            if not isinstance(image, bytes):
                raise refuse(f"must be bytes, not {type(image).__name__}")
            data = unwrap(image, self._limits)
            header = read_header(data, self._limits)
        except ServingError as refusal:
            done(refusal)
            return
        small = header.width * header.height <= SMALL_PIXELS and len(data) <= _SMALL_BYTES
        lane, run = (self._small, self._decode) if small else (self._large, self._decode_large)
        lane.submit(lambda: done(_whatever_happens(lambda: run(data, header, alone))))

    def _decode_large(self, data: bytes, header: ImageHeader, alone: bool) -> _Item:
        with self._large_pixels.hold(header.width * header.height):
            return self._decode(data, header, alone)

    def _decode(self, data: bytes, header: ImageHeader, alone: bool) -> _Item:
        """One picture; when the worker died or hung, once more, alone, so that only the culprit fails."""
        with self._company.beside() as visit:
            started = time.monotonic()
            try:
                return self._call(data, header, alone)
            except ServingError as error:
                if error.status is not Status.UNAVAILABLE or not visit.shared:
                    raise
                first = error
        with self._company.alone():
            if time.monotonic() - started > 2 * self._timeout_s:  # behind others that hang
                raise first
            return self._call(data, header, alone)

    def _call(self, data: bytes, header: ImageHeader, alone: bool) -> _Item:
        reply = self._worker.call("decode", [np.frombuffer(data, np.uint8)], {**vars(header), "alone": alone})
        error = reply.meta["error"]
        if error:
            return refuse(error.removeprefix("image: "))
        size, decode_ms = header.upright_size, reply.meta["decode_ms"]
        return _Picture(reply.arrays[0][np.newaxis], np.array([size], np.int32), np.array([[decode_ms]], np.float32))


class _Gather:
    """Puts the images of a request together again, whatever the order they are done in."""

    def __init__(self, count: int, finish: Callable[[Sequence[_Item]], None]) -> None:
        self._items: dict[int, _Item] = {}
        self._count = count
        self._finish = finish
        self._lock = threading.Lock()
        if count == 0:
            finish([])

    def put(self, index: int, item: _Item) -> None:
        with self._lock:
            self._items[index] = item
            complete = len(self._items) == self._count
        if complete:
            self._finish([self._items[i] for i in range(self._count)])


def _whatever_happens(run: Callable[[], _Item]) -> _Item:
    """A request that is never answered is the worst of all errors."""
    try:
        return run()
    except ServingError as error:
        return error
    except Exception as error:
        log.exception("image_decode")
        return ServingError(Status.INTERNAL, f"image: not decoded ({type(error).__name__}: {error})")


def _together(items: Sequence[_Item], others: int) -> Decoded | ServingError:
    good = []
    for item in items:
        if isinstance(item, ServingError):
            return item
        good.append(item)
    if not good:
        return refuse("it holds no element")
    if len({item.tiles.shape for item in good}) > 1:
        shapes = ", ".join("x".join(map(str, item.tiles.shape[1:4])) for item in good)
        return refuse(f"pictures of {shapes} (tiles, height, width) don't fit into one tensor: send each by itself")

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(item, name) for item in good])

    others_each = np.full((len(good), 1), others, np.int32)
    return Decoded(joined("tiles"), joined("picture_size"), joined("decode_ms"), others_each)
