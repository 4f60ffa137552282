"""`tvlm serve` and stubs that are lost, on models that need no engines."""

from __future__ import annotations

import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
import yaml

from client import RetryPolicy, VlmClient, VlmError
from client.serving.server import Server
from client.types import Answer
from perf.bench_server import watched
from tests.conftest import ROOT, echo_output, free_ports
from tests.served import DEPLOYMENT, ServedByTvlm
from tests.waiting import until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedByTvlm]:
    """The echo model twice: as the router, and as a stage behind it."""
    output = echo_output(tmp_path_factory.mktemp("watched"))
    repository = output / "model_repository"
    shutil.copytree(repository / "vlm", repository / "stage")
    config = repository / "stage" / "config.pbtxt"
    config.write_text(config.read_text().replace('"vlm"', '"stage"'))
    values = yaml.safe_load(DEPLOYMENT.read_text())
    values |= {"pools": {"text": {"stall_timeout_ms": 1000}}, "serving": {"hang_timeout_s": 3}}
    (output / "impatient.yaml").write_text(yaml.safe_dump(values))
    server = ServedByTvlm(output, deployment=output / "impatient.yaml")
    yield server
    server.process.kill()
    server.process.wait()
    psutil.wait_procs(server.family, timeout=20)


def stub_of(server: ServedByTvlm, model: str) -> psutil.Process:
    return stub_under(psutil.Process(server.process.pid), model)


def stub_under(ancestor: psutil.Process, model: str) -> psutil.Process:
    for process in ancestor.children(recursive=True):
        if process.status() != psutil.STATUS_ZOMBIE and f"/{model}/1/model.py" in " ".join(process.cmdline()[:2]):
            return process
    raise AssertionError(f"no stub of {model}")


def is_replaced(server: ServedByTvlm, lost: psutil.Process, model: str) -> bool:
    """Whether the model has another stub, and is ready with it."""
    try:
        return stub_of(server, model) != lost and is_ready(server, model)
    except (AssertionError, psutil.Error):
        return False


def is_ready(server: ServedByTvlm, model: str | None = None) -> bool:
    """Asked over gRPC: an HTTP thread that loads a model answers nobody meanwhile."""
    try:
        with triton.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as client:
            ready = (
                client.is_server_ready(client_timeout=10)
                if model is None
                else client.is_model_ready(model, client_timeout=10)
            )
    except triton.InferenceServerException:
        return False
    return bool(ready)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_model_whose_stub_is_lost_is_not_ready_and_then_loaded_again(
    served: ServedByTvlm, blow: signal.Signals
) -> None:
    lost = stub_of(served, "stage")
    router = stub_of(served, "vlm")
    lost.send_signal(blow)
    assert until(lambda: not is_ready(served, "stage"), 20)
    assert until(lambda: is_ready(served, "stage"), 60)
    assert stub_of(served, "stage") != lost
    assert router.is_running()


def test_stub_that_lives_and_answers_nobody_is_replaced(served: ServedByTvlm) -> None:
    hung, router = stub_of(served, "stage"), stub_of(served, "vlm")
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"deadlock"], np.object_))
    with triton.InferenceServerClient(f"127.0.0.1:{served.ports.grpc}") as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("stage", [text])
        assert until(lambda: is_replaced(served, hung, "stage"), 60)
        client.stop_stream(cancel_requests=True)
    assert router.is_running()


def test_lost_router_is_one_clear_error_to_its_clients_and_is_back(served: ServedByTvlm) -> None:
    with VlmClient(served.grpc, retry=RetryPolicy(attempts=1)) as vlm:
        stream = vlm.stream("forever")
        next(stream)
        stub_of(served, "vlm").kill()
        with pytest.raises(VlmError) as error:
            list(stream)
        assert error.value.status == "UNAVAILABLE"
        assert error.value.message == "the server closed the connection before the answer's end"
        assert until(lambda: is_ready(served), 60)
        assert vlm.generate("Hi").text.startswith("Hi")


def test_draining_server_is_not_ready_while_it_answers(tmp_path: Path) -> None:
    served = ServedByTvlm(echo_output(tmp_path / "drained"))
    with VlmClient(served.grpc) as vlm:
        stream = vlm.stream("forever")
        next(stream)
        served.process.terminate()
        assert until(lambda: not is_ready(served), 20)
        next(stream)
        assert served.process.poll() is None
        stream.close()
    assert served.process.wait(30) == 0
    assert served.regions() == []


