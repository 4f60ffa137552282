"""Visual tokens from the router to the decoder worker: by page numbers, beside copies through BLS, stub and worker.

    python -m perf.transfer [--rounds 200] [--output build/transfer]

One real tritonserver with the product's own llm_decoder_0 (stub, supervised worker, channel protocol); the worker puts
the tokens in their places as float32, as the engine does, and runs no model. Both ways in turns, medians. "first" is
what an image costs when it was just encoded (its pages are filled), "again" when it is in the pool already.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from client.serving.ports import choose_ports
from client.serving.process import TritonProcess, wait_until
from client.serving.runtime import find_runtime
from perf.fake_engine import replace_engine
from perf.transfer.receiver import HIDDEN_OF
from python_backends.deployment import BUILT_FILE, parse_deployment

HERE = Path(__file__).parent
ROOMS = HERE.parents[1] / "model_repository"


def compose(output: Path) -> None:
    """The decoder model with the receiver in the place of the engine, and the pusher."""
    shutil.rmtree(output, ignore_errors=True)
    models, artifacts = output / "model_repository", output / "artifacts"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOMS / "llm_decoder", models / "llm_decoder_0", ignore=ignore)
    shutil.copytree(HERE / "models" / "pusher", models / "pusher", ignore=ignore)
    config = models / "llm_decoder_0" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "llm_decoder"', 'name: "llm_decoder_0"'))
    replace_engine(models / "llm_decoder_0" / "1" / "model.py", "perf.transfer.receiver:Receiver")
    artifacts.mkdir()
    deployment = parse_deployment({"checkpoint": "none"}, "perf.transfer")
    (artifacts / BUILT_FILE).write_text(deployment.model_dump_json())


@contextmanager
def serving(output: Path) -> Iterator[triton.InferenceServerClient]:
    """A tritonserver on the two models, when they are loaded."""
    ports = choose_ports("127.0.0.1")
    repository, log = (output / "model_repository").absolute(), (output / "tritonserver.log").absolute()
    process = TritonProcess(find_runtime(output.absolute() / "runtime"), repository, ports, "127.0.0.1", log)
    deadline = time.monotonic() + 60
    try:
        with triton.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
            while not is_ready(client):
                if process.poll() is not None or not wait_until(deadline):
                    raise process.failure()
            yield client
    finally:
        process.stop()


def is_ready(client: triton.InferenceServerClient) -> bool:
    """False too while nothing listens yet."""
    try:
        return bool(client.is_server_ready())
    except InferenceServerException:
        return False


def measure(client: triton.InferenceServerClient, tokens: int, rounds: int) -> NDArray[np.float32]:
    """Milliseconds [rounds, 3]: copied, pages, filling the pages."""
    inputs = []
    for name, value in (("tokens", tokens), ("rounds", rounds)):
        tensor = triton.InferInput(name, [1], "INT32")
        tensor.set_data_from_numpy(np.array([value], np.int32))
        inputs.append(tensor)
    times: NDArray[np.float32] = client.infer("pusher", inputs).as_numpy("ms")
    return times


def main() -> None:
    """Compose, serve, measure, print the table of docs/embedding-pool.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("build/transfer"))
    options = parser.parse_args()
    compose(options.output)
    print("| visual tokens x width | MB | copied, ms | pages first, ms | ratio | pages again, ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    with serving(options.output) as client:
        for tokens, hidden in HIDDEN_OF.items():
            measure(client, tokens, 20)
            copied, pages, fill = np.median(measure(client, tokens, options.rounds), axis=0)
            first = pages + fill
            print(
                f"| {tokens} x {hidden} | {tokens * hidden * 2 / 1e6:.1f} | {copied:.2f} | {first:.2f} "
                f"| {first / copied:.2f} | {pages:.2f} | {pages / copied:.2f} |"
            )


if __name__ == "__main__":
    main()
