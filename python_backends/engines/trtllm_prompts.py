"""A submission as the arguments of TensorRT-LLM's `generate_async`.

Text goes as token ids. Visual tokens have two ways in, by the family of the checkpoint (names of TensorRT-LLM 1.2):

- embeddings: the prompt key `multi_modal_embeddings`; LLaVA-NeXT and its relatives.
- handles: `DisaggregatedParams` with a shared-memory handle for each image; Qwen2.5-VL, with its M-RoPE positions.

Both want a text prompt, which TensorRT-LLM would tokenise again. That would turn special tokens that a client merely
wrote into real ones, and a stream that goes on after a death could go on differently. So its input processor is given
a tokenizer that answers with the ids that we have (`KnownIds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.on_gpu import DevicePool
from python_backends.engines.mrope import mrope_positions
from python_backends.engines.protocol import GRID, HASH, IMAGE_TOKENS, VISUAL_TOKEN, Submission
from python_backends.engines.trtllm_api import ModelFacts, WayIn
from python_backends.errors import invalid
from python_backends.workers.targets import MissingRuntime


@dataclass(frozen=True)
class Call:
    """Arguments of one `generate_async`."""

    inputs: dict[str, Any]
    ids: list[int] | None = None  # what the input processor's tokenizer must answer; None: it is not asked
    disaggregated: Any = None  # DisaggregatedParams
    keep: list[Any] = field(default_factory=list)  # tensors that the engine reads until the prefill is done


class KnownIds:
    """Stands before a tokenizer: within `answering` it gives the ids that are known already, whatever it is asked."""

    def __init__(self, tokenizer: Any, torch: Any) -> None:
        self._tokenizer = tokenizer
        self._torch = torch
        self._ids: list[int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, *args: Any, **options: Any) -> Any:
        """As a Hugging Face tokenizer's: `input_ids` of one prompt, a tensor [1, tokens] for return_tensors="pt"."""
        if self._ids is None:
            return self._tokenizer(text, *args, **options)
        if options.get("return_tensors") == "pt":
            return SimpleNamespace(input_ids=self._torch.from_numpy(np.array([self._ids], np.int64)))
        return SimpleNamespace(input_ids=list(self._ids))

    def encode(self, text: Any, *args: Any, **options: Any) -> Any:
        """The same as a plain list."""
        return list(self._ids) if self._ids is not None else self._tokenizer.encode(text, *args, **options)

    @contextmanager
    def answering(self, ids: list[int] | None) -> Iterator[None]:
        """Give these ids until the block is left; one thread only."""
        self._ids = ids
        try:
            yield
        finally:
            self._ids = None

    @classmethod
    def put_before(cls, processor: Any, torch: Any) -> KnownIds:
        """Take the place of an input processor's tokenizer (MissingRuntime: it keeps none where 1.2's does)."""
        for name in ("_tokenizer", "tokenizer"):
            if name in vars(processor):
                known = cls(vars(processor)[name], torch)
                setattr(processor, name, known)
                return known
        raise MissingRuntime(
            f"{type(processor).__name__} of TensorRT-LLM keeps no tokenizer: this adapter knows versions 1.1 and 1.2"
        )


class Prompts:
    """Makes the calls of one engine."""

    def __init__(self, torch: Any, api: Any, model: ModelFacts) -> None:
        """`api`: see `trtllm_api.load_api`."""
        self._torch = torch
        self._api = api
        self._model = model
        self._dtype = getattr(torch, model.dtype)
        self._pool = DevicePool(torch)

    def call(self, submission: Submission) -> Call:
        """The arguments for one sequence.

        Raises:
            ServingError: its pages are gone, or its images do not fit its places.
        """
        counts = image_counts(submission)
        if not counts:
            return Call({"prompt_token_ids": submission.tokens.tolist()})
        features = self._features(submission, sum(counts)).to(self._dtype)
        images = list(features.split(counts))
        ids = self._with_one_token_an_image(submission.tokens, counts)
        if self._model.way_in is WayIn.EMBEDDINGS:
            return Call({"prompt": "known", "multi_modal_embeddings": {"image": images}}, ids, keep=[features])
        return self._with_handles(submission, counts, images, ids)

    def _features(self, submission: Submission, count: int) -> Any:
        """The visual tokens, on the GPU if the pool's pages are there: a tensor [count, hidden]."""
        visuals = submission.visuals
        if len(visuals.pages) and self._pool.is_on_gpu(visuals.pool):
            return self._pool.take(visuals.pool, visuals.pages, count)
        rows = np.empty((count, self._model.hidden_size), np.float32)
        visuals.copy_to(rows, np.arange(count), self._pool.reader)
        return self._torch.from_numpy(rows)

    def _with_one_token_an_image(self, tokens: NDArray[np.int32], counts: Sequence[int]) -> list[int]:
        ids: list[int] = []
        at = 0
        for count in counts:
            begin = at + int(np.argmax(tokens[at:] == VISUAL_TOKEN))
            ids += [*tokens[at:begin].tolist(), self._model.image_token_id]
            at = begin + count
        return [*ids, *tokens[at:].tolist()]

    def _with_handles(self, submission: Submission, counts: Sequence[int], images: list[Any], ids: list[int]) -> Call:
        described = submission.visuals.images
        if not described[:, GRID].all() or len(described) != len(counts):
            raise invalid("images", "each image needs the height and width of its grid of tokens, for its positions")
        positions, delta = mrope_positions(submission.tokens, described[:, GRID])
        # a tensor's memory must be its own: a handle shares the whole of it
        tensors = [image.clone() for image in images]
        tensors += [self._torch.from_numpy(positions), self._torch.from_numpy(delta)]
        container = self._api.SharedTensorContainer
        handles = [container.from_tensor(tensor).dump_to_dict() for tensor in tensors]
        disaggregated = self._api.DisaggregatedParams(
            # without a type TensorRT-LLM 1.2 ignores the embeddings silently
            request_type="context_and_generation",
            multimodal_embedding_handles=handles[:-2],
            multimodal_hashes=described[:, HASH].tolist(),
            mrope_position_ids_handle=handles[-2],
            mrope_position_deltas_handle=handles[-1],
        )
        return Call({"prompt": "known"}, ids, disaggregated, tensors)


def image_counts(submission: Submission) -> list[int]:
    """Visual tokens of each image, in order; of each run of places where the router said nothing of images.

    Raises:
        ServingError: INVALID_ARG, when they do not fill the places of the prompt.
    """
    places = submission.tokens == VISUAL_TOKEN
    edges = np.flatnonzero(np.diff(np.concatenate(([0], places.astype(np.int8), [0]))))
    runs = (edges[1::2] - edges[::2]).tolist()
    counts: list[int] = submission.visuals.images[:, IMAGE_TOKENS].tolist() or runs
    ends = set(np.cumsum(counts).tolist())
    if sum(counts) != sum(runs) or not set(np.cumsum(runs).tolist()) <= ends:
        raise invalid("images", f"{counts} visual tokens do not fill the prompt's places {runs}")
    return counts
