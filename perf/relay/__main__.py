"""Tokens a second through the router and its decoder channel, beside the same engine answering clients itself.

    python -m perf.relay [--streams 64] [--tokens 200] [--rounds 3] [--step-ms 0] [--output build/relay]

Three models on one real tritonserver, measured in turns: `direct` (the fake engine in the model that clients call: one
response a token), `vlm` (the router, with the same engine behind llm_decoder_0), and `bls_relay` (one decoupled BLS
call a request). With --step-ms the engine keeps a pace; without, every side goes as fast as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import numpy as np
from rich.console import Console
from tritonclient.grpc import InferInput, service_pb2

from client.grpc_protocol import to_message
from client.request import make_request
from client.serving.compose import compose
from client.serving.ports import choose_ports
from client.serving.server import Server
from perf.fake_engine import STEP_MS_VARIABLE, copy_with_fake_engine
from python_backends.deployment import Deployment, Limits

HERE = Path(__file__).parent
_CALL = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True)
class Rate:
    """One model in one round."""

    tokens_per_s: float
    responses_per_s: float
    longest_gap_ms: float  # between two responses of one stream, the worst of all streams


def compose_bench(output: Path, console: Console) -> Path:
    """A repository of the three models, with the router as it is served and the fake engine behind it."""
    compose(HERE / "deployment.yaml", output / "router", console, force=False)
    bench = copy_with_fake_engine(output / "router", output / "bench")
    models = bench / "model_repository"
    for name in ("image_decode", "vision_encoder", "image_embedding"):
        shutil.rmtree(models / name)
    for name in ("direct", "bls_relay"):
        shutil.copytree(HERE / "models" / name, models / name, ignore=shutil.ignore_patterns("__pycache__"))
    return bench


def request_for(model: str, tokens: int) -> bytes:
    """A request for so many tokens, as it goes over the wire."""
    if model == "vlm":
        message = to_message(make_request("Count.", (), stream=True, max_tokens=tokens, ignore_eos=True))
    else:
        tensor = InferInput("max_tokens", [1], "INT32")
        tensor.set_data_from_numpy(np.array([tokens], np.int32))
        message = service_pb2.ModelInferRequest(model_name=model)
        message.inputs.append(tensor._get_tensor())
        message.raw_input_contents.append(tensor._get_content())
    return bytes(message.SerializeToString())


async def measure(address: str, model: str, streams: int, tokens: int) -> Rate:
    """All streams at once, to their ends. Responses are counted and not parsed: the client has a core to share."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(_CALL)
        body = request_for(model, tokens)

        async def one() -> tuple[int, float]:
            responses, longest, last = 0, 0.0, None
            async for _ in call(iter([body]), metadata=(("triton_grpc_error", "true"),)):
                now = time.perf_counter()
                if last is not None:
                    longest = max(longest, now - last)
                responses, last = responses + 1, now
            return responses, longest

        begin = time.perf_counter()
        results = await asyncio.gather(*(one() for _ in range(streams)))
        seconds = time.perf_counter() - begin
    responses = sum(count for count, _ in results)
    return Rate(streams * tokens / seconds, responses / seconds, max(gap for _, gap in results) * 1e3)


def main() -> None:
    """Compose, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=0.0, help="pace of the engine; 0: as fast as it can")
    parser.add_argument("--output", type=Path, default=Path("build/relay"))
    options = parser.parse_args()
    os.environ[STEP_MS_VARIABLE] = str(options.step_ms)
    bench = compose_bench(options.output, Console())
    models = ("direct", "vlm", "bls_relay")
    rates: dict[str, list[Rate]] = {model: [] for model in models}
    no_images = Deployment(checkpoint=bench, limits=Limits(images_per_request=0))
    with Server(bench, choose_ports("127.0.0.1"), deployment=no_images) as server:
        address = server.endpoints.grpc.removeprefix("grpc://")
        for model in models:
            asyncio.run(measure(address, model, options.streams, 10))
        for _ in range(options.rounds):
            for model in models:
                rates[model].append(asyncio.run(measure(address, model, options.streams, options.tokens)))
    print(f"{options.streams} streams of {options.tokens} tokens, medians of {options.rounds} rounds")
    medians = {model: statistics.median(rate.tokens_per_s for rate in rates[model]) for model in models}
    for model in models:
        responses = statistics.median(rate.responses_per_s for rate in rates[model])
        gap = statistics.median(rate.longest_gap_ms for rate in rates[model])
        print(f"{model:10} {medians[model]:8,.0f} tokens/s {responses:8,.0f} responses/s  longest gap {gap:6.0f} ms")
    print(f"router / direct    {medians['vlm'] / medians['direct']:.2f}   (must be at least 0.85)")
    print(f"router / BLS relay {medians['vlm'] / medians['bls_relay']:.2f}   (must be at least 2)")


if __name__ == "__main__":
    main()
