"""Servers that tests share: each is started once a session, by the product's own serving code."""

import contextlib
import importlib.util
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.serving.ports import Ports
from client.serving.server import Endpoints, Server
from tests.composed import composed_demo
from tests.gateways import RunningGateway

ROOT = Path(__file__).parents[1]

# What exports and builds from Hugging Face checkpoints has an environment of its own; see the Makefile.
_NEEDS = {
    "export/test_vision_onnx.py": ("torch", "transformers", "onnxscript", "onnxruntime"),
    "export/test_end_to_end.py": ("torch", "transformers", "optimum", "nncf"),
    "export/test_llm_weights.py": ("torch", "transformers", "optimum", "nncf"),
    "export/test_qwen.py": ("torch", "transformers", "onnxscript", "onnxruntime"),
    "export/test_gpu_build.py": ("torch", "transformers", "onnxscript", "tensorrt_rtx"),
}
_MISSING = {
    path: missing
    for path, names in _NEEDS.items()
    if (missing := [name for name in names if importlib.util.find_spec(name) is None])
}
collect_ignore = list(_MISSING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for path, missing in _MISSING.items():
        reason = f"{', '.join(missing)} not installed: make test-export, make test-gpu-build"
        terminalreporter.write_line(f"left out: tests/{path}, {reason}")


def free_ports() -> Ports:
    """Below those that the kernel gives to outgoing connections: one of these could come before the server does."""
    ports: set[int] = set()
    while len(ports) < 3:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return Ports(*ports)


def echo_output(folder: Path) -> Path:
    """A folder that looks composed; its only model is the fake `vlm` of tests/fakes/echo."""
    shutil.copytree(ROOT / "tests" / "fakes" / "echo", folder / "model_repository")
    return folder


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A tritonserver whose `vlm` is the echo fake."""
    with Server(echo_output(tmp_path_factory.mktemp("echo")), free_ports()) as server:
        yield server.endpoints


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Endpoints]:
    """The demo deployment, real in every part."""
    with Server(composed_demo(), free_ports()) as server:
        yield server.endpoints


@pytest.fixture(scope="session")
def echo_gateway(echo_server: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the default settings in front of the echo fake."""
    with RunningGateway(tmp_path_factory.mktemp("gateway"), servers=[echo_server.grpc]) as running:
        yield running


@pytest.fixture(scope="session")
def demo_gateway(demo_server: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the default settings in front of the demo deployment."""
    with RunningGateway(tmp_path_factory.mktemp("gateway"), servers=[demo_server.grpc]) as running:
        yield running


@pytest.fixture(scope="session")
def demo_artifacts() -> Path:
    """The artifacts of the composed demo deployment."""
    return composed_demo() / "artifacts"
