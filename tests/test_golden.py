"""The served path against transformers: same visual tokens, same greedy tokens (tests/golden/make_goldens.py)."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tokenizers import Tokenizer

from client.serving.server import Endpoints
from python_backends.checkpoint import load_checkpoint
from python_backends.engines.protocol import Finish, StepReport, Submission, VisualRows, submission_tensors
from python_backends.engines.vision_stage import Encoded, EncodeStage, Pictures
from python_backends.errors import ServingError
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.router.prompt import PromptBuilder
from python_backends.sampling import SamplingParams
from python_backends.workers import SupervisedWorker, WorkerSpec

GOLDEN = Path(__file__).parent / "golden"
GOLDENS: list[dict[str, Any]] = json.loads((GOLDEN / "goldens.json").read_text())
REFERENCE_ROWS = np.load(GOLDEN / "visual_tokens.npz")
ROWS = slice(0, None, 8)
TOKENS = 16


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

    def greedy(self, question: str, visual: list[NDArray[np.float16]], so_far: Sequence[int] = ()) -> list[int]:
        """The answer's tokens, of one that has these already."""
        tokens = np.append(self.prompt(question, visual), np.array(so_far, np.int32))
        sampling = SamplingParams(max_tokens=TOKENS - len(so_far))
        return [*so_far, *self.answer(tokens, visual, sampling, answered=len(so_far))]

    def prompt(self, question: str, visual: list[NDArray[np.float16]]) -> NDArray[np.int32]:
        """Token ids of a first turn with these pictures."""
        content = [{"type": "image"}] * len(visual) + [{"type": "text", "text": question}]
        return self.prompts.build([{"role": "user", "content": content}]).with_visual_tokens([len(v) for v in visual])

    def answer(
        self, tokens: NDArray[np.int32], visual: list[NDArray[np.float16]], sampling: SamplingParams, answered: int = 0
    ) -> list[int]:
        """What comes after these."""
        rows = np.concatenate(visual) if visual else np.zeros((0, self.checkpoint.hidden_size), np.float16)
        submission = Submission(1, tokens, VisualRows(rows), sampling, answered=answered)
        tensors = submission_tensors([submission])
        texts = [text.decode() for text in tensors.pop("sampling").tolist()]
        reply = self.worker.call("submit", list(tensors.values()), {"names": list(tensors), "sampling": texts})
        assert not reply.meta["refused"]
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


@pytest.fixture(scope="module")
def visual_tokens(demo_artifacts: Path) -> dict[str, NDArray[np.float16]]:
    """Every golden picture through the stages of decoding and encoding."""
    side = load_checkpoint(demo_artifacts).image_size
    limits = ImageLimits(max_bytes=1_000_000, max_pixels=1_000_000)
    pictures = {name: (GOLDEN / "pictures" / name).read_bytes() for name in REFERENCE_ROWS.files}
    stage = EncodeStage("vision_encoder", demo_artifacts)
    stage.start()
    tiles = [decode(picture, side, limits)[np.newaxis, np.newaxis] for picture in pictures.values()]
    answers = stage.encode([Pictures(own, np.array([[1, 1]], np.int32)) for own in tiles])
    stage.close()
    return {name: rows_of(answer) for name, answer in zip(pictures, answers, strict=True)}


def rows_of(answer: Encoded | ServingError) -> NDArray[np.float16]:
    assert isinstance(answer, Encoded)
    return answer.visual_tokens[0]


def test_greedy_tokens_are_the_references(engine: Engine) -> None:
    check_greedy(engine, [golden for golden in GOLDENS if not golden["pictures"]], {})


def test_greedy_tokens_about_pictures_are_the_references(
    engine: Engine, visual_tokens: dict[str, NDArray[np.float16]]
) -> None:
    check_greedy(engine, [golden for golden in GOLDENS if golden["pictures"]], visual_tokens)


def test_answer_that_goes_on_in_another_engine_is_the_undisturbed_one(
    engine: Engine, visual_tokens: dict[str, NDArray[np.float16]]
) -> None:
    """What is generated is not adapted, neither when it comes back in a prompt."""
    asked = [golden for golden in GOLDENS if len(golden["pictures"]) == 2]
    for golden in asked:
        visual = [visual_tokens[name] for name in golden["pictures"]]
        whole = engine.greedy(golden["question"], visual)
        assert engine.greedy(golden["question"], visual, whole[:2]) == whole
    assert asked


def test_next_turn_is_answered_the_same_whether_the_last_ones_kv_is_there_or_not(
    engine: Engine, visual_tokens: dict[str, NDArray[np.float16]], demo_artifacts: Path
) -> None:
    """The adapter acts on an answer in a prompt, and did not when it was generated: its KV is no use there."""
    tokenizer = Tokenizer.from_file(str(demo_artifacts / "tokenizer.json"))
    visual = [next(iter(visual_tokens.values()))]
    sampled = SamplingParams(max_tokens=80, temperature=0.9, repetition_penalty=1.1, ignore_eos=True, seed=3)
    first = engine.prompt("Tell me about it.", visual)
    said = engine.answer(first, visual, sampled)
    further = tokenizer.encode(
        "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).ids
    turn = np.concatenate([first, np.array([*said, *further], np.int32)])
    greedy = SamplingParams(max_tokens=40, ignore_eos=True)
    fresh = Engine(demo_artifacts)
    try:
        assert engine.answer(turn, visual, greedy) == fresh.answer(turn, visual, greedy)
    finally:
        fresh.worker.close()


def check_greedy(engine: Engine, goldens: list[dict[str, Any]], visual: dict[str, NDArray[np.float16]]) -> None:
    assert len(goldens) == 20
    parted = []
    for golden in goldens:
        answer = engine.greedy(golden["question"], [visual[name] for name in golden["pictures"]])
        if answer != golden["tokens"]:
            at = next(i for i, (a, b) in enumerate(zip(answer, golden["tokens"], strict=False)) if a != b)
            parted.append((golden["question"], at, golden["margins"][at]))
    assert len(parted) <= 4, parted
    assert all(margin < 0.5 for _, _, margin in parted), parted


@pytest.mark.server
def test_served_visual_tokens_are_the_references_within_two_percent(demo_server: Endpoints) -> None:
    with triton.InferenceServerClient(demo_server.grpc.removeprefix("grpc://")) as client:
        errors = {name: relative_error(embed(client, name), name) for name in REFERENCE_ROWS.files}
    assert len(errors) == 20
    assert max(errors.values()) < 2e-2, errors


def embed(client: Any, name: str) -> NDArray[np.float16]:
    """A golden picture through the ensemble image_embedding."""
    image = triton.InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[(GOLDEN / "pictures" / name).read_bytes()]], np.object_))
    rows: NDArray[np.float16] = client.infer("image_embedding", [image]).as_numpy("visual_tokens")[0]
    return rows


def relative_error(rows: NDArray[np.float16], name: str) -> float:
    reference = REFERENCE_ROWS[name].astype(np.float32)
    return float(np.linalg.norm(rows[ROWS] - reference) / np.linalg.norm(reference))
