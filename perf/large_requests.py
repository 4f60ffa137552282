"""How long a large request holds others up: probes that the router answers at once, beside eight pictures of 18 MB.

    python -m perf.large_requests --output build/demo-cpu

Each large request comes from a process of its own, over gRPC and as JSON over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
import urllib3
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client.serving.ports import choose_ports
from client.serving.server import Server

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "circle.png"
BYTES = 18_000_000  # of a picture; what is behind its end is not decoded, but copied
_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def _tensor(name: str, items: list[bytes]) -> Any:
    tensor = triton.InferInput(name, [len(items)], "BYTES")
    tensor.set_data_from_numpy(np.array(items, np.object_))
    return tensor


def _grpc(url: str, tensors: dict[str, list[bytes]]) -> None:
    request = service_pb2.ModelInferRequest(model_name="vlm")
    for name, items in tensors.items():
        tensor = _tensor(name, items)
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(url, options=_NO_LIMIT))
    print(next(stub.ModelStreamInfer(iter([request]))).error_message or "answered")


def _http(url: str, tensors: dict[str, list[bytes]]) -> None:
    body = {name: [item.decode() for item in items] for name, items in tensors.items()}
    scalars = {name: value[0] if name != "image" else value for name, value in body.items()}
    print(urllib3.request("POST", f"{url}/v2/models/vlm/generate", json=scalars, timeout=120).status)


def _large(kind: str) -> dict[str, list[bytes]]:
    data = base64.b64encode(PICTURE.read_bytes() + os.urandom(BYTES))
    if kind == "image":
        return {"text_input": [b"What is it?"], "image": [data] * 8}
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data.decode()}"}}
    return {"messages": [json.dumps([{"role": "user", "content": [part] * 8}]).encode()]}


WAYS: dict[str, Callable[[str, dict[str, list[bytes]]], None]] = {"grpc": _grpc, "http": _http}


async def _probes(url: str, process: subprocess.Popen[bytes]) -> list[float]:
    """Seconds of each, one after the other, until the process has ended."""
    seconds = []
    async with triton.InferenceServerClient(url.removeprefix("grpc://")) as client:

        async def one() -> Any:
            yield {"model_name": "vlm", "inputs": [_tensor("text_input", [b"Hi"])], "parameters": {"tvlm_probe": True}}

        while process.poll() is None:
            begin = time.monotonic()
            async for _ in client.stream_infer(one()):
                break
            seconds.append(time.monotonic() - begin)
            await asyncio.sleep(0.005)
    return seconds


def main() -> None:
    """Serve, send and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo-cpu"), help="what `tvlm build` made")
    parser.add_argument("--send", nargs=3, help=argparse.SUPPRESS)  # the process of its own: way, kind, URL
    options = parser.parse_args()
    if options.send:
        way, kind, url = options.send
        WAYS[way](url, _large(kind))
        return
    with Server(options.output, choose_ports("127.0.0.1")) as server:
        for kind in ("messages", "image"):
            for way in WAYS:
                url = server.endpoints.grpc.removeprefix("grpc://") if way == "grpc" else server.endpoints.http
                command = [sys.executable, "-m", "perf.large_requests", "--send", way, kind, url]
                sender = subprocess.Popen(command, stdout=subprocess.PIPE)
                seconds = asyncio.run(_probes(server.endpoints.grpc, sender))
                answer = sender.communicate()[0].decode().strip()
                median_ms = np.median(seconds) * 1e3
                print(f"{kind} over {way} ({answer}): longest {max(seconds):.2f} s, median {median_ms:.0f} ms")


if __name__ == "__main__":
    main()
