"""The vision encode stage as its Triton stub sees it: tiles of several requests in, their visual tokens out.

The worker makes features, whatever runtime it has; here the features of each picture become its tokens (`towers`).
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
from python_backends.embeddings.target import PageTarget
from python_backends.engines.placement import Placed, calls
from python_backends.engines.towers import tower_of
from python_backends.errors import ServingError, Status, invalid, untagged
from python_backends.media.tiling import Size
from python_backends.scheduling.window import BatchWindow
from python_backends.workers import SupervisedWorker, WorkerSpec
from python_backends.workers.supervisor import SILENCE_S
from python_backends.workers.targets import gpu_environment
from python_backends.workers.turns import MARK, OFTEN_STOPPED_S

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pictures:
    """A request: tiles uint8 [images, tiles, H, W, 3] (see media/layout.py), and upright sizes of the images.

    `sizes` are width and height, int32 [images, 2]; `target` is where the visual tokens of a single image may go.
    """

    tiles: NDArray[np.uint8]
    sizes: NDArray[np.int32]
    target: PageTarget | None = None


@dataclass(frozen=True)
class Encoded:
    """A request's visual tokens, float16 [images, tokens, hidden], and the milliseconds of its batch, float32.

    [images, 0, hidden]: they are where its target says.
    """

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
        self._tower = tower_of(load_checkpoint(artifacts), artifacts)
        pool = load_built_deployment(artifacts).pools.vision
        self._on_gpu = pool.device == "gpu"
        self._worker = SupervisedWorker(
            WorkerSpec(
                name=name,
                target=self._tower.targets[pool.device],
                config={
                    **self._tower.config,
                    "folder": str(artifacts / "vision"),
                    "batch_size": pool.batch_size,
                    "precision": pool.precision,
                    "threads": pool.threads,
                    "graph_batches": pool.graph_batches,
                },
                slots=2,
                slot_bytes=self._tower.slot_bytes,
                call_timeout_s=pool.timeout_ms / 1000,
                silence_s=OFTEN_STOPPED_S if pool.gives_way else SILENCE_S,
                nice=pool.nice,
                environment={**gpu_environment(gpus), **({MARK: "1"} if pool.gives_way else {})},
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
        """Encode the pictures of several requests as one batch, by position; one batch for each pool they go into."""
        answers: dict[int, Encoded | ServingError] = {}
        batches: dict[str, list[int]] = {}
        placed: dict[int, Placed] = {}
        for index, pictures in enumerate(requests):
            try:
                self._check(pictures)
                plan = self._plan(pictures)
            except ServingError as refusal:
                answers[index] = refusal
                continue
            if plan is not None:
                placed[index] = plan
            batches.setdefault(plan.target.pool if plan else "", []).append(index)
        for pool, batch in batches.items():
            try:
                if pool:
                    encoded = self._encode_into(pool, [placed[index] for index in batch])
                else:
                    encoded = self._encode_out([requests[index] for index in batch])
            except ServingError as error:
                encoded = [error] * len(batch)
            answers |= dict(zip(batch, encoded, strict=True))
        return [answers[index] for index in range(len(requests))]

    def _plan(self, pictures: Pictures) -> Placed | None:
        """How it goes into pages, if it is to and can (ServingError)."""
        target = pictures.target if self._on_gpu else None
        if target is None:
            return None
        if len(pictures.tiles) != 1:
            raise invalid("pool", f"goes with one picture a request, not {len(pictures.tiles)}")
        return Placed.plan(self._tower, pictures.tiles[0], Size(*pictures.sizes[0].tolist()), target)

    def _encode_into(self, pool: str, pictures: Sequence[Placed]) -> list[Encoded | ServingError]:
        milliseconds = 0.0
        for arrays in calls(self._tower, pictures):
            meta = self._worker.call("encode_into", arrays, {"pool": pool}).meta
            if "refused" in meta:
                raise untagged(meta["refused"])
            milliseconds += float(meta["encode_ms"])
        self._window.encoded(sum(len(picture.tiles) for picture in pictures), milliseconds / 1000)
        nothing = np.zeros((1, 0, self._tower.row_end.shape[1]), np.float16)
        return [Encoded(nothing, np.full((1, 1), milliseconds, np.float32)) for _ in pictures]

    def _encode_out(self, requests: Sequence[Pictures]) -> list[Encoded | ServingError]:
        rows, milliseconds = self._encode([tiles for request in requests for tiles in request.tiles])
        answers = []
        for pictures in requests:
            own, rows = rows[: len(pictures.tiles)], rows[len(pictures.tiles) :]
            answers.append(self._pack(own, pictures.sizes, milliseconds))
        return answers

    def _pack(
        self, rows: Sequence[NDArray[np.float16]], sizes: NDArray[np.int32], encode_ms: float
    ) -> Encoded | ServingError:
        tokens = [self._tower.tokens(own, Size(*size)) for own, size in zip(rows, sizes.tolist(), strict=True)]
        if len({len(own) for own in tokens}) > 1:
            return invalid("tiles", "pictures of different numbers of visual tokens: send each as a request of its own")
        return Encoded(np.stack(tokens), np.full((len(tokens), 1), encode_ms, np.float32))

    def _check(self, pictures: Pictures) -> None:
        """Raise ServingError for what can't be encoded."""
        tiles = pictures.tiles
        if tiles.ndim != 5 or tiles.shape[4] != 3 or 0 in tiles.shape:
            raise invalid("tiles", f"shape {list(tiles.shape[1:])} must be [tiles, height, width, 3]")
        if pictures.sizes.shape != (len(tiles), 2) or (pictures.sizes < 1).any():
            raise invalid("picture_size", "must be the width and height of the picture, 1 or more")
        for own, size in zip(tiles, pictures.sizes.tolist(), strict=True):
            refusal = self._tower.refusal(own, Size(*size))
            if refusal is not None:
                raise refusal

    def _encode(self, pictures: Sequence[NDArray[np.uint8]]) -> tuple[list[NDArray[np.float16]], float]:
        """Rows of the tower for each picture, and the milliseconds of all."""
        replies = [self._worker.call("encode", arrays) for arrays in self._tower.calls(pictures)]
        rows = np.concatenate([array for reply in replies for array in reply.arrays])
        milliseconds = sum(float(reply.meta["encode_ms"]) for reply in replies)
        self._window.encoded(sum(len(tiles) for tiles in pictures), milliseconds / 1000)
        ends = np.cumsum([self._tower.rows(tiles) for tiles in pictures])
        return np.split(rows, ends[:-1]), milliseconds
