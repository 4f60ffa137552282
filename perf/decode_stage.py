"""Runs a decode stage as its Triton model does, and waits for what it answers; for measurements and tests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, parse_deployment
from python_backends.errors import ServingError
from python_backends.media.stage import Decoded, DecodeStage

Outcome = Decoded | ServingError


def artifacts_in(folder: Path, pool: dict[str, Any] | None = None, **limits: Any) -> Path:
    """As `tvlm build` leaves them for the stage, with tiles of 32 x 32."""
    checkpoint = Checkpoint(
        name="tiny", image_size=32, tokens_per_tile=4, hidden_size=8, vocab_size=100, kv_bytes_per_token=64,
        context_tokens=64, image_token="<image>", eos_token_ids=(0,),
    )  # fmt: skip
    deployment: Deployment = parse_deployment(
        {"checkpoint": "tiny", "limits": limits, "pools": {"preprocess": pool or {}}}, "test"
    )
    (folder / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (folder / BUILT_FILE).write_text(deployment.model_dump_json())
    return folder


def started(stage: DecodeStage) -> psutil.Process:
    """Starts the stage and gives its worker; other tests' servers may be children of this process too."""
    before = set(psutil.Process().children())
    stage.start()
    (worker,) = set(psutil.Process().children()) - before
    return worker


def submit(stage: DecodeStage, *images: object) -> Future[Outcome]:
    """One request of these images."""
    array = np.empty((len(images), 1), np.object_)
    array[:, 0] = images
    future: Future[Outcome] = Future()
    stage.submit(array, future.set_result)
    return future


def decode(stage: DecodeStage, *requests: Sequence[object]) -> list[Outcome]:
    """Several requests at once, and their answers by position."""
    return [future.result(60) for future in [submit(stage, *images) for images in requests]]
