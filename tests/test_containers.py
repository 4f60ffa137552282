"""What is in containers/: the launcher with fakes of MPI, Dockerfiles, compose files and the dashboard."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from containers.grafana.make_dashboard import PANELS, dashboard
from python_backends import metrics
from tests.waiting import until

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "containers"
FAKE_TVLM = """#!/usr/bin/env bash
echo "tvlm $CUDA_VISIBLE_DEVICES $(printf '[%s]' "$@")" >> "$FAKE_LOG"
trap 'echo drained >> "$FAKE_LOG"; exit 7' TERM
[[ -n ${FAKE_TVLM_ENDS:-} ]] && exit 3
while true; do sleep 0.05; done
"""
FAKE_MPIRUN = """#!/usr/bin/env bash
echo "mpirun $CUDA_VISIBLE_DEVICES $1 $2 $3 $4" >> "$FAKE_LOG"
shift 4
exec "$@"
"""
# as the real one: arguments split at spaces, in the background, and a leader that never ends by itself
FAKE_LAUNCH = """#!/usr/bin/env bash
command="${@:1}"
$command &
exec sleep 1000
"""


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose tvlm, mpirun and trtllm-llmapi-launch are fakes."""
    for name, text in (("tvlm", FAKE_TVLM), ("mpirun", FAKE_MPIRUN), ("trtllm-llmapi-launch", FAKE_LAUNCH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "FAKE_LOG": str(tmp_path / "log"),
        "TVLM_OUTPUT": str(tmp_path / "out put"),
    }


def deployment(folder: Path, **text: Any) -> Path:
    path = folder / "large.yaml"
    path.write_text(yaml.safe_dump({"checkpoint": "c", "profile": "gpu", "pools": {"text": text}}))
    return path


def start(environment: dict[str, str], path: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([FOLDER / "serve", path, *options], env=environment, cwd=ROOT)


def logged(environment: dict[str, str]) -> list[str]:
    path = Path(environment["FAKE_LOG"])
    return path.read_text().splitlines() if path.exists() else []


def test_with_tensor_parallelism_mpi_runs_around_the_server_and_sigterm_reaches_it(
    fakes: dict[str, str], tmp_path: Path
) -> None:
    process = start(fakes, deployment(tmp_path, gpus=[2, 3], tensor_parallel=2), "--grace-s", "30")
    assert until(lambda: len(logged(fakes)) == 2, 20)
    mpirun, tvlm = logged(fakes)
    assert mpirun == "mpirun 6,7 --allow-run-as-root --oversubscribe -n 2"
    assert tvlm.startswith("tvlm 4,5,6,7 [serve][--deployment]"), "the server sees all GPUs"
    assert f"[--output][{fakes['TVLM_OUTPUT']}/large]" in tvlm
    assert tvlm.endswith("[--grace-s][30]")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 7
    assert logged(fakes)[2:] == ["drained"]


def test_when_the_server_ends_so_does_all_else(fakes: dict[str, str], tmp_path: Path) -> None:
    process = start({**fakes, "FAKE_TVLM_ENDS": "1"}, deployment(tmp_path, gpus=[2, 3], tensor_parallel=2))
    assert process.wait(20) == 3


def test_with_one_gpu_a_replica_there_is_no_mpi(fakes: dict[str, str], tmp_path: Path) -> None:
    process = start(fakes, deployment(tmp_path, gpus=[0, 1], replicas=2))
    assert until(lambda: len(logged(fakes)) == 1, 20)
    assert logged(fakes)[0].startswith("tvlm 4,5,6,7 [serve]")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 7


def test_what_is_wrong_with_the_file_is_told_by_tvlm(fakes: dict[str, str], tmp_path: Path) -> None:
    process = start({**fakes, "FAKE_TVLM_ENDS": "1"}, tmp_path / "nowhere.yaml")
    assert process.wait(20) == 3
    assert "nowhere.yaml" in logged(fakes)[0]


def test_the_dashboard_is_the_one_that_is_written_down() -> None:
    assert json.loads((FOLDER / "grafana" / "triton-vlm.json").read_text()) == dashboard()


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    asked = {name for _, _, queries in PANELS for text, _ in queries for name in re.findall(r"\btvlm_\w+", text)}
    known = {metric.name + suffix for metric in metrics.ALL for suffix in ("", "_bucket", "_sum", "_count")}
    assert asked <= known


class _Merging(yaml.SafeLoader):
    """Knows the tag with which compose files take something back."""


_Merging.add_constructor("!reset", lambda loader, node: None)


def compose(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load((FOLDER / name).read_text(), _Merging)
    return read


def test_files_that_the_compose_file_mounts_are_there() -> None:
    services = compose("compose.yaml")["services"]
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    for mount in mounts:
        assert not mount.startswith("./") or (FOLDER / mount).is_file(), mount
    for service in services.values():
        if "build" in service:
            assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_cpu_file_changes_services_that_there_are() -> None:
    assert compose("compose.cpu.yaml")["services"].keys() <= compose("compose.yaml")["services"].keys()


def test_the_grace_times_are_longer_than_what_is_waited_for() -> None:
    services = compose("compose.yaml")["services"]
    assert services["triton"]["stop_grace_period"] == "150s", "serving.grace_s is 120 by default"
    assert services["gateway"]["stop_grace_period"] == "130s" and "--grace-s=120" in services["gateway"]["command"]


@pytest.mark.containers
@pytest.mark.parametrize("path", sorted(FOLDER.glob("Dockerfile*")), ids=lambda path: path.name)
def test_dockerfiles_pass_hadolint(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")  # the environment need not be activated
    subprocess.run([hadolint, "--failure-threshold", "warning", path], check=True)


@pytest.mark.containers
def test_the_compose_file_follows_the_specification() -> None:
    from compose_spec import PyCompose  # noqa: PLC0415

    text = re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", (FOLDER / "compose.yaml").read_text())
    read = PyCompose.from_yaml(text)
    read.validate()
    assert set(read.service_names()) == {"triton", "gateway", "prometheus", "grafana"}
