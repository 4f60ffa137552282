"""transformers' `generate` behind the product's gRPC call: one request after the other, as a plain script does it.

    python -m perf.peers.transformers_generate --checkpoint checkpoints/bench \\
        --artifacts build/bench-cpu/artifacts --port 9001

Float32 weights, where the product computes with the 4-bit ones; needs the extra `train`. Prompts, media decode and
detokenisation are the product's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from perf.baselines.loop import Job
from perf.baselines.service import VlmService, start
from perf.peers.model import load
from perf.peers.options import peer_parser
from python_backends.engines.protocol import VISUAL_TOKEN


class GenerateLoop:
    """Takes jobs as a TokenLoop does, and generates for one at a time in order of arrival."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = load(checkpoint)
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="generate", daemon=True).start()

    def add(self, job: Job) -> None:
        """Take a job; its tokens come to its callback. Thread-safe."""
        self._jobs.put(job)

    def _run(self) -> None:
        try:
            while True:
                job = self._jobs.get()
                with contextlib.suppress(_CancelledError):
                    if not job.cancelled:
                        self._generate(job)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # a server without its loop would only hang its clients

    @torch.inference_mode()
    def _generate(self, job: Job) -> None:
        config = self._model.config
        ids = torch.from_numpy(job.prompt.with_visual_tokens([config.image_seq_length] * len(job.tiles))).long()
        ids = torch.where(ids == VISUAL_TOKEN, config.image_token_index, ids)[None]
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if len(job.tiles):
            inputs["pixel_values"] = torch.from_numpy(job.tiles).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        sampling = job.sampling
        self._model.generate(
            **inputs,
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.max_tokens if sampling.ignore_eos else sampling.min_tokens,
            do_sample=False,
            streamer=_Streamer(job),
        )


class _CancelledError(Exception):
    """The client went away."""


class _Streamer(BaseStreamer):
    """Hands tokens on as they come; what comes first is the prompt."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made = -1

    def put(self, value: Any) -> None:
        """One step's token (_CancelledError: nobody waits for it)."""
        if self._job.cancelled:
            raise _CancelledError
        self._made += 1
        if self._made:
            self._job.on_tokens(value.tolist(), self._made == self._job.sampling.max_tokens, "")

    def end(self) -> None:
        """It stopped before its limit."""
        if self._made != self._job.sampling.max_tokens:
            self._job.on_tokens([], True, "")


def main() -> None:
    """Load, then serve until Ctrl-C or SIGTERM."""
    parser = peer_parser(__doc__)
    parser.add_argument("--artifacts", type=Path, required=True, help="folder `artifacts` of a composed deployment")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    service = VlmService(options.artifacts, GenerateLoop(options.checkpoint), threads)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(service, options.port))


async def _serve(service: VlmService, port: int) -> None:
    server, _ = await start(service, port)
    await server.wait_for_termination()


if __name__ == "__main__":
    main()
