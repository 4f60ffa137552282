"""The same picture again: how many encodes it costs, and how soon the answer begins.

    python -m perf.encoder_cache [--pictures 8] [--deployment deployments/demo-cpu.yaml]

Every picture is asked about once, then again with another question. The encodes are Triton's own statistics of the
model vision_encoder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request

from client import VlmClient
from perf.bench_server import add_options, fresh_server
from perf.mix import mix


def encodes(http: str) -> int:
    """Images that vision_encoder has answered."""
    with urllib.request.urlopen(f"{http}/v2/models/vision_encoder/stats", timeout=10) as answer:
        return int(json.load(answer)["model_stats"][0]["inference_count"])


def ttft_ms(vlm: VlmClient, question: str, image: bytes) -> float:
    """Time to the first piece of the answer."""
    begin = time.perf_counter()
    with vlm.stream(question, [image], max_tokens=4, ignore_eos=True) as pieces:
        next(pieces)
        first = time.perf_counter() - begin
        for _ in pieces:
            pass
    return first * 1e3


def main() -> None:
    """Ask, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--pictures", type=int, default=8)
    options = parser.parse_args()
    images = [ask.image for ask in mix(options.pictures, image_share=1.0) if ask.image]
    with fresh_server(options) as server, VlmClient(server.endpoints.grpc) as vlm:
        for turn, question in (("first", "What is in the picture?"), ("again", "Which colours do you see in it?")):
            before = encodes(server.endpoints.http)
            times = [ttft_ms(vlm, question, image) for image in images]
            made = encodes(server.endpoints.http) - before
            print(f"{turn}: {made} encodes for {len(images)} pictures, TTFT median {statistics.median(times):.0f} ms")


if __name__ == "__main__":
    main()
