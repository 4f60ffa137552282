"""Input files for perf_analyzer and AIPerf, pictures within the JSON, from a workload."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.load.openai_target import chat_body, data_uri
from perf.workloads import Request
from perf.workloads.payload import picture_bytes


def kserve_rows(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """perf_analyzer's `data` for the model vlm. Bytes given as b64 begin with their length, 4 bytes little-endian."""
    return [_kserve(request) for request in requests]


def write_kserve(path: Path, requests: Sequence[Request]) -> None:
    """For `perf_analyzer -i grpc`."""
    path.write_text(json.dumps({"data": kserve_rows(requests)}))


def write_openai(path: Path, requests: Sequence[Request], model: str) -> None:
    """For `perf_analyzer --service-kind openai`."""
    path.write_text(json.dumps({"data": [{"payload": [chat_body(request, model)]} for request in requests]}))


def write_aiperf(path: Path, requests: Sequence[Request]) -> None:
    """For `aiperf profile --custom-dataset-type single_turn`: one request a line."""
    lines = [
        {
            "texts": [request.prompt],
            "images": [data_uri(picture_bytes(picture)) for picture in request.pictures],
            "output_length": request.answer_tokens,
        }
        for request in requests
    ]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if v}) + "\n" for line in lines))


def _kserve(request: Request) -> dict[str, Any]:
    tokens = request.answer_tokens
    sampling = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
    row: dict[str, Any] = {
        "text_input": {"content": [request.prompt], "shape": [1]},
        "stream": {"content": [True], "shape": [1]},
        "sampling_parameters": {"content": [json.dumps(sampling)], "shape": [1]},
    }
    if request.pictures:
        files = [picture_bytes(picture) for picture in request.pictures]
        data = b"".join(len(file).to_bytes(4, "little") + file for file in files)
        row["image"] = {"content": {"b64": base64.b64encode(data).decode()}, "shape": [len(files)]}
    return row
