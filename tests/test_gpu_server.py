"""The gpu repository where there is no GPU: the real tritonserver reads it, and every stage says what is missing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

from build_engines.compose import compose_repository, read_config, write_config
from build_engines.llm_trtllm import write_model_yaml
from build_engines.warmup import add_warmup
from client import VlmClient
from client.serving.ports import Ports
from client.serving.process import TritonProcess
from client.serving.runtime import find_runtime
from client.serving.server import Endpoints, Server
from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, parse_deployment
from python_backends.engines.vision_stage import EncodeStage
from python_backends.errors import ServingError
from python_backends.media.stage import DecodeStage
from tests.composed import composed_demo
from tests.conftest import free_ports
from tests.waiting import until

CLOSE = {"Connection": "close"}  # tritonserver waits for idle connections before it ends
# what is missing first differs with what is installed: nothing, PyTorch alone, all but the GPU, all but the plan
MISSING = "is not installed|no CUDA device is there|does not start|does not load|is not there"


def gpu_output(folder: Path) -> Path:
    """The demo checkpoint composed for profile gpu; its engines are not there."""
    deployment: Deployment = parse_deployment({"checkpoint": "demo", "profile": "gpu"}, "test")
    artifacts = folder / "artifacts"
    shutil.copytree(composed_demo() / "artifacts", artifacts)
    (artifacts / BUILT_FILE).write_text(deployment.model_dump_json())
    write_model_yaml(deployment, artifacts)
    compose_repository(deployment, load_checkpoint(artifacts), folder / "model_repository")
    return folder


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpu_output(tmp_path_factory.mktemp("gpu"))


@contextmanager
def tritonserver(output: Path, *options: str) -> Iterator[Ports]:
    """Running on a composed folder; its models are loaded, or have failed to."""
    ports = free_ports()
    process = TritonProcess(
        find_runtime(output / "runtime"), output / "model_repository", ports, "127.0.0.1", output / "log",
        options=options,
    )  # fmt: skip

    def lives() -> bool:
        assert process.poll() is None, process.failure()
        try:
            answers = [
                urllib3.request("GET", f"http://127.0.0.1:{place}", headers=CLOSE, timeout=2.0, retries=False)
                for place in (f"{ports.http}/v2/health/live", f"{ports.metrics}/metrics")
            ]
        except urllib3.exceptions.HTTPError:
            return False
        return all(answer.status == 200 for answer in answers)

    try:
        assert until(lives, 60)
        yield ports
    finally:
        process.stop()


@pytest.fixture(scope="module")
def models(output: Path) -> dict[str, dict[str, Any]]:
    """State of every model, as a tritonserver that goes on without those that fail to load tells it."""
    going_on = ("--exit-on-error=false", "--strict-readiness=false", "--rate-limit=execution_count")
    with tritonserver(output, *going_on) as ports:
        index = urllib3.request("POST", f"http://127.0.0.1:{ports.http}/v2/repository/index", headers=CLOSE)
    return {model["name"]: model for model in index.json()}


@pytest.mark.server
def test_every_configuration_is_read(models: dict[str, dict[str, Any]]) -> None:
    assert set(models) == {"vlm", "image_embedding", "image_decode", "vision_encoder", "llm_decoder_0"}
    for model in models.values():
        assert "text-format" not in model.get("reason", ""), "Triton's words for a configuration that it can't parse"


@pytest.mark.server
def test_the_router_says_where_its_pages_can_not_be(models: dict[str, dict[str, Any]]) -> None:
    """On the GPU that vision and text share."""
    assert models["vlm"]["state"] == "UNAVAILABLE"
    reason = models["vlm"]["reason"]
    assert re.search("cuda-python is not installed|the embedding pool can't use GPU 0", reason), reason
    assert "or set cache.memory: host" in reason


@pytest.mark.server
def test_warm_up_requests_pass_through_the_real_stages(tmp_path: Path) -> None:
    """On CPUs: a model whose warm-up fails does not load."""
    artifacts = tmp_path / "artifacts"
    artifacts.symlink_to(composed_demo() / "artifacts")
    stages = ("image_decode", "vision_encoder")
    for name in stages:
        shutil.copytree(composed_demo() / "model_repository" / name, tmp_path / "model_repository" / name)
        add_warmup(tmp_path / "model_repository" / name, load_checkpoint(artifacts))
    with tritonserver(tmp_path) as ports:
        metrics = f"http://127.0.0.1:{ports.metrics}/metrics"
        counted = urllib3.request("GET", metrics, headers=CLOSE).data.decode()
    for name in stages:
        assert re.search(rf'nv_inference_exec_count{{model="{name}",version="1"}} [12]', counted), name


@pytest.mark.server
def test_the_llm_says_what_is_missing(models: dict[str, dict[str, Any]]) -> None:
    assert models["llm_decoder_0"]["state"] == "UNAVAILABLE"
    assert any(part in models["llm_decoder_0"]["reason"] for part in MISSING.split("|")), models["llm_decoder_0"]


@pytest.mark.server
@pytest.mark.parametrize("name", ["image_decode", "vision_encoder"])
def test_triton_itself_refuses_gpu_instances_where_there_are_none(models: dict[str, Any], name: str) -> None:
    assert "GPU" in models[name]["reason"]


@pytest.mark.parametrize("stage", [DecodeStage, EncodeStage])
def test_a_stage_says_what_is_missing(output: Path, stage: Any) -> None:
    made = stage("a_stage", output / "artifacts", gpus=[0])
    with pytest.raises(ServingError, match=f"a_stage: MissingRuntime: .*({MISSING})"):
        made.start()
    made.close()


FAKE_CUDA = """import pytest as _pytest
from tests.fakes import cuda as _cuda
_cuda.install(_pytest.MonkeyPatch())
"""
FAKE_ENCODER = """from python_backends.workers.targets import ENCODE as _encode
_encode["gpu"] = "tests.fakes.gpu_workers:PagesOnly"
"""
DECODER = ("TEXT[deployment.pools.text.device]", '"tests.fakes.gpu_workers:Decoder"')


def output_on_a_fake_gpu(folder: Path) -> Path:
    """The demo of profile gpu with pages in the memory of a fake GPU, around the engines of profile cpu."""
    output = gpu_output(folder)
    models = output / "model_repository"
    for name, before in {"vlm": FAKE_CUDA, "vision_encoder": FAKE_ENCODER, "llm_decoder_0": ""}.items():
        code = models / name / "1" / "model.py"
        code.write_text(before + code.read_text().replace(*DECODER))
    for stage in ("image_decode", "vision_encoder"):  # Triton has no GPU to put them on
        shutil.rmtree(models / stage / "warmup", ignore_errors=True)
        config = read_config(models / stage / "config.pbtxt")
        del config.model_warmup[:], config.instance_group[0].gpus[:]
        config.instance_group[0].kind = config.instance_group[0].KIND_CPU
        write_config(config, models / stage)
    deployment = Deployment.model_validate_json((output / "artifacts" / BUILT_FILE).read_text())
    on_cpu = deployment.pools.preprocess.model_copy(update={"device": "cpu"})
    pools = deployment.pools.model_copy(update={"preprocess": on_cpu})
    (output / "artifacts" / BUILT_FILE).write_text(deployment.model_copy(update={"pools": pools}).model_dump_json())
    return output


@pytest.mark.server
def test_answers_from_pages_on_a_gpu_are_those_of_pages_in_host_memory(tmp_path: Path, demo_server: Endpoints) -> None:
    """Through the whole graph of the real tritonserver; asked twice, as the second time encodes nothing."""
    pictures = sorted((Path(__file__).parents[1] / "docs" / "pictures").glob("*.png"))[:3]
    asked = [("What is in the picture?", [picture]) for picture in pictures]
    asked.append(("Which shapes are there?", pictures[:2]))

    def answers(url: str) -> list[str]:
        with VlmClient(url) as client:
            return [
                client.generate(question, images=images, max_tokens=12, temperature=0).text
                for question, images in asked * 2
            ]

    expected = answers(demo_server.grpc)
    with Server(output_on_a_fake_gpu(tmp_path), free_ports()) as server:
        assert answers(server.endpoints.grpc) == expected
