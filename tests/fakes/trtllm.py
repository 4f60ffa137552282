"""A fake TensorRT-LLM, for machines without a GPU: its LLM API of version 1.2 as far as the adapter uses it.

Signatures and refusals are those of the real one. Its answers count up from the last prompt token; what it was asked is
in `LLM.calls`. Sampling seeds are its script: see SEEDS.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from build_engines.llm_trtllm import KNOWN_KEYS
from tests.fakes import torch_cpu

BREAKS, STALLS, TIMES_OUT, ENDS_SILENTLY = SEEDS = (101, 102, 103, 104)
IMAGE_TOKEN = 7  # id of the placeholder in a prompt
OUT_OF_VOCABULARY = 1000  # ids from here on stand for rows of embeddings
HANDLE = {"method_key", "tensor_size", "storage_handle", "manager_handle"}  # keys of one


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True


@dataclass(kw_only=True)
class DisaggregatedParams:
    request_type: str | None = None
    multimodal_embedding_handles: list[dict[str, Any]] | None = None
    multimodal_hashes: list[list[int]] | None = None
    mrope_position_ids_handle: dict[str, Any] | None = None
    mrope_position_deltas_handle: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        handles, hashes = self.multimodal_embedding_handles, self.multimodal_hashes
        if handles is not None and hashes is not None:
            assert len(handles) == len(hashes), "multimodal_embedding_handles and multimodal_hashes must match"
            for one in hashes:
                assert len(one) == 8 and all(isinstance(x, int) for x in one), "mm_hash must be a list of 8 integers"


class SharedTensorContainer:
    """A handle opens for as long as the tensor that it was made of lives; one of a GPU's only in another process."""

    _tensors: ClassVar[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @classmethod
    def from_tensor(cls, tensor: Any) -> SharedTensorContainer:
        return cls(tensor)

    def dump_to_dict(self) -> dict[str, Any]:
        self._tensors[id(self._tensor)] = self._tensor
        size = list(self._tensor.shape)
        return {"method_key": 2, "tensor_size": size, "storage_handle": id(self._tensor), "manager_handle": ""}

    @classmethod
    def from_dict(cls, handle: dict[str, Any]) -> SharedTensorContainer:
        return cls(cls._tensors[handle["storage_handle"]])

    def get_local_view(self) -> Any:
        assert not self._tensor.is_cuda, "CUDA error: a handle can't be opened by the process that made it"
        return self._tensor


def open_handle(handle: dict[str, Any]) -> np.ndarray:
    """As the engine does."""
    return np.array(_container().from_dict(handle).get_local_view().values)


def _container() -> Any:
    """Whatever class is in the package by then."""
    return sys.modules["tensorrt_llm._torch.shared_tensor"].SharedTensorContainer


@dataclass
class MultimodalParams:
    """Makes handles of tensors and tensors of handles, which it tells from other mappings by their keys."""

    multimodal_data: Any

    def to_handle(self, element: str) -> None:
        self._change(
            lambda one: isinstance(one, torch_cpu.Tensor), lambda one: _container().from_tensor(one).dump_to_dict()
        )

    def to_tensor(self, element: str) -> None:
        self._change(
            lambda one: isinstance(one, dict) and one.keys() >= HANDLE,
            lambda one: _container().from_dict(one).get_local_view(),
        )

    def _change(self, fits: Callable[[Any], bool], change: Callable[[Any], Any]) -> None:
        def each(data: Any) -> Any:
            if fits(data):
                return change(data)
            if isinstance(data, list):
                return [each(one) for one in data]
            return {name: each(one) for name, one in data.items()} if isinstance(data, dict) else data

        self.multimodal_data = each(self.multimodal_data)


class _InputProcessor:
    support_mm_disagg = True

    def __init__(self) -> None:
        self.tokenizer = self._tokenize

    def _tokenize(self, text: str, return_tensors: str = "pt") -> Any:
        raise AssertionError(f"{text!r} was tokenised again")

    def attach_multimodal_embeddings(self, inputs: Any, embeddings: Any, sampling: Any) -> Any:
        images = embeddings["image"]
        ids = self._expanded(inputs["prompt"], [image.shape[0] for image in images])
        return ids, {"multimodal_data": {"multimodal_embedding": images}}

    def get_prompt_token_ids(self, inputs: Any, mm_handles: Any) -> Any:
        return self._expanded(inputs["prompt"], [handle["tensor_size"][0] for handle in mm_handles]), [], []

    def _expanded(self, prompt: str, counts: list[int]) -> list[int]:
        ids: list[int] = []
        left, row = iter(counts), OUT_OF_VOCABULARY
        for token in self.tokenizer(prompt, return_tensors="pt").input_ids[0]:
            if token == IMAGE_TOKEN:
                count = next(left)
                ids += range(row, row + count)
                row += count
            else:
                ids.append(int(token))
        assert next(left, None) is None, "All mm_ids_splits should be consumed"
        return ids


class RequestOutput:
    """Awaited for with `async for`, which gives itself."""

    def __init__(self, prompt: list[int], sampling: SamplingParams, open_handles: Any) -> None:
        self.outputs = [SimpleNamespace(token_ids=[], finish_reason=None)]
        self._prompt = prompt
        self._sampling = sampling
        self._open_handles = open_handles
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        completion, seed = self.outputs[0], self._sampling.seed
        await asyncio.sleep(LLM.step_s)
        self._open_handles()  # the prefill
        for made in range(1, self._sampling.max_tokens + 1):
            await asyncio.sleep(LLM.step_s)
            while seed == STALLS and not self._aborted:
                await asyncio.sleep(LLM.step_s)
            if self._aborted:
                completion.finish_reason = "cancelled"
                yield self
                return
            if made == 3 and seed == BREAKS:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if made == 3 and seed == ENDS_SILENTLY:
                return
            completion.token_ids.append(self._prompt[-1] + made)
            if made == 3 and seed == TIMES_OUT:
                completion.finish_reason = "timeout"
            elif completion.token_ids[-1] == self._sampling.end_id and not self._sampling.ignore_eos:
                completion.finish_reason = "stop"
            elif made == self._sampling.max_tokens:
                completion.finish_reason = "length"
            yield self
            if completion.finish_reason is not None:
                return


@dataclass
class Asked:
    """One call of generate_async."""

    prompt: list[int]
    sampling: SamplingParams
    inputs: dict[str, Any]
    disaggregated: DisaggregatedParams | None
    opened: dict[str, list[np.ndarray]]


class LLM:
    calls: ClassVar[list[Asked]] = []
    arguments: ClassVar[dict[str, Any]] = {}
    step_s = 0.001
    statistics: ClassVar[list[Any]] = []  # given out once

    def __init__(self, model: str, tokenizer: Any = None, **kwargs: Any) -> None:
        assert set(kwargs) <= KNOWN_KEYS[""], "extra fields are not permitted"
        self.input_processor = _InputProcessor()
        type(self).arguments = {"model": model, **kwargs}

    def generate_async(  # noqa: PLR0917  (as the real one's)
        self,
        inputs: dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: DisaggregatedParams | None = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        asyncio.get_running_loop()  # else the result could not be awaited
        assert streaming and sampling_params is not None
        opened: dict[str, list[np.ndarray]] = {}
        handles: list[dict[str, Any]] = []
        if disaggregated_params is not None and disaggregated_params.multimodal_embedding_handles is not None:
            handles = disaggregated_params.multimodal_embedding_handles
            prompt, _, _ = self.input_processor.get_prompt_token_ids(inputs, handles)
        elif "prompt_token_ids" in inputs:
            prompt = inputs["prompt_token_ids"]
        else:
            prompt, extra = self.input_processor.attach_multimodal_embeddings(
                inputs, inputs["multi_modal_embeddings"], sampling_params
            )
            params = MultimodalParams(extra["multimodal_data"])
            params.to_handle("multimodal_data")
            params.to_tensor("multimodal_data")
            opened["images"] = [np.array(image.values) for image in params.multimodal_data["multimodal_embedding"]]
        if len(prompt) > 900:
            raise ValueError(f"The sum of prompt length ({len(prompt)}) should not exceed max_num_tokens (900)")

        def open_handles() -> None:
            if handles:
                assert disaggregated_params is not None
                opened["images"] = [open_handle(handle) for handle in handles]
                opened["mrope"] = [
                    open_handle(handle)
                    for handle in (
                        disaggregated_params.mrope_position_ids_handle,
                        disaggregated_params.mrope_position_deltas_handle,
                    )
                    if handle is not None
                ]

        self.calls.append(Asked(prompt, sampling_params, inputs, disaggregated_params, opened))
        return RequestOutput(prompt, sampling_params, open_handles)

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[Any]:
        while self.statistics:
            yield self.statistics.pop(0)

    def shutdown(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes in the places of `tensorrt_llm` and `torch`."""
    package = ModuleType("tensorrt_llm")
    vars(package).update(LLM=LLM, SamplingParams=SamplingParams)
    parameters = ModuleType("tensorrt_llm.disaggregated_params")
    vars(parameters).update(DisaggregatedParams=DisaggregatedParams)
    shared_tensor = ModuleType("tensorrt_llm._torch.shared_tensor")
    vars(shared_tensor).update(SharedTensorContainer=SharedTensorContainer)
    multimodal = ModuleType("tensorrt_llm.inputs.multimodal")
    vars(multimodal).update(MultimodalParams=MultimodalParams)
    rooms = [ModuleType(f"tensorrt_llm.{name}") for name in ("_torch", "inputs")]
    for module in (package, parameters, shared_tensor, multimodal, *rooms):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "torch", torch_cpu)
    monkeypatch.setattr(LLM, "calls", [])
    monkeypatch.setattr(LLM, "statistics", [])
