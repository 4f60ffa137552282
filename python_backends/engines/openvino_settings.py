"""The deployment file's values as OpenVINO takes them: scheduler, device, embeddings and a sequence's sampling."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_genai as genai

from python_backends.checkpoint import Checkpoint
from python_backends.pools import TextPool
from python_backends.sampling import SamplingParams

KV_BLOCK_TOKENS = 32  # OpenVINO's block size on CPUs


def text_embeddings(folder: Path) -> Any:
    """The model that looks up token ids [1, tokens] as rows [1, tokens, width], float32."""
    model = ov.Core().read_model(folder / "openvino_text_embeddings_model.xml")
    return ov.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})


def scheduler_config(pool: TextPool, checkpoint: Checkpoint) -> Any:
    """What the token loop holds, and how much a step takes."""
    config = genai.SchedulerConfig()
    config.max_num_batched_tokens = pool.prefill_tokens + pool.max_running  # decode goes first, prompts get the rest
    config.max_num_seqs = pool.max_running
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = pool.prefix_caching
    config.num_kv_blocks = kv_blocks(pool, checkpoint)
    return config


def kv_blocks(pool: TextPool, checkpoint: Checkpoint) -> int:
    """Blocks of KV_BLOCK_TOKENS that `kv_cache_mb` holds."""
    return (pool.kv_cache_mb << 20) // (KV_BLOCK_TOKENS * checkpoint.kv_bytes_per_token)


def device_properties(pool: TextPool) -> dict[str, Any]:
    """How the LLM is compiled for the CPU."""
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": pool.precision,
        # the default, u8, changes greedy answers, and was no faster
        "KV_CACHE_PRECISION": "f16",
        # off: 8-bit activations against the 4-bit weights would part from the reference on CPUs with VNNI or AMX
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        # pinned threads begin at the first core in every process, the encoder's and other replicas' too
        "ENABLE_CPU_PINNING": False,
    }
    if pool.threads:
        properties["INFERENCE_NUM_THREADS"] = pool.threads
    return properties


def generation_config(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> Any:
    """How one sequence is sampled, and when it ends."""
    config = genai.GenerationConfig()
    config.max_new_tokens = sampling.max_tokens
    config.min_new_tokens = sampling.min_tokens
    config.ignore_eos = sampling.ignore_eos
    config.eos_token_id = eos_token_ids[0]
    config.stop_token_ids = set(eos_token_ids)
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    if sampling.temperature > 0:
        config.do_sample = True
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        if sampling.top_k > 0:
            config.top_k = sampling.top_k
        # OpenVINO's own default is the same seed for every request
        config.rng_seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
    return config