class _Interrupted(VlmClient):
    """The first requests after a start; a signal comes while they are answered."""

    def generate(self, *_args: Any, **_options: Any) -> Answer:
        raise KeyboardInterrupt


def test_a_signal_that_comes_right_after_a_restart_lets_requests_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loses(threading.Event):
        """What is asked at each look at the stubs: when they are known, one dies."""

        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                stub_under(psutil.Process(), "restarted/model_repository/vlm").kill()  # not the fixture's
            return False

    with Server(echo_output(tmp_path / "restarted"), free_ports()) as server:
        monkeypatch.setattr("client.serving.server.VlmClient", _Interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.run(Loses())
        with VlmClient(server.endpoints.grpc) as vlm:
            stream = vlm.stream("count 20 50")
            first = next(stream)
            server.drain(30)
            assert "".join([first, *stream]).split()[-1] == "19"


def test_stage_that_is_lost_while_the_server_starts_again_is_loaded_once_more(tmp_path: Path) -> None:
    output = echo_output(tmp_path / "losing")
    repository = output / "model_repository"
    stage = Path(shutil.copytree(ROOT / "tests" / "fakes" / "lost_once", repository / "stage"))
    (stage / "config.pbtxt").write_text((repository / "vlm" / "config.pbtxt").read_text().replace('"vlm"', '"stage"'))
    with watched(Server(output, free_ports())) as server:
        (stage / "lose").touch()
        stub_under(psutil.Process(), "losing/model_repository/vlm").kill()
        assert until(lambda: not (stage / "lose").exists(), 60)
        with triton.InferenceServerClient(server.endpoints.grpc.removeprefix("grpc://")) as client:
            assert until(lambda: _answers(client, "stage"), 60)
        with VlmClient(server.endpoints.grpc, retry=RetryPolicy(attempts=5)) as vlm:
            assert vlm.generate("back").text.startswith("back")


def test_stub_that_is_lost_before_anybody_watches_is_missed(tmp_path: Path) -> None:
    with Server(echo_output(tmp_path / "early"), free_ports()) as server:
        lost = stub_under(psutil.Process(), "early/model_repository/vlm")
        lost.kill()
        assert until(lambda: lost.status() == psutil.STATUS_ZOMBIE, 20)
        over = threading.Event()
        watch = threading.Thread(target=server.run, args=(over,))
        watch.start()
        with VlmClient(server.endpoints.grpc, retry=RetryPolicy(attempts=8)) as vlm:
            answered = until(lambda: _is_answered(vlm), 60)
        over.set()
        watch.join()
        assert answered


def _is_answered(vlm: VlmClient) -> bool:
    try:
        return vlm.generate("back").text.startswith("back")
    except VlmError:
        return False


def _answers(client: Any, model: str) -> bool:
    try:
        return bool(client.is_model_ready(model))
    except triton.InferenceServerException:
        return False


def test_a_watch_that_ends_before_its_server_takes_no_ended_stub_for_a_lost_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        watched(Server(echo_output(tmp_path / "watched"), free_ports())) as server,
        VlmClient(server.endpoints.grpc) as vlm,
    ):
        assert vlm.generate("Hi").text.startswith("Hi")
    assert "stub" not in caplog.text


def test_strangers_cant_load_or_unload_models(served: ServedByTvlm) -> None:
    for path in ("models/vlm/unload", "models/vlm/load", "index"):
        url = f"http://127.0.0.1:{served.ports.http}/v2/repository/{path}"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"), timeout=10)
    with triton.InferenceServerClient(f"127.0.0.1:{served.ports.grpc}") as stranger:
        for call in (stranger.unload_model, stranger.load_model):
            with pytest.raises(triton.InferenceServerException, match="restricted"):
                call("vlm")


def test_shared_memory_of_a_server_that_was_killed_with_its_guard_is_swept_at_the_next_start(tmp_path: Path) -> None:
    killed = ServedByTvlm(echo_output(tmp_path / "killed"))
    guard = killed.family[0]
    guard.suspend()  # so that it can't clean up
    killed.process.kill()
    guard.kill()
    psutil.wait_procs(killed.family, timeout=20)
    assert killed.regions() != []
    with Server(echo_output(tmp_path / "next"), free_ports()):
        assert killed.regions() == []
