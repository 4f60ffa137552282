"""The router's end of an embedding pool on a fake GPU, in a process of its own, as only others can open its memory."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.typing import NDArray

from python_backends.embeddings.page_table import Entry
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.embeddings.target import PAGE_TOKENS, PageTarget
from python_backends.workers import SupervisedWorker, WorkerSpec
from tests.fakes import cuda

Arrays = list[NDArray[Any]]


class RouterProcess:
    """A process with a pool, from outside."""

    def __init__(self, pages: int, hidden: int) -> None:
        config = {"bytes": pages * PAGE_TOKENS * hidden * 2, "hidden": hidden}
        self.worker = SupervisedWorker(WorkerSpec("router", "tests.fakes.gpu_router:Pool", config))
        self.worker.start()

    def allocate(self, name: str, tokens: int) -> PageTarget:
        """Pages for a picture of this name."""
        target = PageTarget.parse(self.worker.call("allocate", meta={"name": name, "tokens": tokens}).meta)
        assert target is not None
        return target

    def pages(self, op: str, name: str, *arrays: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        """`written`, `fill` or `release` a picture; tells the address of the pool and the list of pages."""
        reply = self.worker.call(op, arrays, {"name": name})
        return reply.meta["pool"], reply.arrays[0]

    def read(self, name: str) -> NDArray[Any]:
        """A copy of its visual tokens."""
        return self.worker.call("read", meta={"name": name}).arrays[0]


class Pool:
    """The worker's target: config has bytes and hidden, meta the name of a picture."""

    def __init__(self, config: dict[str, Any]) -> None:
        cuda.install(pytest.MonkeyPatch())
        self._pool = EmbeddingPool(config["bytes"], config["hidden"], b"model", gpu=0)
        self._entries: dict[str, Entry] = {}

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        name = str(meta["name"])
        if op == "allocate":
            entry = self._pool.allocate(name.encode(), int(meta["tokens"]))
            assert entry is not None
            self._entries[name] = entry
            target = self._pool.target(entry)
            assert target is not None
            return [], target.parameters()
        entry = self._entries[name]
        if op == "written":
            self._pool.written(entry)
        elif op == "fill":
            self._pool.fill(entry, arrays[0])
        elif op == "read":
            return [self._pool.read(entry)], {}
        elif op == "release":
            self._pool.release(entry)
        return [self._pool.page_list([entry])], {"pool": self._pool.address}
