"""pusher: the router's part of handing visual tokens over, by copies and by pages in turns."""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from perf.transfer.receiver import HIDDEN_OF
from python_backends import triton_io
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.engines.protocol import NO_VISUALS, VISUAL_TOKEN, Submission, VisualRows
from python_backends.router.triton_stages import TritonStages
from python_backends.sampling import SamplingParams

STAGES = TritonStages()


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._measure(triton_io.input_arrays(request)) for request in requests]

    def _measure(self, arrays: dict[str, Any]) -> Any:
        tokens = int(arrays["tokens"][0])
        hidden = HIDDEN_OF[tokens]
        pool = EmbeddingPool(8 * tokens * hidden * 2, hidden, b"perf")
        visual_tokens = np.random.default_rng(0).standard_normal((tokens, hidden), np.float32).astype(np.float16)
        times = [self._round(pool, visual_tokens, number) for number in range(int(arrays["rounds"][0]))]
        pool.close()
        return triton_io.response({"ms": np.array(times, np.float32)})

    def _round(self, pool: EmbeddingPool, visual_tokens: Any, number: int) -> tuple[float, float, float]:
        begin = time.perf_counter()
        self._submit(number, VisualRows(visual_tokens))
        copied = time.perf_counter()
        entry = pool.allocate(pool.key(b"%d" % number), len(visual_tokens))
        assert entry is not None
        pool.fill(entry, visual_tokens)
        filled = time.perf_counter()
        self._submit(number, VisualRows(NO_VISUALS.copied, pool.page_list([entry]), pool.address))
        paged = time.perf_counter()
        pool.release(entry)
        return (copied - begin) * 1e3, (paged - filled) * 1e3, (filled - copied) * 1e3

    def _submit(self, number: int, visuals: VisualRows) -> None:
        count = len(visuals.copied) or int(visuals.pages[:, 2].sum())
        prompt = np.full(count, VISUAL_TOKEN, np.int32)
        refused = STAGES.submit(0, [Submission(number, prompt, visuals, SamplingParams(max_tokens=1))])
        if refused:
            raise pb_utils.TritonModelException(str(refused))
