"""The LLM that takes embeddings: prompts in chunks, cancelling. Its tokens: tests/test_golden.py."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from build_engines.gguf_wheel import locate_gguf
from tests.composed import composed_demo

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
QUESTIONS = ["What is the capital of France?", "List five animals, and say one thing about each of them."]
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(composed_demo() / "artifacts" / "tokenizer.json"))
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(turn.format(question)).ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    whole = genai.ContinuousBatchingPipeline(llm(), scheduler(256), "CPU", EXACT)
    return tokens_of(whole, [embed(prompt) for prompt in prompts])


@pytest.fixture(scope="module")
def pipeline() -> genai.ContinuousBatchingPipeline:
    return genai.ContinuousBatchingPipeline(llm(), scheduler(16), "CPU", EXACT)


def llm() -> Path:
    return composed_demo() / "artifacts" / "llm"


def scheduler(tokens_a_step: int) -> genai.SchedulerConfig:
    config = genai.SchedulerConfig()
    config.max_num_batched_tokens = tokens_a_step
    config.num_kv_blocks = 64
    return config


def embed(prompt: list[int]) -> NDArray[np.float32]:
    model = ov.compile_model(llm() / "openvino_text_embeddings_model.xml", "CPU")
    return np.array(model([np.array([prompt], np.int64)])[0])


def tokens_of(pipeline: genai.ContinuousBatchingPipeline, inputs: list[NDArray[np.float32]]) -> list[list[int]]:
    config = genai.GenerationConfig(max_new_tokens=NEW_TOKENS)
    handles = [pipeline.add_request(i, ov.Tensor(array), config) for i, array in enumerate(inputs)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return [handle.read_all()[0].generated_ids for handle in handles]


def test_same_greedy_tokens_with_the_prompt_in_chunks(
    pipeline: genai.ContinuousBatchingPipeline, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    lengths = [len(tokens) for tokens in expected]
    assert min(lengths) < NEW_TOKENS == max(lengths), "one ends by itself, one at the limit"
    assert tokens_of(pipeline, [embed(prompt) for prompt in prompts]) == expected


def test_cancel_frees_the_cache(pipeline: genai.ContinuousBatchingPipeline, prompts: list[list[int]]) -> None:
    handle = pipeline.add_request(1, ov.Tensor(embed(prompts[0])), genai.GenerationConfig(max_new_tokens=500))
    for _ in range(4):
        pipeline.step()
    handle.cancel()
    pipeline.step()
    pipeline.step()
    assert not pipeline.has_non_finished_requests()
    assert pipeline.get_metrics().cache_usage == 0


def test_nothing_is_written_beside_the_gguf() -> None:
    assert not list(locate_gguf().parent.glob("openvino_*"))
