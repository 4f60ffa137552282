"""`tvlm` as its users run it: errors in one line, a clean end, no process left behind."""

import contextlib
import importlib.util
import json
import re
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import build_engines
from client import RetryPolicy, VlmClient
from client.cli import main
from client.serving.ports import choose_ports
from client.serving.server import Server
from tests.conftest import ROOT, echo_output, free_ports
from tests.served import DEPLOYMENT, serving


@dataclass
class Result:
    status: int
    stdout: str
    stderr: str

    def error_line(self) -> str:
        """The one line of a refusal."""
        assert self.status == 1, self
        lines = self.stderr.strip().splitlines()
        assert len(lines) == 1, self.stderr
        return lines[0]


@pytest.fixture
def tvlm(monkeypatch, capsys):
    """Runs `tvlm` with arguments in this process; every folder counts as composed."""
    monkeypatch.setattr(build_engines, "is_stale", lambda *_: False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["tvlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_status:
            main()
        return Result(int(exit_status.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def served(tmp_path):
    with serving(echo_output(tmp_path / "out")) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_serve_answers_where_it_says_until_a_signal_ends_it_with_all_its_processes(served, number):
    url = re.search(r"grpc://127\.0\.0\.1:\d+", "".join(served.printed))
    assert url is not None, served.printed
    with VlmClient(url[0]) as vlm:
        assert vlm.generate("Hi").text.startswith("Hi")
    assert {"tritonserver", "triton_python_b"} <= served.names()
    served.process.send_signal(number)
    assert served.process.wait(30) == 0
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []


def test_a_kill_leaves_neither_processes_nor_shared_memory_behind(served):
    served.process.kill()
    _, alive = psutil.wait_procs(served.family, timeout=20)
    assert alive == []
    assert served.regions() == []


@pytest.mark.parametrize("victim", ["tritonserver", "guard"])
def test_a_tritonserver_that_ends_by_itself_is_started_again_and_leaves_nothing(served, victim):
    regions = served.regions()
    server = next(process for process in served.family if process.name() == "tritonserver")
    (server if victim == "tritonserver" else server.parent()).kill()
    _, alive = psutil.wait_procs(served.family, timeout=20)
    assert alive == []
    with VlmClient(served.grpc, retry=RetryPolicy(attempts=20)) as vlm:
        assert vlm.generate("Hi").text.startswith("Hi")
    assert not set(regions) & set(served.regions())
    served.process.terminate()
    assert served.process.wait(30) == 0
    assert served.regions() == []


def test_a_second_signal_ends_a_draining_server_at_once(served):
    with VlmClient(served.grpc) as vlm:
        stream = vlm.stream("forever")
        next(stream)
        served.process.terminate()
        assert "Draining" in served.next_line()
        next(stream)
        served.process.terminate()
        assert served.process.wait(30) != 0  # sooner than the grace time
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []


def test_an_idle_http_connection_leaves_neither_processes_nor_shared_memory_behind(served):
    with socket.create_connection(("127.0.0.1", served.ports.http)):
        served.process.terminate()
        assert served.process.wait(40) == 0
    _, alive = psutil.wait_procs(served.family, timeout=10)
    assert alive == []
    assert served.regions() == []


def test_a_missing_deployment_file_is_one_line(tvlm):
    line = tvlm("serve", "-d", "/no/such.yaml").error_line()
    assert "deployment file /no/such.yaml: No such file" in line


def test_an_unknown_key_is_one_line_with_the_nearest_key(tvlm, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("checkpoint: x\nlimit: {}\n")
    assert "unknown key 'limit' (did you mean 'limits'?)" in tvlm("serve", "-d", file).error_line()


def test_a_port_in_use_is_one_line_that_says_what_to_do(tvlm):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        line = tvlm("serve", "-d", DEPLOYMENT, "--host", "127.0.0.1", "--grpc-port", port).error_line()
    assert f"port {port} is in use" in line
    assert "--grpc-port" in line


def test_ports_left_out_step_over_those_in_use():
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another server has it: busy all the same
            busy.bind(("127.0.0.1", 8000))
            busy.listen()
        ports = choose_ports("127.0.0.1")
    assert ports.http != 8000
    assert len({ports.http, ports.grpc, ports.metrics}) == 3


def test_a_folder_that_is_not_composed_is_one_line(tvlm, tmp_path):
    line = tvlm("serve", "-d", DEPLOYMENT, "-o", tmp_path).error_line()
    assert "holds no model_repository; compose it with `tvlm build`" in line


def test_no_tritonserver_is_one_line_that_says_how_to_get_one(tvlm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    line = tvlm("serve", "-d", DEPLOYMENT, "-o", echo_output(tmp_path / "out"), "--host", "127.0.0.1").error_line()
    assert "no tritonserver found" in line
    assert "pip install" in line


def test_a_model_that_does_not_load_is_named_with_its_reason(tvlm, tmp_path):
    output = echo_output(tmp_path / "out")
    model = output / "model_repository" / "vlm" / "1" / "model.py"
    model.write_text(model.read_text().replace("self.cancellations = 0", "raise ValueError('no engine in artifacts')"))
    line = tvlm("serve", "-d", DEPLOYMENT, "-o", output, "--host", "127.0.0.1").error_line()
    assert "model vlm did not load" in line
    assert "no engine in artifacts" in line


def test_default_output_is_build_and_the_deployments_name(tvlm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "build/demo-cpu holds no model_repository" in tvlm("serve", "-d", DEPLOYMENT).error_line()


def test_ask_prints_the_answer_and_keeps_the_order_of_images(tvlm, echo_server, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    asked = tvlm("ask", "Look", "--url", echo_server.grpc, "--image", tmp_path / "b", "--image", tmp_path / "a")
    assert asked.status == 0, asked
    assert asked.stdout.startswith("Look images=['3e23e816', 'ca978112']")


def test_ask_streams_and_prints_json(tvlm, echo_server):
    streamed = tvlm("ask", "one two", "--stream", "--url", echo_server.http, "--max-tokens", 5)
    assert streamed.stdout.startswith('one two images=[] sampling={"max_tokens": 5}')
    assert json.loads(tvlm("ask", "one", "--json", "--url", echo_server.grpc).stdout)["finish_reason"] == "stop"


def test_ask_without_a_server_is_one_line(tvlm):
    assert "no server answers at grpc://127.0.0.1:9" in tvlm("ask", "Hi", "--url", "grpc://127.0.0.1:9").error_line()


@pytest.mark.parametrize("command", ["build", "serve", "demo", "ask"])
def test_help_shows_examples(tvlm, command):
    helped = tvlm(command, "--help")
    assert helped.status == 0
    assert "Examples:" in helped.stdout
    assert f"tvlm {command}" in helped.stdout


def test_serving_needs_neither_an_activated_environment_nor_a_certain_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stubs find their packages from a bare PATH, and not those of a folder that looks like this project."""
    (tmp_path / "python_backends").mkdir()
    (tmp_path / "python_backends" / "__init__.py").write_text("raise ImportError('the wrong python_backends')")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    probe = tmp_path / "probe" / "model_repository" / "vlm"
    shutil.copytree(ROOT / "tests" / "fakes" / "echo" / "vlm", probe)
    model = probe / "1" / "model.py"
    model.write_text(f"import tokenizers, python_backends.deployment\n{model.read_text()}")
    with Server(Path("probe"), free_ports()) as server, VlmClient(server.endpoints.grpc) as vlm:
        assert vlm.generate("hi").text
