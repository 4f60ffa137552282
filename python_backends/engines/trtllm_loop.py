"""TensorRT-LLM's LLM in a thread and an event loop of its own: sequences in, news of them out of a queue.

The pattern is that of TensorRT-LLM's own Triton model: results may only be awaited on the loop they were asked for on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from python_backends.engines.protocol import Finish
from python_backends.engines.trtllm_prompts import Call, KnownIds

log = logging.getLogger(__name__)

_STATS_WAIT_S = 2.0  # of one look for statistics; there are none while nothing runs
_STATS_PAUSE_S = 0.1
_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "cancelled": Finish.CANCELLED}


@dataclass(frozen=True)
class News:
    """New tokens of one sequence, or its end."""

    request_id: int
    tokens: list[int]
    finish: Finish
    error: str = ""  # why it ended with Finish.ERROR


@dataclass(frozen=True)
class Statistics:
    """An iteration of the engine."""

    kv_usage: float = 0.0  # 0 to 1
    reused_tokens: int = 0  # since the beginning: prompt tokens whose KV was there
    queued: int = 0  # sequences that wait in the engine
    step_ms: float = 0.0
    gpu_mb: float = 0.0  # memory in use on its GPU


def read_statistics(raw: str | Mapping[str, Any]) -> Statistics:
    """An entry of `get_stats_async`, which is a JSON text or a mapping, by version."""
    values = json.loads(raw) if isinstance(raw, str) else raw
    kv = values.get("kvCacheStats") or {}
    blocks = kv.get("maxNumBlocks", 0)
    return Statistics(
        kv_usage=kv.get("usedNumBlocks", 0) / blocks if blocks else 0.0,
        reused_tokens=kv.get("reusedBlocks", 0) * kv.get("tokensPerBlock", 0),
        queued=values.get("numQueuedRequests", 0),
        step_ms=values.get("iterLatencyMS", 0.0),
        gpu_mb=values.get("gpuMemUsage", 0) / 2**20,
    )


class AsyncLlm:
    """The engine; every method may be called from one other thread."""

    def __init__(
        self,
        make_llm: Callable[[], Any],
        torch: Any,
        keeping: Callable[[list[Any]], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Load it (whatever `make_llm` raises). `keeping`: see `trtllm_handover`."""
        self._keeping = keeping
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.statistics = Statistics()
        self._outputs: dict[int, Any] = {}  # of running sequences; touched on the loop only
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-loop", daemon=True)
        self._thread.start()
        self._llm = make_llm()
        self._known_ids = KnownIds.put_before(self._llm.input_processor, torch)
        asyncio.run_coroutine_threadsafe(self._follow_statistics(), self._loop)

    def start(self, request_id: int, call: Call, sampling: Any) -> None:
        """Hand a sequence to the engine; its news come from now on (what TensorRT-LLM refuses it with)."""
        asyncio.run_coroutine_threadsafe(self._start(request_id, call, sampling), self._loop).result()

    def abort(self, request_id: int) -> None:
        """End a sequence; nothing more is heard of it."""
        self._loop.call_soon_threadsafe(self._abort, request_id)

    def close(self) -> None:
        """Shut the engine down, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _start(self, request_id: int, call: Call, sampling: Any) -> None:
        with self._known_ids.answering(call.ids), self._keeping(call.keep):
            output = self._llm.generate_async(
                call.inputs, sampling, streaming=True, disaggregated_params=call.disaggregated
            )
        self._outputs[request_id] = output
        task = self._loop.create_task(
            self._follow(request_id, call.keep, output)
        )  # and not the inputs, which may be large
        task.add_done_callback(lambda done: self._outputs.pop(request_id, None))

    def _abort(self, request_id: int) -> None:
        output = self._outputs.pop(request_id, None)
        if output is not None:
            output.abort()

    async def _follow(self, request_id: int, keep: list[Any], output: Any) -> None:
        seen, finish = 0, Finish.RUNNING
        try:
            async for _ in output:
                completion = output.outputs[0]
                tokens, seen = list(completion.token_ids[seen:]), len(completion.token_ids)
                finish = _finish_of(completion.finish_reason)
                keep.clear()  # the prefill is done: nobody reads them any more
                if tokens or finish is not Finish.RUNNING:
                    error = f"it ended with '{completion.finish_reason}'" if finish is Finish.ERROR else ""
                    self._tell(News(request_id, tokens, finish, error))
        except Exception as error:  # RequestError and whatever else the engine comes to
            finish = Finish.ERROR
            self._tell(News(request_id, [], finish, " ".join(str(error).split()) or type(error).__name__))
        if finish is Finish.RUNNING:
            self._tell(News(request_id, [], Finish.ERROR, "the engine ended it without a reason"))

    def _tell(self, news: News) -> None:
        if news.request_id in self._outputs:  # else it was aborted
            self.news.put(news)

    async def _follow_statistics(self) -> None:
        while True:
            try:
                async for raw in self._llm.get_stats_async(_STATS_WAIT_S):
                    self.statistics = read_statistics(raw)
            except Exception as error:  # they are not worth a sequence
                log.warning("no statistics: %s", error)
            await asyncio.sleep(_STATS_PAUSE_S)


def _finish_of(reason: str | None) -> Finish:
    return Finish.RUNNING if reason is None else _FINISH.get(reason, Finish.ERROR)
