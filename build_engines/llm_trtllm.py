"""The LLM for TensorRT-LLM: `model.yaml`, the arguments of its LLM API, from the deployment file.

There is no engine to build: TensorRT-LLM loads the Hugging Face checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from build_engines.errors import BuildError
from python_backends.deployment import Deployment

MODEL_YAML = "model.yaml"
LLM_API_VERSION = "1.2"
_TUNED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

# Keys of TorchLlmArgs and of the sections used here, TensorRT-LLM 1.2; it refuses all others. The class itself asks
# CUDA for the device's types, so it can't check a file on a machine without a GPU.
KNOWN_KEYS: Mapping[str, frozenset[str]] = {
    "": frozenset(
        "max_batch_size max_num_tokens max_seq_len max_input_len max_beam_width enable_chunked_prefill "
        "cuda_graph_config kv_cache_config scheduler_config disable_overlap_scheduler attn_backend sampler_type "
        "stream_interval enable_iter_perf_stats enable_iter_req_stats iter_stats_max_iterations max_stats_len "
        "batch_wait_timeout_ms batch_wait_timeout_iters batch_wait_max_tokens_ratio return_perf_metrics "
        "num_postprocess_workers mm_encoder_only orchestrator_type trust_remote_code tensor_parallel_size "
        "gpus_per_node dtype cache_transceiver_config guided_decoding_backend".split()
    ),
    "kv_cache_config": frozenset(
        "enable_block_reuse enable_partial_reuse copy_on_partial_reuse max_tokens free_gpu_memory_fraction "
        "max_gpu_total_bytes host_cache_size onboard_blocks secondary_offload_min_priority event_buffer_max_size "
        "dtype tokens_per_block use_kv_cache_manager_v2".split()
    ),
    "cuda_graph_config": frozenset(("batch_sizes", "max_batch_size", "enable_padding")),
    "scheduler_config": frozenset(("capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config")),
}


def write_model_yaml(deployment: Deployment, artifacts: Path) -> None:
    """Write `artifacts/model.yaml`."""
    arguments = llm_arguments(deployment)
    check_keys(arguments)
    header = f"# Written by `tvlm build` for the LLM API of TensorRT-LLM {LLM_API_VERSION}.\n"
    (artifacts / MODEL_YAML).write_text(header + yaml.safe_dump(arguments, sort_keys=False))


def llm_arguments(deployment: Deployment) -> dict[str, Any]:
    """What `tensorrt_llm.LLM` is called with, beside the checkpoint."""
    text = deployment.pools.text
    return {
        "max_batch_size": text.max_running,
        "max_num_tokens": text.prefill_tokens,  # of one step: chunks of prompts, and a token for each running sequence
        "max_seq_len": deployment.limits.context_tokens,
        "enable_chunked_prefill": True,
        "tensor_parallel_size": text.tensor_parallel,
        "kv_cache_config": {
            "enable_block_reuse": text.prefix_caching,
            "free_gpu_memory_fraction": text.kv_cache_fraction,
        },
        "cuda_graph_config": {
            "batch_sizes": [batch for batch in _TUNED_BATCHES if batch < text.max_running] + [text.max_running],
            "enable_padding": True,  # a batch between two sizes runs as the larger one
        },
        # a sequence that runs is never put back: the router takes on no more than fit
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "stream_interval": text.stream_interval,
        "enable_iter_perf_stats": True,  # KV usage and reuse, for the metrics
    }


def check_keys(arguments: Mapping[str, Any]) -> None:
    """Raise BuildError for a key that TensorRT-LLM's LLM API does not know."""
    for section, keys in KNOWN_KEYS.items():
        values = arguments if not section else arguments.get(section, {})
        for key in values:
            if key not in keys:
                path = f"{section}.{key}" if section else key
                raise BuildError(f"{MODEL_YAML}: key '{path}' is not known to TensorRT-LLM {LLM_API_VERSION}")
