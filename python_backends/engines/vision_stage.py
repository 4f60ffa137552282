"""The vision encode stage as its Triton stub sees it: tiles of several requests in, their visual tokens out.

The worker makes features of tiles, whatever runtime it has; here the features of each picture become its tokens.
Batches form in Triton's queue while one is encoded, and here while none is: Triton's own delay (max_queue_delay) is the
same for the lone picture as for the first of many, so it is 0, and a batch that should wait waits here (`BatchWindow`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.errors import ServingError, Status, invalid
from python_backends.media.layout import Layout
from python_backends.media.packing import load_row_end, pack
from python_backends.media.tiling import Size
from python_backends.scheduling.window import BatchWindow
from python_backends.workers import SupervisedWorker, WorkerSpec
from python_backends.workers.targets import ENCODE, gpu_environment

log = logging.getLogger(__name__)

_CALL_TILES = 64  # tiles in one call of the worker, which cuts them into batches


@dataclass(frozen=True)
class Pictures:
    """A request: tiles uint8 [images, tiles, H, W, 3]; upright width and height of each image, int32 [images, 2]."""

    tiles: NDArray[np.uint8]
    sizes: NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """A request's visual tokens, float16 [images, tokens, hidden], and the milliseconds of its batch, float32."""

    visual_tokens: NDArray[np.float16]
    encode_ms: NDArray[np.float32]


@dataclass(frozen=True)
class Arrival:
    """A request that wants to be encoded."""

    pictures: Pictures
    coming: int  # pictures that were in decode when it left there
    answer: Callable[[Encoded | ServingError], None]  # called once, from any thread


