"""`tvlm status`: arithmetic on two readings, and the command against real servers."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from client import VlmClient
from client.serving.server import Endpoints
from client.status.sample import ModelCounts, Sample
from client.status.status import Status, status_of
from client.status.view import render
from tests.conftest import ROOT

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "circle.png"


def tvlm_status(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from client.cli import main; main()", "status", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def seen(server: Endpoints, *arguments: str) -> Any:
    done = tvlm_status("--url", server.http, "--metrics-url", server.metrics, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def counts(inferences: int, executions: int, queue_ms: float = 0.0, compute_ms: float = 0.0) -> ModelCounts:
    return ModelCounts("vision_encoder", True, inferences, executions, 0, queue_ms, compute_ms)


def sample(at_s: float, *models: ModelCounts, **values: dict[tuple[str, ...], float]) -> Sample:
    """`values`: metric name to values by label pairs, written (name, value, name, value, ...)."""
    pairs = {
        name: {tuple(sorted(zip(key[::2], key[1::2], strict=True))): value for key, value in by_labels.items()}
        for name, by_labels in values.items()
    }
    return Sample(at_s, "triton 2.51.0", True, models, pairs)


def shown(status: Status) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(status))
    return capture.get()


def test_rates_and_means_are_of_the_time_between() -> None:
    before, after = sample(10, counts(100, 50, 500, 900)), sample(12, counts(140, 60, 700, 1300))
    model = status_of("http://a", before, after).models[0]
    assert (model.inferences, model.inferences_per_s, model.mean_batch) == (140, 20, 4)
    assert (model.mean_queue_ms, model.mean_compute_ms) == (5, 10)


def test_a_model_that_was_loaded_again_counts_anew() -> None:
    model = status_of("http://a", sample(0, counts(100, 50)), sample(2, counts(6, 3))).models[0]
    assert (model.inferences_per_s, model.mean_batch) == (3, 2)


def test_an_idle_model_has_no_means() -> None:
    model = status_of("http://a", sample(0, counts(5, 5)), sample(1, counts(5, 5))).models[0]
    assert (model.inferences_per_s, model.mean_batch, model.mean_queue_ms) == (0, None, None)


def test_requests_are_told_apart_by_modality_and_outcome() -> None:
    def at(seconds: float, fine: float, full: float, first_token_s: float) -> Sample:
        return sample(
            seconds,
            tvlm_requests_total={
                ("modality", "image", "outcome", "ok"): fine,
                ("modality", "image", "outcome", "UNAVAILABLE"): full,
            },
            tvlm_waiting_requests={("modality", "image"): 3, ("modality", "text"): 1},
            tvlm_pending_tokens={("modality", "image"): 612},
            tvlm_running_requests={("modality", "text"): 9},
            tvlm_time_to_first_token_seconds_sum={("modality", "image"): first_token_s},
            tvlm_time_to_first_token_seconds_count={("modality", "image"): fine},
        )

    image, text = status_of("http://a", at(0, 10, 0, 5.0), at(2, 14, 6, 7.0)).modalities
    assert (image.modality, image.waiting, image.requests_per_s, image.failed_per_s) == ("image", 3, 5, 3)
    assert (image.waiting_tokens, image.running, text.running) == (612, 0, 9)
    assert image.mean_first_token_ms == 500
    assert (text.modality, text.waiting, text.requests_per_s, text.mean_first_token_ms) == ("text", 1, 0, None)


def test_everything_that_is_known_is_shown() -> None:
    after = sample(
        1,
        counts(2, 1),
        tvlm_running_sequences={("replica", "llm_decoder_0"): 7},
        tvlm_kv_cache_usage_ratio={("replica", "llm_decoder_0"): 0.42},
        tvlm_embedding_pages={("state", "held"): 12, ("state", "free"): 1234},
        tvlm_encode_budget_tokens={(): 10240},
        tvlm_encode_tokens={(): 196},
        tvlm_encoder_cache_queries_total={(): 8},
        tvlm_encoder_cache_hits_total={(): 2},
        tvlm_output_tokens_total={(): 31},
    )
    text = shown(status_of("http://a", sample(0), after))
    for part in ("vision_encoder", "llm_decoder_0", "42%", "12 held", "1,234 free", "196 of 10,240", "25%", "31.0 out"):
        assert part in text


def test_a_server_without_requests_is_shown_too(echo_server: Endpoints) -> None:
    done = tvlm_status("--url", echo_server.http, "--metrics-url", echo_server.metrics, "--interval-s", "0.1")
    assert done.returncode == 0, done.stderr
    assert "vlm" in done.stdout
    assert "appear with the first request" in done.stdout


def test_json_counts_what_was_asked(echo_server: Endpoints) -> None:
    before = seen(echo_server, "--interval-s", "0.1")["models"][0]
    with VlmClient(echo_server.grpc) as vlm:
        vlm.generate("Hi")
    after = seen(echo_server, "--interval-s", "0.1")["models"][0]
    assert (after["name"], after["ready"]) == ("vlm", True)
    assert after["inferences"] > before["inferences"]


def test_without_metrics_the_rest_is_shown_and_it_is_said(echo_server: Endpoints) -> None:
    done = tvlm_status("--url", echo_server.http, "--metrics-url", "http://127.0.0.1:9/metrics", "--interval-s", "0.1")
    assert done.returncode == 0
    assert "no metrics at http://127.0.0.1:9/metrics; give --metrics-url" in done.stdout


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9; start one with `tvlm serve`"),
        ("grpc://127.0.0.1:9", "url: expected http://host:port of Triton's HTTP front end, got grpc://127.0.0.1:9"),
    ],
)
def test_a_server_that_is_away_is_one_clear_line(url: str, sentence: str) -> None:
    done = tvlm_status("--url", url)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_is_no_triton_is_said(echo_server: Endpoints) -> None:
    done = tvlm_status("--url", echo_server.metrics.removesuffix("/metrics"))
    assert "is no Triton" in done.stderr


def test_watching_outlives_the_server() -> None:
    command = [sys.executable, "-c", "from client.cli import main; main()", "status", "--watch", "--json"]
    command += ["--url", "http://127.0.0.1:9", "--interval-s", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as run:
        assert run.stdout is not None
        errors = [json.loads(run.stdout.readline())["error"] for _ in range(3)]
        run.terminate()
    assert all("no server answers" in error for error in errors)


@pytest.mark.server
def test_a_working_server_shows_queues_pages_replicas_and_rates(demo_server: Endpoints) -> None:
    with VlmClient(demo_server.grpc) as vlm:
        vlm.generate("What is it?", images=[PICTURE], max_tokens=4)
        vlm.generate("What is it?", images=[PICTURE], max_tokens=4)
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                vlm.generate("Count to five.", max_tokens=8)

        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            status = seen(demo_server, "--interval-s", "2")
        finally:
            stop.set()
            asking.join()
    assert {model["name"] for model in status["models"]} >= {"vlm", "image_decode", "vision_encoder", "llm_decoder_0"}
    assert {row["modality"] for row in status["modalities"]} >= {"text", "image"}
    assert status["replicas"][0]["replica"]
    assert status["output_tokens_per_s"] > 0
    assert 0 < status["encoder_cache_hits"] < 1
    assert status["encode_budget_tokens"] > 0
    assert sum(status["embedding_pages"].values()) > 0
