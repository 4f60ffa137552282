"""What the machine can give at best: solo profiles of encode, prefill and decode, and the bounds that follow.

    python -m perf.interference.bound --artifacts build/interference/composed/artifacts [--cores 2]

Work is counted in CPU seconds of one core, on one thread, so that other load on the machine disturbs it little. Any
arrangement that leaves no core idle needs at least work / cores; none can be faster.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from perf.interference.workload import BURST_PICTURES, BURST_REQUESTS, TEXT_RATE, TOKENS
from python_backends.checkpoint import load_checkpoint
from python_backends.engines.llm_openvino import LlmEngine
from python_backends.engines.protocol import NO_VISUALS, Submission, submission_tensors
from python_backends.engines.vision_openvino import VisionWorker
from python_backends.sampling import SamplingParams

TEXT_PROMPT, QUESTION = 50, 40  # tokens of the workload's prompts without their pictures
GAP_S, RATIO = 0.2, 3.0  # what is asked: longest gap, and text TTFT beside its value alone


@dataclass(frozen=True)
class Profile:
    """CPU seconds of one core."""

    encode_s: float  # a picture
    prefill_s: float  # a prompt token
    step_s: float  # a step that decodes one token of each of a few sequences


def profile(artifacts: Path, repeats: int = 3) -> Profile:
    """Measure each stage alone."""
    checkpoint = load_checkpoint(artifacts)
    side = checkpoint.image_size
    vision = VisionWorker(
        {"folder": str(artifacts / "vision"), "image_size": side, "batch_size": 1, "precision": "auto", "threads": 1}
    )
    tiles = np.random.default_rng(0).integers(0, 255, (1, side, side, 3), dtype=np.uint8)
    encode_s = min(_cpu_s(lambda: vision.handle("encode", [tiles], {})) for _ in range(repeats))
    deployment = json.loads((artifacts / "deployment.json").read_text())
    deployment["pools"]["text"] |= {"threads": 1, "prefill_slice_tokens": 0, "prefill_tokens": 256}
    engine = LlmEngine({"artifacts": str(artifacts), "deployment": deployment})
    rng = np.random.default_rng(0)
    prompt_s, answer_s = [], []
    for number in range(1, repeats + 1):
        prompt = rng.integers(1000, checkpoint.vocab_size - 1000, 256).astype(np.int32)  # nothing is in the cache
        prompt_s.append(_cpu_s(partial(_first_token, engine, number, prompt)) / 256)
        answer_s.append(_cpu_s(lambda: _finish(engine)) / (TOKENS - 1))
    return Profile(encode_s, min(prompt_s), min(answer_s))


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _first_token(engine: LlmEngine, request_id: int, prompt: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    tensors = submission_tensors([Submission(request_id, prompt, NO_VISUALS, sampling)])
    names = [name for name in tensors if name != "sampling"]
    texts = [text.decode() for text in tensors["sampling"]]
    engine.handle("submit", [tensors[name] for name in names], {"names": names, "sampling": texts})
    while engine.step() is None:
        pass


def _finish(engine: LlmEngine) -> None:
    while engine.busy:
        engine.step()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    p, cores = profile(options.artifacts), options.cores
    visual = load_checkpoint(options.artifacts).tokens_per_tile
    encode_s = BURST_REQUESTS * BURST_PICTURES * p.encode_s
    prefill_s = BURST_REQUESTS * (BURST_PICTURES * visual + QUESTION) * p.prefill_s
    # in a step that prefills anyway, a decoded token costs at least what a prefilled one costs
    share = TEXT_RATE * (TEXT_PROMPT + TOKENS) * p.prefill_s / cores
    alone_s = (TEXT_PROMPT * p.prefill_s + p.step_s) / cores
    before = ((RATIO - 1) * alone_s * cores) / p.prefill_s
    chunk = (GAP_S * cores - p.step_s) / p.prefill_s
    print(
        f"CPU time of one core: encode {p.encode_s * 1e3:.0f} ms a picture, prefill {p.prefill_s * 1e3:.2f} ms a token,"
    )
    print(f"  decode {p.step_s * 1e3:.0f} ms a step of one sequence")
    print(f"the burst is {encode_s:.0f} s of encode and {prefill_s:.0f} s of prefill; text beside it takes {share:.0%}")
    print(f"last picture, whatever the arrangement: not before {(encode_s + prefill_s) / cores / (1 - share):.0f} s")
    print(f"text TTFT alone is {alone_s * 1e3:.0f} ms; {RATIO:g} times that leaves room for {before:.0f} prompt tokens")
    print("  of others, from its arrival to its first token")
    print(f"a gap of {GAP_S * 1e3:.0f} ms leaves room for {chunk:.0f} prompt tokens in a step when encode yields,")
    print(f"  and for {(GAP_S - p.step_s) / p.prefill_s:.0f} when it takes all cores but one")


if __name__ == "__main__":
    main()
