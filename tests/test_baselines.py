"""A baseline end to end: load generator, gRPC service and token loop, with a fake engine and encoder."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from perf.baselines.loop import TokenLoop
from perf.baselines.service import VlmService, start
from perf.fake_engine import STEP_MS_VARIABLE, FakeEngine
from perf.load import OK, GrpcTarget, Run, open_loop
from perf.workloads import Request, make_workload
from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, Limits
from python_backends.engines.protocol import StepReport
from tests.fakes.tokenizer import byte_tokenizer
from tests.test_router_prompt import TEMPLATE

SIDE, TOKENS, HIDDEN = 32, 4, 8


class FakeEncoder:
    """Zeros of the right shape; counts how many pictures came at a time."""

    def __init__(self, background: bool) -> None:
        self.batches: list[int] = []
        self._thread = ThreadPoolExecutor(1) if background else None

    def encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        assert tiles.shape[1:] == (SIDE, SIDE, 3)
        self.batches.append(len(tiles))
        return np.zeros((len(tiles), TOKENS, HIDDEN), np.float16)

    def in_background(self) -> ThreadPoolExecutor | None:
        return self._thread


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    checkpoint = Checkpoint(
        name="tiny",
        image_size=SIDE,
        tokens_per_tile=TOKENS,
        hidden_size=HIDDEN,
        vocab_size=258,
        kv_bytes_per_token=16,
        context_tokens=4096,
        image_token="<image>",
        eos_token_ids=(257,),
    )
    deployment = Deployment(checkpoint=tmp_path, limits=Limits(images_per_request=16))
    (tmp_path / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (tmp_path / BUILT_FILE).write_text(deployment.model_dump_json())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


async def drive(
    artifacts: Path,
    encoder: FakeEncoder,
    policy: str,
    asked: list[Request],
    *,
    engine: FakeEngine | None = None,
    timeout_s: float = 30,
) -> Run:
    loop = TokenLoop(engine or FakeEngine({}), encoder, policy)
    server, port = await start(VlmService(artifacts, loop, threads=1), 0)
    target = GrpcTarget([f"grpc://127.0.0.1:{port}"])
    try:
        run = await open_loop(asked, [target.prepare(request) for request in asked], target, timeout_s)
        while loop.is_busy:
            await asyncio.sleep(0.01)
        return run
    finally:
        await target.close()
        await server.stop(None)


@pytest.mark.parametrize(("policy", "background"), [("fcfs", False), ("text_first", False), ("fcfs", True)])
def test_every_request_gets_its_tokens_in_every_arrangement(artifacts: Path, policy: str, background: bool) -> None:
    asked = list(make_workload("mix-80-15-5", rate=20, seconds=1.5, seed=4).requests)
    assert {request.modality for request in asked} == {"text", "image", "video"}
    encoder = FakeEncoder(background)
    run = asyncio.run(drive(artifacts, encoder, policy, asked))
    assert sum(encoder.batches) == sum(len(request.pictures) for request in asked)
    for record, request in zip(run.records, asked, strict=True):
        assert record.outcome == OK, record.error
        assert record.output_tokens == request.answer_tokens
        assert record.input_tokens is not None
        assert record.input_tokens > len(request.prompt) + TOKENS * len(request.pictures)


def test_a_refused_request_is_an_error_of_its_own(artifacts: Path) -> None:
    good, bad = make_workload("single-image", rate=10, seconds=3, seed=4).requests[:2]
    bad = Request(1, 0.0, "image", bad.prompt, bad.pictures * 17, 4)
    run = asyncio.run(drive(artifacts, FakeEncoder(False), "fcfs", [good, bad]))
    assert [record.outcome for record in run.records] == [OK, "INVALID_ARGUMENT"]
    assert "images_per_request" in run.records[1].error


def test_nothing_is_computed_for_a_client_that_went_away(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(FakeEngine):
        steps = 0

        def step(self) -> StepReport:
            self.steps += 1
            return super().step()

    monkeypatch.setenv(STEP_MS_VARIABLE, "5")
    engine = Counting({})
    asked = [Request(0, 0.0, "text", "a long story", (), 3000)]  # 15 s of it
    begin = time.monotonic()
    (record,) = asyncio.run(drive(artifacts, FakeEncoder(False), "fcfs", asked, engine=engine, timeout_s=1.0)).records
    assert record.outcome == "DEADLINE_EXCEEDED"
    assert engine.steps
    assert time.monotonic() - begin < 8


def test_an_encoder_that_breaks_is_an_answer(artifacts: Path) -> None:
    class Broken(FakeEncoder):
        def encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
            raise RuntimeError("the worker died")

    asked = list(make_workload("single-image", rate=10, seconds=3, seed=4).requests[:1])
    (record,) = asyncio.run(drive(artifacts, Broken(True), "fcfs", asked)).records
    assert record.outcome != OK
    assert "encode failed: the worker died" in record.error
