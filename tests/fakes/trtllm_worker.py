"""The TensorRT-LLM adapter as the target of a worker process, over the fake LLM API.

What the fake was given lies in `calls` beside the artifacts, a file for each sequence with images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.engines.llm_trtllm import LlmEngine
from python_backends.engines.protocol import StepReport
from python_backends.engines.trtllm_api import read_model_facts
from tests.fakes import trtllm


class RecordedEngine(LlmEngine):
    def __init__(self, config: dict[str, Any]) -> None:
        trtllm.install(pytest.MonkeyPatch())
        artifacts = Path(config["artifacts"])
        trtllm.IMAGE_TOKEN = read_model_facts(artifacts).image_token_id
        self._folder = artifacts / "calls"
        self._folder.mkdir(exist_ok=True)
        self._written = 0
        super().__init__(config)

    def step(self) -> StepReport | None:
        report = super().step()
        for asked in trtllm.LLM.calls[self._written :]:
            if asked.disaggregated is None:
                self._written += 1
                continue
            if "mrope" not in asked.opened:  # not prefilled yet
                break
            positions, delta = asked.opened["mrope"]
            images = {f"image_{index}": image for index, image in enumerate(asked.opened["images"])}
            file = self._folder / f"{self._written}.npz"
            np.savez(
                file.with_suffix(".part.npz"),
                prompt=asked.prompt, positions=positions, delta=delta, hashes=asked.disaggregated.multimodal_hashes,
                **images,
            )  # fmt: skip
            file.with_suffix(".part.npz").rename(file)
            self._written += 1
        return report
