"""What the engine alone saves when a prompt begins like an earlier one: prefill time, beside its account of reused KV.

    python -m perf.prefix_engine [--rounds 5] [--pictures 4] [--artifacts build/demo-cpu/artifacts]

No server: the engine adapter in this process, one prompt at a time. Pictures' worth of random visual tokens and a
question, then the same visual tokens and another question; medians, the first pair left out. `perf.prefix_reuse`
measures the same through the server.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.engines.llm_openvino import LlmEngine
from python_backends.engines.protocol import VISUAL_TOKEN, Submission, VisualRows, submission_tensors
from python_backends.sampling import SamplingParams

QUESTIONS = ([1780, 314, 451, 47], [900, 77, 12, 90, 33])  # any tokens

_ids = itertools.count(1)


def prefill(engine: LlmEngine, rows: NDArray[np.float16], question: list[int]) -> tuple[float, int]:
    """Milliseconds from the submission to the first token, and prompt tokens whose KV was there."""
    prompt = np.array([1] + [VISUAL_TOKEN] * len(rows) + question, np.int32)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    tensors = submission_tensors([Submission(next(_ids), prompt, VisualRows(rows), sampling)])
    texts = [text.decode() for text in tensors.pop("sampling")]
    begin = time.perf_counter()
    engine.handle("submit", list(tensors.values()), {"names": list(tensors), "sampling": texts})
    reused = 0
    while engine.busy:
        report = engine.step()
        if report is not None and report.load is not None:
            reused += report.load.reused_tokens
    return (time.perf_counter() - begin) * 1e3, reused


def main() -> None:
    """Load, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--artifacts", type=Path, default=Path("build/demo-cpu/artifacts"))
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.artifacts)
    deployment = load_built_deployment(options.artifacts).model_dump(mode="json")
    engine = LlmEngine({"artifacts": str(options.artifacts), "deployment": deployment})
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(options.rounds + 1):
        shape = (options.pictures * checkpoint.tokens_per_tile, checkpoint.hidden_size)
        rows = rng.normal(0, 0.3, shape).astype(np.float16)
        pairs.append([prefill(engine, rows, question) for question in QUESTIONS])
    for name, index in (("first", 0), ("second", 1)):
        times, reused = zip(*(pair[index] for pair in pairs[1:]), strict=True)
        print(f"{name:7} {statistics.median(times):7.0f} ms, {statistics.median(reused):.0f} prompt tokens reused")
    ratios = [pair[1][0] / pair[0][0] for pair in pairs[1:]]
    print(f"second / first {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
