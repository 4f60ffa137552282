"""The pools of the deployment file: on which devices each stage runs, with how many instances, and how it batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    """A mapping of the deployment file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Device = Literal["cpu", "gpu"]
Gpu = Annotated[int, Field(ge=0, lt=64)]  # its number, as nvidia-smi counts
Gpus = Annotated[tuple[Gpu, ...], Field(min_length=1)]


class _Pool(Section):
    """A pool runs on CPUs or on GPUs; some settings are heeded on one of them only."""

    heeded_on: ClassVar[Mapping[str, Device]] = {}

    device: Device = "cpu"  # left out: that of the profile
    gpus: Gpus = (0,)

    @field_validator("gpus")
    @classmethod
    def _once_each(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a GPU twice")
        return value

    @model_validator(mode="after")
    def _nothing_idle(self: _AnyPool) -> _AnyPool:
        for name, device in {"gpus": "gpu", **self.heeded_on}.items():
            if device != self.device and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is heeded on device {device} only: leave it out with device {self.device}")
        return self


_AnyPool = TypeVar("_AnyPool", bound=_Pool)


class PreprocessPool(_Pool):
    """Media decode: encoded bytes to UINT8 tiles. On a GPU, JPEG goes through DALI, the rest through Pillow."""

    heeded_on = {"hw_decoder_load": "gpu"}

    instances: int = Field(1, ge=1, le=64)  # one Triton instance, with one worker process, each; on GPUs: on each GPU
    threads: int = Field(0, ge=0, le=256)  # small pictures, and as many large ones, at a time; 0: all cores
    batch_size: int = Field(8, ge=1, le=256)
    queue_delay_ms: float = Field(0.0, ge=0, le=1000)  # decoding gains nothing from a batch: never wait for one
    timeout_ms: int = Field(10_000, ge=100)  # a call that takes longer is a hung worker
    hw_decoder_load: float = Field(0.65, ge=0, le=1)  # share of JPEGs for the hardware engine; the SMs take the rest


class VisionPool(_Pool):
    """Vision encode: UINT8 tiles to visual tokens."""

    heeded_on = {"threads": "cpu", "nice": "cpu", "cpu_share": "cpu", "profile_batches": "gpu", "graph_batches": "gpu"}

    instances: int = Field(1, ge=1, le=64)  # on GPUs: on each GPU
    batch_size: int = Field(8, ge=1, le=256)
    # at most, for pictures that are in decode, to have them in the same batch. The window adapts: none for a lone
    # picture or a full batch, else what a batch was measured to save, so next to none on a CPU; 0: never wait
    queue_delay_ms: float = Field(5.0, ge=0, le=1000)
    # auto: bf16 where the CPU has AMX, else f32; on GPUs f16, of Qwen2.5-VL bf16
    precision: Literal["auto", "f32", "bf16", "f16"] = "auto"
    threads: int = Field(0, ge=0, le=256)  # 0: all cores
    nice: int = Field(0, ge=0, le=19)  # of encode; beside a token loop on the same cores `cpu_share` does more
    # below 1: encode stands still in the steps of the token loop and has turns between them, this share of the time at
    # least while it has work; 1: both run side by side
    cpu_share: float = Field(1.0, gt=0, le=1)
    timeout_ms: int = Field(30_000, ge=100)
    # largest batch of each TensorRT optimisation profile, the last one batch_size; empty: one profile for all. Where
    # pictures have sizes of their own, of which a batch of batch_size stands for limits.image_tokens, its share
    profile_batches: tuple[int, ...] = ()
    # batches of tiles that are replayed as CUDA graphs, which spares hundreds of launches; smaller ones are padded to
    # the next. Towers of packed patches (Qwen2.5-VL) have none, as their lengths differ from batch to batch
    graph_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)

    @field_validator("precision")
    @classmethod
    def _known_there(cls, value: str, info: ValidationInfo) -> str:
        if value == "f16" and info.data.get("device") == "cpu":
            raise ValueError("must be auto, f32 or bf16 on CPUs")
        return value

    @field_validator("profile_batches")
    @classmethod
    def _up_to_batch_size(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        size = info.data.get("batch_size")
        if value and (sorted(set(value)) != list(value) or value[0] < 1 or value[-1] != size):
            raise ValueError(f"must rise from at least 1 to batch_size = {size}")
        return value

    @field_validator("graph_batches")
    @classmethod
    def _rising(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(set(value)) != list(value) or (value and value[0] < 1):
            raise ValueError("must rise from at least 1")
        return value

    @property
    def gives_way(self) -> bool:
        """Whether encode stands still at times."""
        return self.device == "cpu" and self.cpu_share < 1

    def profiles(self) -> list[tuple[int, int, int]]:
        """TensorRT optimisation profiles as (smallest, tuned for, largest) batch of tiles; they do not overlap."""
        largest = self.profile_batches or (self.batch_size,)
        smallest = (1, *(batch + 1 for batch in largest[:-1]))
        return [(low, high, high) for low, high in zip(smallest, largest, strict=True)]


class TextPool(_Pool):
    """LLM prefill and decode."""

    heeded_on = {
        "prefill_slice_tokens": "cpu",
        "kv_cache_mb": "cpu",
        "precision": "cpu",  # TensorRT-LLM computes in the checkpoint's own type
        "weights": "cpu",
        "threads": "cpu",
        "tensor_parallel": "gpu",
        "kv_cache_fraction": "gpu",
        "stream_interval": "gpu",
    }

    replicas: int = Field(1, ge=1, le=64)  # each one its own Triton model: llm_decoder_0, llm_decoder_1, ...
    max_running: int = Field(32, ge=1, le=1024)  # sequences in the token loop at a time
    prefill_tokens: int = Field(256, ge=16)  # prompt tokens in one step: bounds the gap that a prefill makes
    # over 0: prompts are prefilled in slices, the shortest rest first, and a step takes between this and prefill_tokens
    # of them (of those with pictures half): while others decode, as many as keep their scheduler.tbt_slo_ms on the mean
    # of each answer. Whole KV blocks of 32 tokens; needs prefix_caching. 0: whole prompts in order of arrival
    prefill_slice_tokens: int = Field(0, ge=0, multiple_of=32)
    kv_cache_mb: int = Field(512, ge=16)
    prefix_caching: bool = True
    precision: Literal["f32", "bf16"] = "f32"  # f32: greedy tokens match the reference
    # of the LLM as it is exported; auto: int8, and of a GGUF file, which holds its own, as they are there
    weights: Literal["auto", "f32", "int8", "int4"] = "auto"
    threads: int = Field(0, ge=0, le=256)  # 0: all cores
    stall_timeout_ms: int = Field(30_000, ge=1000)  # a step that takes longer is a hung worker
    tensor_parallel: int = Field(1, ge=1, le=8)  # GPUs of one replica
    # of the GPU memory that is free once the weights are there. What else lives on these GPUs needs the rest
    kv_cache_fraction: float = Field(0.85, gt=0, le=0.95)
    stream_interval: int = Field(1, ge=1, le=64)  # steps between two answers of the engine; more relieve its process

    @field_validator("prefix_caching")
    @classmethod
    def _slices_need_it(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("prefill_slice_tokens"):
            raise ValueError("must be true while prefill_slice_tokens is set: a slice is found in the prefix cache")
        return value

    @field_validator("prefill_slice_tokens")
    @classmethod
    def _within_a_step(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("prefill_tokens")
        if most is not None and value > most:
            raise ValueError(f"must be at most prefill_tokens = {most}")
        return value

    @model_validator(mode="after")
    def _gpus_for_all(self) -> TextPool:
        needed = self.replicas * self.tensor_parallel
        if self.device == "gpu" and needed != len(self.gpus):
            raise ValueError(
                f"replicas = {self.replicas} of tensor_parallel = {self.tensor_parallel} need {needed} gpus, "
                f"not {len(self.gpus)}"
            )
        if self.tensor_parallel > 1 and self.replicas > 1:
            raise ValueError("tensor_parallel over 1 goes with replicas = 1: MPI runs one engine a server")
        return self

    @property
    def kv_setting(self) -> str:
        """What an operator turns to get a larger KV cache."""
        return f"pools.text.{'kv_cache_mb' if self.device == 'cpu' else 'kv_cache_fraction'}"

    def replica_gpus(self, replica: int) -> tuple[int, ...]:
        """The GPUs of one replica."""
        return self.gpus[replica * self.tensor_parallel : (replica + 1) * self.tensor_parallel]


class Pools(Section):
    """One pool of instances a stage."""

    preprocess: PreprocessPool = PreprocessPool()
    vision: VisionPool = VisionPool()
    text: TextPool = TextPool()
