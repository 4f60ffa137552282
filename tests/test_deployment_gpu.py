"""The gpu profile in the deployment file, and what TensorRT-LLM is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.errors import BuildError
from build_engines.llm_trtllm import MODEL_YAML, check_keys, llm_arguments, write_model_yaml
from python_backends.deployment import Deployment, DeploymentError, load_deployment, parse_deployment

FOLDER = Path(__file__).parents[1] / "deployments"
GPU_FILES = sorted(path for path in FOLDER.glob("*.yaml") if "profile: gpu" in path.read_text())


def parsed(pools: Any = None, **values: Any) -> Deployment:
    return parse_deployment({"checkpoint": "c", "profile": "gpu", "pools": pools or {}, **values}, "file")


@pytest.mark.parametrize("path", GPU_FILES, ids=lambda path: path.stem)
def test_the_files_that_are_shipped_are_valid(path: Path) -> None:
    deployment = load_deployment(path)
    check_keys(llm_arguments(deployment))
    assert deployment.limits.context_tokens >= deployment.scheduler.prefill_budget_tokens
    assert Deployment.model_validate_json(deployment.model_dump_json()) == deployment


def test_there_is_one_for_each_machine() -> None:
    assert [path.stem for path in GPU_FILES] == [
        "llava-1.5-7b-2x4090-2xa100",
        "llava-next-7b-1xh100",
        "qwen2.5-vl-32b-4xa100",
        "qwen2.5-vl-7b-1xh100",
    ]


def test_the_profile_says_where_pools_run_that_do_not_say_it() -> None:
    pools = parsed({"preprocess": {"device": "cpu"}}).pools
    assert (pools.preprocess.device, pools.vision.device, pools.text.device) == ("cpu", "gpu", "gpu")
    assert parse_deployment({"checkpoint": "c"}, "file").pools.vision.device == "cpu"


def test_replicas_have_gpus_of_their_own() -> None:
    text = parsed({"text": {"replicas": 2, "gpus": [2, 3]}}).pools.text
    assert [text.replica_gpus(replica) for replica in range(2)] == [(2,), (3,)]
    text = parsed({"text": {"tensor_parallel": 2, "gpus": [2, 3]}}).pools.text
    assert text.replica_gpus(0) == (2, 3)


def test_profiles_cover_every_batch_once() -> None:
    vision = parsed({"vision": {"batch_size": 32, "profile_batches": [1, 8, 32]}}).pools.vision
    assert vision.profiles() == [(1, 1, 1), (2, 8, 8), (9, 32, 32)]
    assert parsed({"vision": {"batch_size": 6}}).pools.vision.profiles() == [(1, 6, 6)]


@pytest.mark.parametrize(
    ("pools", "sentence"),
    [
        ({"vision": {"threads": 2}}, "threads is heeded on device cpu only: leave it out with device gpu"),
        ({"text": {"kv_cache_mb": 4096}}, "kv_cache_mb is heeded on device cpu only"),
        ({"text": {"weights": "int4"}}, "weights is heeded on device cpu only"),
        ({"text": {"gpus": [0, 1]}}, "replicas = 1 of tensor_parallel = 1 need 1 gpus, not 2"),
        (
            {"text": {"replicas": 2, "tensor_parallel": 2, "gpus": [0, 1, 2, 3]}},
            "tensor_parallel over 1 goes with replicas = 1",
        ),
        ({"vision": {"gpus": [1, 1]}}, "'pools.vision.gpus' = [1, 1]: names a GPU twice"),
        ({"vision": {"gpus": []}}, "'pools.vision.gpus'"),
        ({"vision": {"device": "cpu"}}, "pools.vision.device must be gpu in profile gpu"),
        ({"vision": {"profile_batches": [1, 4]}}, "must rise from at least 1 to batch_size = 8"),
        ({"vision": {"graph_batches": [2, 1]}}, "must rise from at least 1"),
        ({"vison": {}}, "unknown key 'pools.vison' (did you mean 'vision'?)"),
        ([], "key 'pools'"),
    ],
)
def test_what_can_not_be_is_refused(pools: Any, sentence: str) -> None:
    with pytest.raises(DeploymentError) as refused:
        parse_deployment({"checkpoint": "c", "profile": "gpu", "pools": pools}, "file")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("pools", "sentence"),
    [
        ({"preprocess": {"device": "gpu"}}, "pools.preprocess.device must be cpu in profile cpu"),
        ({"text": {"tensor_parallel": 2}}, "tensor_parallel is heeded on device gpu only"),
        ({"vision": {"precision": "f16"}}, "must be auto, f32 or bf16 on CPUs"),
    ],
)
def test_gpu_settings_are_refused_on_cpus(pools: Any, sentence: str) -> None:
    with pytest.raises(DeploymentError) as refused:
        parse_deployment({"checkpoint": "c", "pools": pools}, "file")
    assert sentence in str(refused.value)


def test_model_yaml_has_the_deployments_values(tmp_path: Path) -> None:
    text = {
        "gpus": [2, 3],
        "tensor_parallel": 2,
        "max_running": 48,
        "prefill_tokens": 2048,
        "kv_cache_fraction": 0.7,
        "prefix_caching": False,
        "stream_interval": 4,
    }
    write_model_yaml(parsed({"text": text}, limits={"context_tokens": 9000}), tmp_path)
    assert yaml.safe_load((tmp_path / MODEL_YAML).read_text()) == {
        "max_batch_size": 48,
        "max_num_tokens": 2048,
        "max_seq_len": 9000,
        "enable_chunked_prefill": True,
        "tensor_parallel_size": 2,
        "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.7},
        "cuda_graph_config": {"batch_sizes": [1, 2, 4, 8, 16, 32, 48], "enable_padding": True},
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "stream_interval": 4,
        "enable_iter_perf_stats": True,
    }


@pytest.mark.parametrize(
    ("arguments", "key"),
    [({"max_batchsize": 8}, "max_batchsize"), ({"kv_cache_config": {"fraction": 0.9}}, "kv_cache_config.fraction")],
)
def test_keys_that_the_llm_api_does_not_know_are_refused(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(BuildError, match=f"key '{key}' is not known to TensorRT-LLM 1.2"):
        check_keys(arguments)