class EncodeStage:
    """Owns the worker process; thread-safe."""

    def __init__(
        self, name: str, artifacts: Path, on_death: Callable[[str], None] | None = None, *, gpus: Sequence[int] = ()
    ) -> None:
        """`on_death` gets the reason whenever the worker is replaced; `gpus` are those that it may use."""
        self._checkpoint = load_checkpoint(artifacts)
        self._layout = Layout.of(self._checkpoint)
        self._row_end = load_row_end(artifacts / "vision") if self._layout.ends_rows else None
        pool = load_built_deployment(artifacts).pools.vision
        side, hidden = self._checkpoint.image_size, self._checkpoint.hidden_size
        tile_bytes = side * side * 3 + self._checkpoint.tokens_per_tile * hidden * 2
        self._worker = SupervisedWorker(
            WorkerSpec(
                name=name,
                target=ENCODE[pool.device],
                config={
                    "folder": str(artifacts / "vision"),
                    "image_size": side,
                    "batch_size": pool.batch_size,
                    "precision": pool.precision,
                    "threads": pool.threads,
                    "graph_batches": pool.graph_batches,
                },
                slots=2,
                slot_bytes=_CALL_TILES * tile_bytes + 4096,
                call_timeout_s=pool.timeout_ms / 1000,
                nice=pool.nice,
                environment=gpu_environment(gpus),
            ),
            on_death=on_death,
        )
        self._window = BatchWindow(pool.queue_delay_ms / 1000, pool.batch_size)
        self._encoding = threading.Lock()  # held while a batch is encoded; guards what follows
        self._waiting: list[Arrival] = []
        self._since_s = 0.0  # when the first of them came
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Load and warm up the model (ServingError)."""
        self._worker.start()

    def close(self) -> None:
        """End the worker process."""
        self._worker.close()

    def submit(self, arrivals: Sequence[Arrival]) -> None:
        """Encode requests, at once or with others that come within the window.

        Blocks while a batch is encoded, so that what comes meanwhile gathers in Triton's queue.
        """
        busy = self._encoding.locked()
        with self._encoding:
            if not self._waiting:
                self._since_s = time.monotonic()
            self._waiting += arrivals
            pictures = sum(len(arrival.pictures.tiles) for arrival in self._waiting)
            coming = max(arrivals[-1].coming, int(busy))  # after a batch: more have gathered, as a rule
            left_s = self._since_s + self._window.wait_s(pictures, coming) - time.monotonic()
            if left_s <= 0:
                self._encode_waiting()
            elif self._timer is None:
                self._timer = threading.Timer(left_s, self._window_over)
                self._timer.daemon = True
                self._timer.start()

    def reach(self) -> None:
        """Returns when the stage could take a request: after the batch that is encoded now."""
        with self._encoding:
            pass

    def _window_over(self) -> None:
        with self._encoding:
            self._encode_waiting()

    def _encode_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        try:
            answers = self.encode([arrival.pictures for arrival in batch])
        except Exception as error:  # a request that is never answered is the worst of all errors
            log.exception("vision_encoder")
            answers = [ServingError(Status.INTERNAL, f"not encoded ({type(error).__name__}: {error})")] * len(batch)
        for arrival, answer in zip(batch, answers, strict=True):
            try:
                arrival.answer(answer)
            except Exception:  # its client is gone: the others still get theirs
                log.exception("vision_encoder: not answered")

    def encode(self, requests: Sequence[Pictures]) -> list[Encoded | ServingError]:
        """Encode the pictures of several requests as one batch, by position."""
        refusals = [self._check(pictures) for pictures in requests]
        good = [pictures.tiles for pictures, refusal in zip(requests, refusals, strict=True) if refusal is None]
        if not good:
            return [refusal for refusal in refusals if refusal is not None]
        try:
            rows, milliseconds = self._encode(np.concatenate([tiles.reshape(-1, *tiles.shape[2:]) for tiles in good]))
        except ServingError as error:
            return [refusal or error for refusal in refusals]
        features = rows.reshape(-1, self._checkpoint.tokens_per_tile, rows.shape[-1])
        answers: list[Encoded | ServingError] = []
        at = 0
        for pictures, refusal in zip(requests, refusals, strict=True):
            if refusal is not None:
                answers.append(refusal)
                continue
            images, each = pictures.tiles.shape[:2]
            own = features[at : at + images * each].reshape(images, each, *features.shape[1:])
            answers.append(self._pack(own, pictures.sizes, milliseconds))
            at += images * each
        return answers

    def _pack(
        self, features: NDArray[np.float16], sizes: NDArray[np.int32], encode_ms: float
    ) -> Encoded | ServingError:
        tokens = [
            pack(tiles, Size(*size), self._layout, self._row_end)
            for tiles, size in zip(features, sizes.tolist(), strict=True)
        ]
        if len({len(own) for own in tokens}) > 1:
            return invalid("tiles", "pictures of different numbers of visual tokens: send each as a request of its own")
        return Encoded(np.stack(tokens), np.full((len(tokens), 1), encode_ms, np.float32))

    def _check(self, pictures: Pictures) -> ServingError | None:
        tiles, side = pictures.tiles, self._checkpoint.image_size
        if tiles.ndim != 5 or tiles.shape[2:] != (side, side, 3) or 0 in tiles.shape:
            shape = ", ".join(map(str, tiles.shape[1:]))
            return invalid("tiles", f"shape [{shape}] must be [tiles, {side}, {side}, 3]")
        if pictures.sizes.shape != (len(tiles), 2) or (pictures.sizes < 1).any():
            return invalid("picture_size", "must be the width and height of the picture, 1 or more")
        for size in pictures.sizes.tolist():
            expected = self._layout.tiles(Size(*size))
            if self._layout.ends_rows and tiles.shape[1] not in (1, expected):
                return invalid("tiles", f"{tiles.shape[1]} of a picture of {size[0]} x {size[1]}; it has {expected}")
        return None

    def _encode(self, tiles: NDArray[np.uint8]) -> tuple[NDArray[np.float16], float]:
        replies = [
            self._worker.call("encode", [tiles[first : first + _CALL_TILES]])
            for first in range(0, len(tiles), _CALL_TILES)
        ]
        tokens = np.concatenate([reply.arrays[0] for reply in replies])
        milliseconds = sum(float(reply.meta["encode_ms"]) for reply in replies)
        self._window.encoded(len(tiles), milliseconds / 1000)
        return tokens, milliseconds
