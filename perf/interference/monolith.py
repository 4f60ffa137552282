"""The baseline: pictures are encoded inside the token loop, in one process, on all cores.

The same engines as the product's, without Triton and without the hops between processes: what it loses, it loses by
its arrangement alone. Run as a script: reads a JSON object with `artifacts` and the workload's parameters, writes what
every request saw.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from perf.interference.workload import TOKENS, Request, Seen, requests
from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.engines.llm_openvino import LlmEngine
from python_backends.engines.protocol import NO_VISUALS, Finish, Submission, VisualRows, submission_tensors
from python_backends.engines.vision_openvino import VisionWorker
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.router.prompt import PromptBuilder
from python_backends.sampling import SamplingParams


class Monolith:
    """One loop: what has arrived is encoded and submitted, then one step for all."""

    def __init__(self, artifacts: Path) -> None:
        deployment = load_built_deployment(artifacts)
        self._checkpoint = load_checkpoint(artifacts)
        self._limits = ImageLimits.of(deployment.limits)
        self._engine = LlmEngine({"artifacts": str(artifacts), "deployment": deployment.model_dump(mode="json")})
        self._vision = VisionWorker(
            {
                "folder": str(artifacts / "vision"),
                "image_size": self._checkpoint.image_size,
                "batch_size": 8,
                "precision": "auto",
                "threads": 0,
            }
        )
        tokenizer = Tokenizer.from_file(str(artifacts / "tokenizer.json"))
        template = (artifacts / "chat_template.jinja").read_text()
        self._prompts = PromptBuilder(tokenizer, template, self._checkpoint.image_token)

    def run(self, sent: list[Request]) -> list[Seen]:
        """All requests to their ends; those that arrive while it encodes wait."""
        seen = [Seen(bool(request.images)) for request in sent]
        last = [0.0] * len(sent)
        waiting = deque(enumerate(sent))
        begin = time.monotonic()
        while waiting or self._engine.busy:
            while waiting and waiting[0][1].at_s <= time.monotonic() - begin:
                self._submit(*waiting.popleft())
            if not self._engine.busy:
                time.sleep(0.001)
                continue
            report = self._engine.step()
            if report is None:
                continue
            now = time.monotonic() - begin
            for number, finish in zip(report.request_ids.tolist(), report.finish_reasons.tolist(), strict=True):
                at = number - 1
                if not last[at]:
                    seen[at].ttft_s = now - sent[at].at_s
                else:
                    seen[at].gaps_s.append(now - last[at])
                last[at] = now
                if finish != Finish.RUNNING:
                    seen[at].total_s = now - sent[at].at_s
        return seen

    def _submit(self, number: int, request: Request) -> None:
        content: list[dict[str, str]] = [{"type": "image"} for _ in request.images]
        prompt = self._prompts.build([{"role": "user", "content": [*content, {"type": "text", "text": request.text}]}])
        each = self._checkpoint.tokens_per_tile
        visuals = NO_VISUALS
        if request.images:
            tiles = [decode(image, self._checkpoint.image_size, self._limits) for image in request.images]
            visuals = VisualRows(self._vision.handle("encode", [np.stack(tiles)], {})[0][0])
        submission = Submission(
            number + 1,  # 0 is the engine's own warm-up
            prompt.with_visual_tokens([each] * len(request.images)),
            visuals,
            SamplingParams(max_tokens=TOKENS, ignore_eos=True),
        )
        sampling = submission.sampling.model_dump_json()
        arrays = submission_tensors([submission])
        names = [name for name in arrays if name != "sampling"]
        refused = self._engine.handle(
            "submit", [arrays[name] for name in names], {"names": names, "sampling": [sampling]}
        )
        assert not refused[1]["refused"], refused


def main() -> None:
    """Read the job, run it, write the results."""
    job = json.load(sys.stdin)
    monolith = Monolith(Path(job["artifacts"]))
    seen = monolith.run(requests(job["seconds"], job["burst"]))
    json.dump([result.as_dict() for result in seen], sys.stdout)


if __name__ == "__main__":
    main()
