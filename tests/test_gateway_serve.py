"""`tvlm gateway` and `tvlm serve --gateway` as operators run them, on a real tritonserver that echoes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from client.serving.server import Endpoints, Server
from gateway.settings import load_settings
from tests.conftest import echo_output, free_ports
from tests.gateways import ROOT, RunningGateway
from tests.served import ENVIRONMENT, ServedByTvlm, serving
from tests.waiting import until

pytestmark = pytest.mark.server


@pytest.fixture
def gateway(echo_server: Endpoints, tmp_path: Path) -> Iterator[RunningGateway]:
    with RunningGateway(tmp_path, servers=[echo_server.grpc]) as running:
        yield running


def client_of(gateway: RunningGateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def test_the_commented_settings_are_the_defaults() -> None:
    assert load_settings(ROOT / "deployments" / "gateway.yaml") == load_settings(None)


def test_readiness_follows_the_server(tmp_path: Path) -> None:
    ports = free_ports()
    with RunningGateway(tmp_path / "gateway", ready=False, servers=[f"grpc://127.0.0.1:{ports.grpc}"]) as gateway:
        assert (gateway.status("/health/live"), gateway.status("/health/ready")) == (200, 503)
        with pytest.raises(openai.InternalServerError, match="no server is ready") as error:
            client_of(gateway).completions.create(model="vlm", prompt="Hi")
        assert error.value.status_code == 503
        assert error.value.response.headers["retry-after"] == "1"
        with Server(echo_output(tmp_path / "echo"), ports):
            assert until(lambda: gateway.status("/health/ready") == 200, 30)
            assert client_of(gateway).completions.create(model="vlm", prompt="Hi").choices[0].text.startswith("Hi")
        assert until(lambda: gateway.status("/health/ready") == 503, 30)


def test_a_signal_drains_streams_end_and_new_requests_are_refused(gateway: RunningGateway) -> None:
    client = client_of(gateway)
    stream = client.completions.create(model="vlm", prompt="forever", stream=True, timeout=30)
    next(iter(stream))
    gateway.process.send_signal(signal.SIGTERM)
    assert until(lambda: gateway.status("/health/ready") == 503, 5)
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        client.completions.create(model="vlm", prompt="Hi")
    assert next(iter(stream)).choices[0].text == "again "
    stream.close()  # its last request: nothing left to wait for
    assert gateway.process.wait(5) == 0


def test_a_request_that_does_not_end_holds_the_end_up_no_longer_than_the_grace_time(
    echo_server: Endpoints, tmp_path: Path
) -> None:
    with RunningGateway(tmp_path, servers=[echo_server.grpc], grace_s=1) as gateway:
        stream = client_of(gateway).completions.create(model="vlm", prompt="forever", stream=True, timeout=30)
        next(iter(stream))
        begin = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match=r"the gateway shut down: .* grace_s = 1"):
            list(stream)
        gateway.process.wait(15)
        assert time.monotonic() - begin >= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "there are no API keys"),
        (["--server", "http://localhost:8000"], "speaks gRPC"),
        (["--config", "/no/such/file"], "No such file"),
        (["--host", "192.0.2.1", "--allow-no-keys"], "can't listen on 192.0.2.1"),
    ],
)
def test_what_the_gateway_cannot_start_with_is_one_line(arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "client", "gateway", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert sentence in ended.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedByTvlm]:
    with serving(echo_output(tmp_path / "out"), f"--gateway-port={free_ports().http}", grace_s=3) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_serve_starts_the_gateway_beside_the_server_and_ends_it_with_it(
    served: ServedByTvlm, number: signal.Signals
) -> None:
    url = next(line.split()[-1] for line in served.printed if line.split()[0] == "gateway")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    assert client.completions.create(model="vlm", prompt="Hi").choices[0].text.startswith("Hi")
    served.process.send_signal(number)
    served.process.wait(30)
    _, alive = psutil.wait_procs(served.family, timeout=20)
    assert alive == []


def gateway_of(served: ServedByTvlm) -> psutil.Process | None:
    children = psutil.Process(served.process.pid).children()
    return next((child for child in children if "gateway" in child.cmdline()), None)


def kill_gateway_of(served: ServedByTvlm) -> None:
    gateway = gateway_of(served)
    assert gateway is not None
    gateway.kill()
    gateway.wait(5)


def test_a_gateway_that_dies_is_started_again_and_triton_serves_on(served: ServedByTvlm) -> None:
    url = next(line.split()[-1] for line in served.printed if line.split()[0] == "gateway")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    triton = [process for process in served.family if "gateway" not in process.cmdline()]
    kill_gateway_of(served)
    assert until(lambda: answers(client), 30)
    assert all(process.is_running() for process in triton)
    assert "the gateway ended by itself: signal SIGKILL" in served.log.read_text()
    served.process.terminate()
    assert served.process.wait(30) == 0


def answers(client: openai.OpenAI) -> bool:
    try:
        return client.completions.create(model="vlm", prompt="Hi").choices[0].text.startswith("Hi")
    except (openai.APIConnectionError, openai.InternalServerError):  # not yet
        return False


def test_serve_ends_with_an_error_when_its_gateway_dies_again_and_again(served: ServedByTvlm) -> None:
    for _ in range(3):
        assert until(lambda: gateway_of(served) is not None, 10)
        kill_gateway_of(served)
    assert served.process.wait(40) == 1
    assert "the gateway ended by itself, 3 times within 60 s: signal SIGKILL" in served.log.read_text()
    _, alive = psutil.wait_procs(served.family, timeout=20)
    assert alive == []
