"""The LLM engine and the vision tower called in this process: the bound that the product is compared with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.deployments import llm_config
from python_backends.checkpoint import load_checkpoint
from python_backends.engines.protocol import NO_VISUALS, Finish, Submission, submission_tensors
from python_backends.sampling import SamplingParams


@dataclass
class Generated:
    """What became of one sequence; times are time.perf_counter()."""

    submitted_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_s[0] - self.submitted_s


class InProcessLlm:
    """The product's LLM adapter on the artifacts of a composed deployment."""

    def __init__(self, artifacts: Path, *, whole_prompts: bool = False) -> None:
        """`whole_prompts`: not in slices, whatever the deployment says, and so without a pace."""
        from python_backends.engines.llm_openvino import LlmEngine  # noqa: PLC0415  (OpenVINO loads for seconds)

        self._engine = LlmEngine(llm_config(artifacts, **({"prefill_slice_tokens": 0} if whole_prompts else {})))
        self._vocabulary = load_checkpoint(artifacts).vocab_size
        self._rng = np.random.default_rng(0)
        self._numbers = itertools.count(1)

    def random_prompt(self, tokens: int) -> NDArray[np.int32]:
        """Token ids that no cache has seen."""
        return self._rng.integers(100, self._vocabulary - 100, tokens, dtype=np.int32)

    def run(self, prompts: Sequence[NDArray[np.int32]], answer_tokens: int) -> list[Generated]:
        """All prompts at once, to the end."""
        sampling = SamplingParams(max_tokens=answer_tokens, min_tokens=answer_tokens, ignore_eos=True)
        running = {}
        for prompt in prompts:
            number = next(self._numbers)
            submission = Submission(number, prompt, NO_VISUALS, sampling)
            tensors: dict[str, Any] = submission_tensors([submission])
            texts = [tensors.pop("sampling")[0].decode()]
            running[number] = Generated(time.perf_counter())
            self._engine.handle("submit", list(tensors.values()), {"names": list(tensors), "sampling": texts})
        sequences, left = list(running.values()), set(running)
        while left:
            report = self._engine.step()
            if report is None:
                continue
            now = time.perf_counter()
            for number, count, reason in zip(
                report.request_ids.tolist(), report.token_counts.tolist(), report.finish_reasons.tolist(), strict=True
            ):
                running[number].token_s += [now] * count
                if reason != Finish.RUNNING:
                    left.discard(number)
        return sequences


def encode_seconds(artifacts: Path, batch: int, repeats: int) -> float:
    """Median seconds of one batch of pictures in the vision tower."""
    from perf.baselines.encoders import InlineEncoder  # noqa: PLC0415

    encoder, side = InlineEncoder(artifacts, 0), load_checkpoint(artifacts).image_size
    tiles = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        encoder.encode(tiles)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[1:]))
