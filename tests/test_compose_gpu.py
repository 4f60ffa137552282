"""What the gpu profile makes of the committed configurations."""

# ruff: noqa: F811  (fixtures of another module)
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from build_engines import build, facts, is_stale
from build_engines.compose import MODELS, compose_repository, read_config
from build_engines.errors import BuildError
from build_engines.gpu_steps import link_checkpoint
from build_engines.llm_trtllm import MODEL_YAML
from build_engines.tensorrt_plan import TIMING_CACHE, from_json
from build_engines.warmup import add_warmup
from python_backends.checkpoint import Checkpoint
from python_backends.deployment import load_deployment, parse_deployment
from python_backends.workers.targets import gpu_environment
from tests.test_compose import FakeSteps, as_huggingface, checkpoint, output, steps, write_deployment  # noqa: F401
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


@pytest.fixture
def huggingface(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face folder, on a machine that has what exports it; the steps themselves are faked."""
    monkeypatch.setattr(facts, "_is_installed", lambda name: name != "optimum.intel")
    monkeypatch.setattr("build_engines.fingerprint.metadata.version", lambda name: "1")
    return as_huggingface(checkpoint)


def test_a_build_for_gpus_makes_a_plan_links_the_llm_and_writes_model_yaml(
    tmp_path: Path, huggingface: Path, output: Path, steps: FakeSteps
) -> None:
    path = write_deployment(tmp_path, profile="gpu", pools={"vision": {"batch_size": 4, "profile_batches": [1, 4]}})
    build(path, output)
    assert sorted(call for call in steps.calls if call != "checkpoint.json") == ["llm", "tokenizer.json", "vision"]
    precision, profiles, timing_cache = steps.options["vision"]
    assert precision == "f16"
    assert timing_cache == str(output.parent / TIMING_CACHE), "beside the builds: it outlives this one"
    counts = [[shape[0] for shape in profile.shapes["tiles"]] for profile in from_json(profiles)]
    assert counts == [[1, 1, 1], [2, 4, 4]]
    assert (output / "artifacts" / MODEL_YAML).is_file()
    assert not is_stale(path, output)
    other = write_deployment(tmp_path, profile="gpu", pools={"vision": {"batch_size": 4}})
    steps.calls.clear()
    assert set(build(other, output).reused) == {"llm", "tokenizer.json"}


def test_gpus_need_a_checkpoint_with_weights(tmp_path: Path, checkpoint: Path, output: Path) -> None:
    with pytest.raises(BuildError, match=r"tensorrt is not installed: build in the image|is no Hugging Face folder"):
        build(write_deployment(tmp_path, profile="gpu"), output)


def test_the_llms_files_are_linked(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "hub" / "model.safetensors").symlink_to("../blob")
    link_checkpoint(tmp_path / "hub", tmp_path / "llm")
    linked = tmp_path / "llm" / "model.safetensors"
    assert not linked.is_symlink()
    assert linked.samefile(tmp_path / "blob")


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
