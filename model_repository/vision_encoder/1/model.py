"""vision_encoder: UINT8 tiles to visual tokens, in a worker process."""

from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends import triton_io
from python_backends.engines.vision_stage import EncodeStage
from python_backends.errors import ServingError


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        triton_io.prepare_stub(args["model_name"])
        name = args["model_name"]
        self._stage = EncodeStage(name, triton_io.artifacts_folder(args), triton_io.restart_counter(name))
        self._stage.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        tiles = [pb_utils.get_input_tensor_by_name(request, "tiles").as_numpy() for request in requests]
        return [
            triton_io.stage_error_response(answer)
            if isinstance(answer, ServingError)
            else triton_io.response({"visual_tokens": answer.visual_tokens, "encode_ms": answer.encode_ms})
            for answer in self._stage.encode(tiles)
        ]

    def finalize(self) -> None:
        self._stage.close()
