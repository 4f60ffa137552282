"""Solo costs of the stages on this machine, as the profile that planner and simulator read.

    python -m perf.profile --built build/bench-cpu --output perf/reports/profile.json

Encode by batch; prefill by prompt tokens; time between tokens by sequences and context. Milliseconds, medians.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perf import command
from perf.bench.machine import Machine, describe
from perf.in_process import InProcessLlm, encode_seconds
from python_backends.checkpoint import load_checkpoint

BATCHES = (1, 2, 4, 8)  # pictures
PROMPTS = (16, 64, 256, 1024)  # tokens
SEQUENCES = (1, 8, 32)
CONTEXTS = (64, 512)  # tokens
_DECODE_STEPS = 16
_BEGIN_STEPS = 16  # that the last of them begins later, at the most


@dataclass(frozen=True)
class Profile:
    """What the stages cost when they have the machine to themselves."""

    machine: Machine
    checkpoint: str
    tokens_per_picture: int
    encode_ms: dict[int, float]  # by pictures in the batch
    prefill_ms: dict[int, float]  # by prompt tokens
    decode_ms: dict[str, float]  # time between tokens, by "SEQUENCESxCONTEXT"

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def measure(artifacts: Path, repeats: int) -> Profile:
    """Measure all of it."""
    checkpoint = load_checkpoint(artifacts)
    encode = {batch: encode_seconds(artifacts, batch, repeats) * 1e3 for batch in BATCHES}
    llm = InProcessLlm(artifacts, whole_prompts=True)
    prefill = {
        tokens: _median([llm.run([llm.random_prompt(tokens)], 1)[0].ttft_s for _ in range(repeats)])
        for tokens in PROMPTS
    }
    decode = {f"{count}x{context}": _decode(llm, count, context) for count in SEQUENCES for context in CONTEXTS}
    return Profile(describe(), checkpoint.name, checkpoint.tokens_per_tile, encode, prefill, decode)


def _decode(llm: InProcessLlm, count: int, context: int) -> float:
    """While all of them decode together: from the last one's first token to the first one's last."""
    prompts = [llm.random_prompt(context) for _ in range(count)]
    llm.run(prompts, 1)  # the prefix cache has them now, so that they begin almost at once
    sequences = llm.run(prompts, _DECODE_STEPS + _BEGIN_STEPS)
    begin = max(sequence.token_s[0] for sequence in sequences)
    end = min(sequence.token_s[-1] for sequence in sequences)
    gaps = np.diff([at for at in sequences[-1].token_s if begin <= at <= end])
    return _median(gaps.tolist())


def _median(seconds: Sequence[float]) -> float:
    return round(float(np.median(seconds)) * 1e3, 2)


def main() -> None:
    """Measure, save, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, default=Path("build/bench-cpu"), help="a composed deployment")
    parser.add_argument("--output", type=Path, help="where the profile goes (JSON)")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    profile = measure(options.built / "artifacts", options.repeats)
    if options.output:
        profile.save(options.output)
    for name in ("encode_ms", "prefill_ms", "decode_ms"):
        print(name, {key: round(value, 1) for key, value in getattr(profile, name).items()})


if __name__ == "__main__":
    command.run(main)
