"""Vision encoder adapter for towers of packed patches (Qwen2.5-VL): OpenVINO on the CPU, in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.vision_openvino import compile_tower
from python_backends.engines.vision_worker import PackedVision


class PatchWorker(PackedVision):
    """config besides: folder, precision and threads as `vision_openvino.VisionWorker` has them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._request = compile_tower(config)
        self._warm_up()  # the first inference builds its primitives

    def _encode(self, inputs: Mapping[str, NDArray[Any]], tokens: int) -> NDArray[np.float16]:
        self._request.infer(dict(inputs), share_inputs=True)
        return np.array(self._request.get_output_tensor().data)
