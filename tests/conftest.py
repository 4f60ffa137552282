"""Servers that tests share: each is started once a session, by the product's own serving code."""

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


def free_ports() -> Ports:
    probes = [socket.socket() for _ in range(3)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
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
