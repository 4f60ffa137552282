"""`tvlm` as its users run it: errors in one line, a clean end, no process left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from client import VlmClient
from tests.conftest import ROOT, echo_output, free_ports

DEPLOYMENT = ROOT / "deployments" / "demo-cpu.yaml"
FAKE_TVLM = ROOT / "tests" / "fakes" / "tvlm_prebuilt.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def tvlm(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FAKE_TVLM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT, cwd=cwd)


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert result.returncode == 1, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


class ServedByTvlm:
    """A running `tvlm serve` on the echo fake, up to its "Ready" line."""

    def __init__(self, output: Path) -> None:
        self.ports = free_ports()
        asked = [f"--{name}-port={port}" for name, port in vars(self.ports).items()]
        command = [sys.executable, FAKE_TVLM, "serve", "-d", DEPLOYMENT, "-o", output, "--host", "127.0.0.1", *asked]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.printed: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if line.startswith("Ready"):
                break
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def names(self) -> set[str]:
        return {process.name()[:15] for process in self.family}


@pytest.fixture
def served(tmp_path):
    server = ServedByTvlm(echo_output(tmp_path / "out"))
    yield server
    server.process.kill()
    server.process.wait()
    for process in server.family:
        if process.is_running():
            process.kill()


def test_serve_prints_endpoints_that_answer(served):
    printed = "".join(served.printed)
    url = re.search(r"grpc://127\.0\.0\.1:\d+", printed)
    assert url is not None, printed
    with VlmClient(url[0]) as vlm:
        assert vlm.generate("Hi").text.startswith("Hi")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_serve_cleanly_with_all_its_processes(served, number):
    assert {"tritonserver", "triton_python_b"} <= served.names()
    served.process.send_signal(number)
    assert served.process.wait(30) == 0
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []


def test_killing_tvlm_ends_all_its_processes(served):
    served.process.kill()
    _, alive = psutil.wait_procs(served.family, timeout=20)
    assert alive == []


def test_serve_reports_a_tritonserver_that_ends_by_itself(served):
    next(process for process in served.family if process.name() == "tritonserver").kill()
    assert served.process.wait(30) == 1
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []


def test_an_idle_http_connection_does_not_leave_processes_behind(served):
    with socket.create_connection(("127.0.0.1", served.ports.http)):
        served.process.terminate()
        assert served.process.wait(40) == 0
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []


def test_a_missing_deployment_file_is_one_line():
    assert "deployment file /no/such.yaml: No such file" in error_line(tvlm("serve", "-d", "/no/such.yaml"))


def test_an_unknown_key_is_one_line_with_the_nearest_key(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("checkpoint: x\nlimit: {}\n")
    assert "unknown key 'limit' (did you mean 'limits'?)" in error_line(tvlm("serve", "-d", file))


def test_a_port_in_use_is_one_line_that_says_what_to_do():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        line = error_line(tvlm("serve", "-d", DEPLOYMENT, "--host", "127.0.0.1", "--grpc-port", port))
    assert f"port {port} is in use" in line
    assert "--grpc-port" in line


def test_a_folder_that_is_not_composed_is_one_line(tmp_path):
    line = error_line(tvlm("serve", "-d", DEPLOYMENT, "-o", tmp_path))
    assert "holds no model_repository; compose it with `tvlm build`" in line


def test_a_model_that_does_not_load_is_named_with_its_reason(tmp_path):
    output = echo_output(tmp_path / "out")
    model = output / "model_repository" / "vlm" / "1" / "model.py"
    model.write_text(model.read_text().replace("self.cancellations = 0", "raise ValueError('no engine in artifacts')"))
    line = error_line(tvlm("serve", "-d", DEPLOYMENT, "-o", output, "--host", "127.0.0.1"))
    assert "model vlm did not load" in line
    assert "no engine in artifacts" in line


def test_default_output_is_build_and_the_deployments_name(tmp_path):
    line = error_line(tvlm("serve", "-d", DEPLOYMENT, cwd=tmp_path))
    assert "build/demo-cpu holds no model_repository" in line


def test_ask_prints_the_answer_and_keeps_the_order_of_images(echo_server, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    asked = tvlm("ask", "Look", "--url", echo_server.grpc, "--image", "b", "--image", "a", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("Look images=['3e23e816', 'ca978112']")


def test_ask_streams_and_prints_json(echo_server):
    streamed = tvlm("ask", "one two", "--stream", "--url", echo_server.http, "--max-tokens", 5)
    assert streamed.stdout.startswith('one two images=[] sampling={"max_tokens": 5}')
    assert '"finish_reason": "stop"' in tvlm("ask", "one", "--json", "--url", echo_server.grpc).stdout


def test_ask_without_a_server_is_one_line():
    assert "no server answers at grpc://127.0.0.1:9" in error_line(tvlm("ask", "Hi", "--url", "grpc://127.0.0.1:9"))


@pytest.mark.parametrize("command", ["build", "serve", "demo", "ask"])
def test_help_shows_examples(command):
    helped = tvlm(command, "--help")
    assert helped.returncode == 0
    assert "Examples:" in helped.stdout
    assert f"tvlm {command}" in helped.stdout
