"""Tensors on the GPU from this adapter to an engine in the same process.

TensorRT-LLM hands every tensor of a request to its engine as a handle, by CUDA IPC for those on a GPU, which the
process that made it can't open: no way in for a single-process engine (its own tests use host memory there). Its code
looks the class that makes and opens handles up at each use (`from tensorrt_llm._torch.shared_tensor import ...` in
functions of tensorrt_llm/inputs/multimodal.py, read in 1.0 to 1.3), so another can stand in its place.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_NUMBER = "tvlm_number"


@dataclass(frozen=True)
class _Given:
    """What `from_tensor` and `from_dict` give for a tensor on the GPU."""

    tensor: Any
    number: int

    def dump_to_dict(self) -> dict[str, Any]:
        """A handle; it has the keys by which TensorRT-LLM tells handles from other mappings."""
        shape = list(self.tensor.shape)
        return {_NUMBER: self.number, "method_key": 0, "tensor_size": shape, "storage_handle": "", "manager_handle": ""}

    def get_local_view(self) -> Any:
        """The tensor itself."""
        return self.tensor


class Handover:
    """Stands in the place of `SharedTensorContainer`; tensors in host memory go through that as ever."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._given: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._keep: list[Any] | None = None

    @classmethod
    def put_before(cls, module: Any) -> Handover:
        """Take the place of `module.SharedTensorContainer`."""
        module.SharedTensorContainer = handover = cls(module.SharedTensorContainer)
        return handover

    @contextmanager
    def keeping(self, keep: list[Any]) -> Iterator[None]:
        """What is handed over until the block is left lives as long as it is in `keep`; one thread only."""
        self._keep = keep
        try:
            yield
        finally:
            self._keep = None

    def from_tensor(self, tensor: Any, *args: Any, **options: Any) -> Any:
        """As SharedTensorContainer's."""
        if not tensor.is_cuda:
            return self._container.from_tensor(tensor, *args, **options)
        given = _Given(tensor, next(self._numbers))
        self._given[given.number] = tensor
        if self._keep is not None:
            self._keep.append(tensor)
        return given

    def from_dict(self, handle: Mapping[str, Any]) -> Any:
        """As SharedTensorContainer's (KeyError: nobody keeps the tensor any more)."""
        if _NUMBER not in handle:
            return self._container.from_dict(handle)
        return _Given(self._given[handle[_NUMBER]], handle[_NUMBER])
