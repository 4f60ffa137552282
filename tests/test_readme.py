"""The examples of README.md and of docs/, as written, against the real server and gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client.serving.server import Endpoints
from tests.gateways import RunningGateway

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[1]
EXAMPLES = [
    pytest.param(kind, code, id=f"{page.stem}-{number}-{kind}")
    for page in (ROOT / "README.md", ROOT / "docs" / "clients.md", ROOT / "docs" / "openai-api.md")
    for number, (kind, code) in enumerate(
        re.findall(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", page.read_text(), re.DOTALL)
    )
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 11


@pytest.mark.parametrize(("kind", "code"), EXAMPLES)
def test_example_runs_and_prints_an_answer(
    demo_server: Endpoints, demo_gateway: RunningGateway, kind: str, code: str
) -> None:
    code = code.replace("localhost:8080", demo_gateway.url.removeprefix("http://"))
    code = code.replace("localhost:8000", demo_server.http.removeprefix("http://"))
    code = code.replace("localhost:8001", demo_server.grpc.removeprefix("grpc://"))
    code = code.replace("tvlm ask", f"tvlm ask --url {demo_server.grpc}")
    command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-euo", "pipefail", "-c", code]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '"error"' not in done.stdout.replace('"error":"[CANCELLED] ', "")  # what an example stops itself
