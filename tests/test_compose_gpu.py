"""What the gpu profile makes of the committed configurations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from build_engines.compose import MODELS, compose_repository, read_config
from build_engines.errors import BuildError
from build_engines.warmup import add_warmup
from python_backends.checkpoint import Checkpoint
from python_backends.deployment import load_deployment, parse_deployment
from python_backends.workers.targets import gpu_environment
from tests.test_deployment_gpu import GPU_FILES

CHECKPOINT = Checkpoint(
    name="tiny", image_size=32, tokens_per_tile=4, hidden_size=8, vocab_size=100, kv_bytes_per_token=64,
    context_tokens=64, image_token="<image>", eos_token_ids=(0,),
)  # fmt: skip


def composed(folder: Path, **pools: Any) -> dict[str, Any]:
    deployment = parse_deployment({"checkpoint": "c", "profile": "gpu", "pools": pools}, "test")
    compose_repository(deployment, CHECKPOINT, folder)
    return {model.name: read_config(model / "config.pbtxt") for model in folder.iterdir()}


@pytest.mark.parametrize("path", GPU_FILES, ids=lambda path: path.stem)
def test_shipped_deployments_compose(path: Path, tmp_path: Path) -> None:
    deployment = load_deployment(path)
    compose_repository(deployment, CHECKPOINT, tmp_path)
    models = {model.name: read_config(model / "config.pbtxt") for model in tmp_path.iterdir()}
    assert set(models) == {"vlm", "image_embedding", "image_decode", "vision_encoder"} | {
        f"llm_decoder_{replica}" for replica in range(deployment.pools.text.replicas)
    }
    assert list(models["vision_encoder"].instance_group[0].gpus) == list(deployment.pools.vision.gpus)


def test_stages_are_placed_on_their_gpus(tmp_path: Path) -> None:
    models = composed(
        tmp_path,
        preprocess={"gpus": [0]},
        vision={"gpus": [0, 1], "instances": 2, "batch_size": 16},
        text={"gpus": [2, 3], "tensor_parallel": 2},
    )
    (group,) = models["vision_encoder"].instance_group
    assert (group.kind, list(group.gpus), group.count) == (group.KIND_GPU, [0, 1], 2)
    assert models["vision_encoder"].max_batch_size == 16
    (group,) = models["image_decode"].instance_group
    assert (group.kind, list(group.gpus)) == (group.KIND_GPU, [0])
    (group,) = models["llm_decoder_0"].instance_group
    assert (group.kind, list(group.gpus), group.count) == (group.KIND_MODEL, [], 1)
    assert models["llm_decoder_0"].parameters["gpus"].string_value == "2,3"
    (group,) = models["vlm"].instance_group
    assert group.kind == group.KIND_CPU


def test_each_replica_has_its_gpu(tmp_path: Path) -> None:
    models = composed(tmp_path, text={"gpus": [2, 3], "replicas": 2})
    assert [models[f"llm_decoder_{n}"].parameters["gpus"].string_value for n in range(2)] == ["2", "3"]


def test_inputs_stay_on_gpus(tmp_path: Path) -> None:
    models = composed(tmp_path)
    for name in ("vision_encoder", "llm_decoder_0"):
        assert models[name].parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"


@pytest.mark.parametrize(("text", "limited"), [([0], True), ([1], False)])
def test_encode_is_rate_limited_where_it_shares_a_gpu_with_the_llm(
    tmp_path: Path, text: list[int], limited: bool
) -> None:
    models = composed(tmp_path, vision={"gpus": [0]}, text={"gpus": text})
    resources = models["vision_encoder"].instance_group[0].rate_limiter.resources
    assert [(resource.name, resource.count) for resource in resources] == ([("encode", 1)] if limited else [])


def test_pictures_can_be_decoded_on_cpus(tmp_path: Path) -> None:
    decode = composed(tmp_path, preprocess={"device": "cpu", "instances": 3})["image_decode"]
    group = decode.instance_group[0]
    assert (group.kind, list(group.gpus), group.count) == (group.KIND_CPU, [], 3)
    assert not decode.model_warmup


def test_stages_warm_up_with_one_picture(tmp_path: Path) -> None:
    models = composed(tmp_path)
    for name in ("image_decode", "vision_encoder"):
        (request,) = models[name].model_warmup
        assert set(request.inputs) == {tensor.name for tensor in models[name].input}
        for tensor in request.inputs.values():
            assert (tmp_path / name / "warmup" / tensor.input_data_file).stat().st_size > 0
    tiles = models["vision_encoder"].model_warmup[0].inputs["tiles"]
    assert list(tiles.dims) == [1, 32, 32, 3]
    assert (tmp_path / "vision_encoder" / "warmup" / "tiles").stat().st_size == 32 * 32 * 3


def test_an_input_without_an_example_is_no_silent_hole(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "llm_decoder", tmp_path / "llm_decoder")
    with pytest.raises(BuildError, match="no warm-up is known for an input named 'op'"):
        add_warmup(tmp_path / "llm_decoder", CHECKPOINT)


@pytest.mark.parametrize(
    ("ours", "gpus", "seen"),
    [(None, [2], "2"), ("4,5,6,7", [0, 2], "4,6"), ("GPU-aa,GPU-bb", [1], "GPU-bb"), (None, [], None)],
)
def test_a_worker_sees_its_gpus_as_its_server_counts_them(
    monkeypatch: pytest.MonkeyPatch, ours: str | None, gpus: list[int], seen: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if ours is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
    assert gpu_environment(gpus).get("CUDA_VISIBLE_DEVICES") == seen
