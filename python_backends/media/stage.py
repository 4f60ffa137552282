"""The media decode stage as its Triton stub sees it: batches of requests in, tiles or errors out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.errors import ServingError, Status
from python_backends.media.limits import ImageLimits, refuse
from python_backends.workers import SupervisedWorker, WorkerSpec

_MIN_SLOT_BYTES = 64 << 20


@dataclass(frozen=True)
class Decoded:
    """A request's pictures: tiles uint8 [images, tiles, H, W, 3], and the milliseconds each image took, float32."""

    tiles: NDArray[np.uint8]
    decode_ms: NDArray[np.float32]


_Item = tuple[NDArray[np.uint8], float] | ServingError  # tiles of one image and its time, or why there are none


class DecodeStage:
    """Owns the worker process; thread-safe."""

    def __init__(self, name: str, artifacts: Path, on_death: Callable[[str], None] | None = None) -> None:
        """`on_death` gets the reason whenever the worker is replaced."""
        deployment = load_built_deployment(artifacts)
        pool = deployment.pools.preprocess
        tile_size = load_checkpoint(artifacts).image_size
        self._limits = ImageLimits.of(deployment.limits)
        replies = pool.batch_size * (tile_size * tile_size * 3 + 4096)
        slot_bytes = max(_MIN_SLOT_BYTES, self._limits.max_payload_bytes + 4096 + replies)
        self._call_bytes = slot_bytes - replies
        self._call_images = pool.batch_size
        self._timeout_s = pool.timeout_ms / 1000
        self._worker = SupervisedWorker(
            WorkerSpec(
                name=name,
                target="python_backends.media.worker:DecodeWorker",
                config={
                    "tile_size": tile_size,
                    "max_bytes": self._limits.max_bytes,
                    "max_pixels": self._limits.max_pixels,
                },
                slots=2,
                slot_bytes=slot_bytes,
                call_timeout_s=self._timeout_s,
            ),
            on_death=on_death,
        )

    def start(self) -> None:
        """Start the worker process (ServingError)."""
        self._worker.start()

    def close(self) -> None:
        """End the worker process."""
        self._worker.close()

    def decode(self, requests: Sequence[NDArray[np.object_]]) -> list[Decoded | ServingError]:
        """Decode the `image` tensors of several requests ([images, 1], payloads as clients sent them), by position."""
        images = [image for request in requests for image in request.reshape(-1)]
        items: list[_Item] = [self._check(image) or _NOT_DONE for image in images]
        for group in self._groups([index for index, item in enumerate(items) if item is _NOT_DONE], images):
            for index, item in zip(group, self._decode_group([images[i] for i in group]), strict=True):
                items[index] = item
        answers: list[Decoded | ServingError] = []
        at = 0
        for request in requests:
            answers.append(_together(items[at : at + request.size]))
            at += request.size
        return answers

    def _check(self, image: object) -> ServingError | None:
        if not isinstance(image, bytes):
            return refuse(f"must be bytes, not {type(image).__name__}")
        try:
            self._limits.check_payload(len(image))
        except ServingError as refusal:
            return refusal
        return None

    def _groups(self, indices: Sequence[int], images: Sequence[bytes]) -> list[list[int]]:
        """What fits into one call of the worker."""
        groups: list[list[int]] = []
        room = 0
        for index in indices:
            need = len(images[index]) + 64  # arrays are aligned
            if not groups or need > room or len(groups[-1]) == self._call_images:
                groups.append([])
                room = self._call_bytes
            groups[-1].append(index)
            room -= need
        return groups

    def _decode_group(self, images: Sequence[bytes]) -> list[_Item]:
        try:
            reply = self._worker.call("decode", [np.frombuffer(image, np.uint8) for image in images])
        except ServingError as error:
            if error.status is not Status.UNAVAILABLE or len(images) == 1:
                return [error] * len(images)
            # The worker died or hung: one picture did it, so each goes alone, and only the culprit fails.
            return self._one_by_one(images, error)
        return [
            refuse(error.removeprefix("image: ")) if error else (tiles, milliseconds)
            for tiles, error, milliseconds in zip(
                reply.arrays, reply.meta["errors"], reply.meta["decode_ms"], strict=True
            )
        ]

    def _one_by_one(self, images: Sequence[bytes], error: ServingError) -> list[_Item]:
        """Within the time of two hangs; what is left then shares the first error."""
        deadline = time.monotonic() + 2 * self._timeout_s
        items: list[_Item] = []
        for image in images:
            items += self._decode_group([image]) if time.monotonic() < deadline else [error]
        return items


_NOT_DONE = ServingError(Status.INTERNAL, "image: not decoded")


def _together(items: Sequence[_Item]) -> Decoded | ServingError:
    tiles, times = [], []
    for item in items:
        if isinstance(item, ServingError):
            return item
        tiles.append(item[0])
        times.append(item[1])
    if not tiles:
        return refuse("it holds no element")
    return Decoded(np.stack(tiles), np.array(times, np.float32)[:, np.newaxis])
