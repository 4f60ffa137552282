"""`tvlm serve` as operators see it, on the real model with two replicas: stubs that die or hang, draining."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from client import RetryPolicy, VlmClient, VlmError
from client.serving.server import Endpoints
from tests.composed import composed_demo
from tests.served import ServedByTvlm
from tests.test_failures import metric
from tests.test_server import picture
from tests.test_watcher import is_ready, is_replaced, stub_of
from tests.waiting import until

pytestmark = pytest.mark.server

STORY = "Tell me a long story about a fox."


def serve(replicas: int) -> Iterator[ServedByTvlm]:
    server = ServedByTvlm(composed_demo(replicas))
    yield server
    server.process.kill()
    server.process.wait()
    psutil.wait_procs(server.family, timeout=20)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedByTvlm]:
    """Started once; the last test of this file that uses it ends it."""
    yield from serve(2)


@pytest.fixture
def to_be_ended() -> Iterator[ServedByTvlm]:
    yield from serve(1)


@pytest.fixture
def vlm(served: ServedByTvlm) -> Iterator[VlmClient]:
    with VlmClient(served.grpc) as client:
        yield client


def running(served: ServedByTvlm) -> list[float]:
    """Sequences in each replica."""
    server = Endpoints("", served.grpc, f"http://127.0.0.1:{served.ports.metrics}/metrics")
    return [metric(server, "tvlm_running_sequences", replica=str(replica)) for replica in (0, 1)]


def family(served: ServedByTvlm) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children(recursive=True)


def test_streams_spread_over_two_replicas(served: ServedByTvlm, vlm: VlmClient) -> None:
    streams = [vlm.stream(STORY, max_tokens=300, ignore_eos=True) for _ in range(4)]
    for stream in streams:
        next(stream)
    assert until(lambda: running(served) == [2, 2], 20)
    for stream in streams:
        stream.close()
    assert until(lambda: running(served) == [0, 0], 20)


def test_streams_go_on_when_the_stub_of_one_replica_is_killed_and_of_the_other_is_stopped(
    served: ServedByTvlm, vlm: VlmClient
) -> None:
    options = {"max_tokens": 40, "ignore_eos": True}
    undisturbed = vlm.generate(STORY, **options).text
    streams = [vlm.stream(STORY, **options) for _ in range(2)]
    pieces = [[next(stream) for _ in range(3)] for stream in streams]
    replicas = ("llm_decoder_0", "llm_decoder_1")
    stubs = {replica: stub_of(served, replica) for replica in replicas}
    for stub, blow in zip(stubs.values(), (signal.SIGKILL, signal.SIGSTOP), strict=True):
        stub.send_signal(blow)
    assert until(lambda: all(is_replaced(served, stub, replica) for replica, stub in stubs.items()), 120)
    for stream, had in zip(streams, pieces, strict=True):
        assert "".join([*had, *stream]) == undisturbed


def test_images_are_answered_although_the_stubs_of_both_stages_are_killed(served: ServedByTvlm) -> None:
    def ask(number: int) -> str:
        with VlmClient(served.grpc) as client:  # no picture twice: it would be cached
            return client.generate("What is it?", images=[picture("red", size=500 + number)], max_tokens=4).text

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, number) for number in range(8)]
        answers[2].result()
        stubs = {stage: stub_of(served, stage) for stage in ("image_decode", "vision_encoder")}
        for stub in stubs.values():
            stub.kill()
        assert all(isinstance(answer.result(timeout=120), str) for answer in answers)
    assert until(lambda: all(is_replaced(served, stub, stage) for stage, stub in stubs.items()), 60)
    assert until(lambda: is_ready(served, "image_embedding"), 60)


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


def test_draining_server_is_not_ready_refuses_what_comes_and_finishes_what_runs(served: ServedByTvlm) -> None:
    with VlmClient(served.grpc, retry=RetryPolicy(attempts=1)) as vlm:
        streams = [vlm.stream(STORY, max_tokens=300, ignore_eos=True) for _ in range(2)]
        for stream in streams:
            next(stream)
        processes = family(served)
        served.process.terminate()
        assert until(lambda: not is_ready(served), 10)

        answers: list[str] = []

        def is_refused() -> bool:
            try:
                answers.append(vlm.generate("Hi", max_tokens=1).text)
            except VlmError as error:
                answers.append(f"{error.status} {error.message}")
            return answers[-1].startswith("UNAVAILABLE draining: ")

        assert until(is_refused, 20), (answers, served.log.read_text())
        for stream in streams:
            list(stream)
            assert stream.answer.usage.num_output_tokens == 300
    assert served.process.wait(30) == 0
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []


def test_second_signal_ends_a_draining_server_at_once_though_requests_run(to_be_ended: ServedByTvlm) -> None:
    with VlmClient(to_be_ended.grpc, retry=RetryPolicy(attempts=1)) as vlm:
        stream = vlm.stream(STORY, max_tokens=1800, ignore_eos=True)
        next(stream)
        to_be_ended.process.terminate()
        assert until(lambda: not is_ready(to_be_ended), 10)
        next(stream)
        to_be_ended.process.terminate()
        with pytest.raises(VlmError) as error:
            list(stream)
        assert error.value.status == "UNAVAILABLE"
    assert to_be_ended.process.wait(30) != 0
    _, alive = psutil.wait_procs(to_be_ended.family, timeout=10)
    assert alive == []
    assert to_be_ended.regions() == []
