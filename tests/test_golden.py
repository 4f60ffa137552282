"""The served path against transformers: same visual tokens, same greedy tokens (tests/golden/make_goldens.py)."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tokenizers import Tokenizer

from client.serving.server import Endpoints
from python_backends.checkpoint import load_checkpoint
from python_backends.engines.protocol import Finish, StepReport, Submission, submission_tensors
from python_backends.router.prompt import PromptBuilder
from python_backends.sampling import SamplingParams
from python_backends.workers import SupervisedWorker, WorkerSpec

pytestmark = pytest.mark.server

GOLDEN = Path(__file__).parent / "golden"
GOLDENS: list[dict[str, Any]] = json.loads((GOLDEN / "goldens.json").read_text())
REFERENCE_ROWS = np.load(GOLDEN / "visual_tokens.npz")
ROWS = slice(0, None, 8)
TOKENS = 16


@pytest.fixture(scope="module")
def visual_tokens(demo_server: Endpoints) -> dict[str, NDArray[np.float16]]:
    """Every golden picture through the ensemble image_embedding."""
    with triton.InferenceServerClient(demo_server.grpc.removeprefix("grpc://")) as client:
        return {name: embed(client, (GOLDEN / "pictures" / name).read_bytes()) for name in REFERENCE_ROWS.files}


def embed(client: Any, picture: bytes) -> NDArray[np.float16]:
    image = triton.InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[picture]], np.object_))
    rows: NDArray[np.float16] = client.infer("image_embedding", [image]).as_numpy("visual_tokens")[0]
    return rows


class Engine:
    """The LLM engine in its worker process, as a replica runs it."""

    def __init__(self, artifacts: Path) -> None:
        self.checkpoint = load_checkpoint(artifacts)
        self.prompts = PromptBuilder(
            Tokenizer.from_file(str(artifacts / "tokenizer.json")),
            (artifacts / "chat_template.jinja").read_text(),
            self.checkpoint.image_token,
        )
        self._reports: queue.Queue[StepReport] = queue.Queue()
        deployment = json.loads((artifacts / "deployment.json").read_text())
        config = {"artifacts": str(artifacts), "deployment": deployment}
        spec = WorkerSpec("golden-llm", "python_backends.engines.llm_openvino:LlmEngine", config)
        self.worker = SupervisedWorker(spec, on_event=self._reports.put)
        self.worker.start()

    def greedy(self, question: str, visual: list[NDArray[np.float16]]) -> list[int]:
        content = [{"type": "image"}] * len(visual) + [{"type": "text", "text": question}]
        prompt = self.prompts.build([{"role": "user", "content": content}])
        rows = np.concatenate(visual) if visual else np.zeros((0, self.checkpoint.hidden_size), np.float16)
        tokens = prompt.with_visual_tokens([len(v) for v in visual])
        tensors = submission_tensors([Submission(1, tokens, rows, SamplingParams(max_tokens=TOKENS))])
        sampling = [text.decode() for text in tensors.pop("sampling").tolist()]
        self.worker.call("submit", list(tensors.values()), {"names": list(tensors), "sampling": sampling})
        answer: list[int] = []
        while True:
            report = self._reports.get(timeout=60)
            answer += report.tokens.tolist()
            if report.finish_reasons[0] != Finish.RUNNING:
                return answer


@pytest.fixture(scope="module")
def engine(demo_artifacts: Path) -> Iterator[Engine]:
    engine = Engine(demo_artifacts)
    yield engine
    engine.worker.close()


def test_visual_tokens_are_the_references_within_two_percent(visual_tokens: dict[str, NDArray[np.float16]]) -> None:
    errors = {}
    for name, rows in visual_tokens.items():
        reference = REFERENCE_ROWS[name].astype(np.float32)
        errors[name] = float(np.linalg.norm(rows[ROWS] - reference) / np.linalg.norm(reference))
    assert len(errors) == 20
    assert max(errors.values()) < 2e-2, errors


@pytest.mark.parametrize("with_pictures", [False, True])
def test_greedy_tokens_are_the_references(
    engine: Engine, visual_tokens: dict[str, NDArray[np.float16]], with_pictures: bool
) -> None:
    goldens = [g for g in GOLDENS if bool(g["pictures"]) is with_pictures]
    assert len(goldens) == 20
    parted = []
    for golden in goldens:
        answer = engine.greedy(golden["question"], [visual_tokens[name] for name in golden["pictures"]])
        if answer == golden["tokens"]:
            continue
        at = next(i for i, (a, b) in enumerate(zip(answer, golden["tokens"], strict=False)) if a != b)
        parted.append((golden["question"], at, golden["margins"][at]))
    assert len(parted) <= 4, parted
    assert all(margin < 0.5 for _, _, margin in parted), parted
