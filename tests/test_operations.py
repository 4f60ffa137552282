"""`tvlm serve` as operators see it: stubs that die or hang, draining."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

from build_engines import build
from client import RetryPolicy, VlmClient, VlmError
from client.serving.server import Server
from tests.composed import DEPLOYMENT, composed_demo
from tests.conftest import free_ports
from tests.test_failures import metric
from tests.test_serve_cli import ServedByTvlm
from tests.test_server import picture
from tests.test_watcher import is_ready, stub_of
from tests.waiting import until

pytestmark = pytest.mark.server

STORY = "Tell me a long story about a fox."


def serve() -> Iterator[ServedByTvlm]:
    server = ServedByTvlm(composed_demo())
    yield server
    server.process.kill()
    server.process.wait()
    psutil.wait_procs(server.family, timeout=20)


served = pytest.fixture(serve, scope="module", name="served")
to_be_ended = pytest.fixture(serve, name="to_be_ended")


@pytest.fixture
def vlm(served: ServedByTvlm) -> Iterator[VlmClient]:
    with VlmClient(served.grpc) as client:
        yield client


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_stream_goes_on_when_the_stub_of_its_replica_is_lost(
    served: ServedByTvlm, vlm: VlmClient, blow: signal.Signals
) -> None:
    options = {"max_tokens": 40, "ignore_eos": True}
    undisturbed = vlm.generate(STORY, **options).text
    stream = vlm.stream(STORY, **options)
    pieces = [next(stream) for _ in range(5)]
    stub_of(served, "llm_decoder_0").send_signal(blow)
    assert until(lambda: not is_ready(served, "llm_decoder_0"), 20)
    assert until(lambda: is_ready(served, "llm_decoder_0"), 120)
    pieces += stream
    assert "".join(pieces) == undisturbed


@pytest.mark.parametrize("stage", ["image_decode", "vision_encoder"])
def test_images_are_answered_although_the_stub_of_a_stage_is_killed(served: ServedByTvlm, stage: str) -> None:
    first = {"image_decode": 500, "vision_encoder": 600}[stage]  # no picture twice: it would be cached

    def ask(number: int) -> str:
        with VlmClient(served.grpc) as client:
            return client.generate("What is it?", images=[picture("red", size=first + number)], max_tokens=4).text

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, number) for number in range(8)]
        answers[2].result()
        stub_of(served, stage).kill()
        assert until(lambda: not is_ready(served, stage), 20)
        assert all(isinstance(answer.result(timeout=120), str) for answer in answers)
    assert is_ready(served)


def test_killed_router_stub_is_one_clear_error_to_its_clients_and_is_back(served: ServedByTvlm, vlm: VlmClient) -> None:
    stream = vlm.stream(STORY, max_tokens=400, ignore_eos=True)
    next(stream)
    stub_of(served, "vlm").kill()
    with pytest.raises(VlmError) as error:
        list(stream)
    assert error.value.status == "UNAVAILABLE"
    assert not is_ready(served)
    assert until(lambda: is_ready(served), 180)
    assert vlm.generate("Hi", max_tokens=4).text


def test_draining_server_is_not_ready_refuses_what_comes_and_finishes_what_runs(to_be_ended: ServedByTvlm) -> None:
    with VlmClient(to_be_ended.grpc, retry=RetryPolicy(attempts=1)) as vlm:
        stream = vlm.stream(STORY, max_tokens=150, ignore_eos=True)
        next(stream)
        to_be_ended.process.terminate()
        assert until(lambda: not is_ready(to_be_ended), 10)

        def refusal() -> str:
            try:
                return vlm.generate("Hi", max_tokens=1).text
            except VlmError as error:
                return f"{error.status} {error.message}"

        assert until(lambda: refusal().startswith("UNAVAILABLE draining: "), 5)
        list(stream)
        assert stream.answer.usage.num_output_tokens == 150
    assert to_be_ended.process.wait(30) == 0
    _, alive = psutil.wait_procs(to_be_ended.family, timeout=10)
    assert alive == []


def test_streams_spread_over_two_replicas(tmp_path: Path) -> None:
    output = tmp_path / "two"
    shutil.copytree(composed_demo(), output, ignore=shutil.ignore_patterns("*.log"))  # its weights are used again
    values = yaml.safe_load(DEPLOYMENT.read_text())
    values["checkpoint"] = str(DEPLOYMENT.parent / values["checkpoint"])
    values["pools"]["text"]["replicas"] = 2
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(values))
    build(tmp_path / "two.yaml", output)
    with Server(output, free_ports()) as server, VlmClient(server.endpoints.grpc) as vlm:
        streams = [vlm.stream(STORY, max_tokens=300, ignore_eos=True) for _ in range(4)]
        for stream in streams:
            next(stream)

        def running() -> list[float]:
            return [metric(server.endpoints, "tvlm_running_sequences", replica=str(replica)) for replica in (0, 1)]

        assert until(lambda: running() == [2, 2], 20)
        for stream in streams:
            stream.close()
