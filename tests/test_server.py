"""What must hold on the real server: batching, order, cancellation, memory, bad input among good."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from PIL import Image, ImageDraw

from client import VlmClient, VlmError
from client.serving.server import Endpoints, Server
from tests.composed import composed_with
from tests.conftest import free_ports

pytestmark = pytest.mark.server

SHM = Path("/dev/shm")
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


@pytest.fixture
def vlm(demo_server: Endpoints) -> Iterator[VlmClient]:
    with VlmClient(demo_server.grpc) as client:
        yield client


def picture(colour: str, shape: str = "ellipse", size: int = 200, kind: str = "PNG") -> bytes:
    image = Image.new("RGB", (size, size), "white")
    getattr(ImageDraw.Draw(image), shape)((size // 5, size // 5, size * 4 // 5, size * 4 // 5), fill=colour)
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def statistics(server: Endpoints, model: str) -> tuple[int, int]:
    """(inference_count, execution_count) of a model."""
    with urllib.request.urlopen(f"{server.http}/v2/models/{model}/stats", timeout=10) as answer:
        stats = json.load(answer)["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def engine_stats(server: Endpoints) -> dict[str, Any]:
    """What the replica says of its engine, through the decoder channel's own model."""
    answers: list[Any] = []
    done = threading.Event()

    def keep(result: Any, error: Any) -> None:
        answers.append(error or result)
        done.set()

    with triton.InferenceServerClient(server.grpc.removeprefix("grpc://")) as client:
        client.start_stream(keep)
        op = triton.InferInput("op", [1], "BYTES")
        op.set_data_from_numpy(np.array([b"stats"], np.object_))
        client.async_stream_infer("llm_decoder_0", [op])
        assert done.wait(10)
        client.stop_stream()
    stats: dict[str, Any] = json.loads(answers[0].as_numpy("reply")[0])
    return stats


def until(condition: Any, seconds: float) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
    return False


def test_text_only_requests_leave_no_trace_in_the_vision_stages(demo_server: Endpoints, vlm: VlmClient) -> None:
    before = [statistics(demo_server, model) for model in ("image_decode", "vision_encoder", "image_embedding")]
    assert vlm.generate("What is the capital of France?", max_tokens=8).text
    assert [statistics(demo_server, m) for m in ("image_decode", "vision_encoder", "image_embedding")] == before


def test_images_of_concurrent_requests_are_encoded_in_batches(demo_server: Endpoints) -> None:
    inferences, executions = statistics(demo_server, "vision_encoder")

    def ask(number: int) -> str:
        with VlmClient(demo_server.grpc) as client:
            return client.generate(
                "What colour is it?", images=[picture("maroon", size=100 + number)], max_tokens=1
            ).text

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(16)))
    after = statistics(demo_server, "vision_encoder")
    assert after[0] - inferences == 16
    assert after[1] - executions < 16


def test_same_picture_costs_one_encode(demo_server: Endpoints, vlm: VlmClient) -> None:
    image = picture("purple", "rectangle", size=211)
    inferences, _ = statistics(demo_server, "vision_encoder")
    first = vlm.generate("What is it?", images=[image, image], max_tokens=4)
    again = vlm.generate("What colour is it?", images=[image], max_tokens=4)
    assert statistics(demo_server, "vision_encoder")[0] == inferences + 1
    assert first.timing.encode_ms
    assert again.timing.encode_ms == 0


@pytest.mark.parametrize(
    ("images", "options", "status", "sentence"),
    [
        ([b"not a picture"], {}, "INVALID_ARGUMENT", "image[0]: "),
        ([b""], {}, "INVALID_ARGUMENT", "image[0]: "),
        ([picture("red"), picture("blue", kind="JPEG")[:300]], {}, "INVALID_ARGUMENT", "image[1]: "),
        ([picture("red")] * 9, {}, "INVALID_ARGUMENT", "9 images are over the limit images_per_request = 8"),
        ([], {"temprature": 1.0}, "INVALID_ARGUMENT", "unknown key 'temprature' (did you mean 'temperature'?)"),
        ([], {"max_tokens": 0}, "INVALID_ARGUMENT", "max_tokens"),
        ([], {"max_tokens": 100_000}, "INVALID_ARGUMENT", "max_tokens = 100000"),
    ],
)
def test_bad_input_gets_a_status_and_a_sentence(
    vlm: VlmClient, images: list[bytes], options: dict[str, Any], status: str, sentence: str
) -> None:
    with pytest.raises(VlmError) as error:
        vlm.generate("What is this?", images=images, **options)
    assert error.value.status == status
    assert sentence in error.value.message


def test_prompt_over_the_context_and_unmatched_placeholders_are_refused(vlm: VlmClient) -> None:
    with pytest.raises(VlmError, match="leave no room for an answer within context_tokens = 2048"):
        vlm.generate("word " * 3000)
    with pytest.raises(VlmError, match="2 placeholders <image> for 1 images"):
        vlm.generate("<image> or <image>?", images=[picture("red")])
    with pytest.raises(VlmError, match="1 placeholders <image> for 2 images"):
        vlm.generate("<image>?", images=[picture("red"), picture("blue")])


def test_more_elements_than_any_request_may_have_are_counted_and_refused(vlm: VlmClient) -> None:
    with pytest.raises(VlmError, match="image: 200000 images are over the limit images_per_request = 8") as error:
        vlm.generate("What is it?", images=[b"x"] * 200_000)
    assert error.value.status == "INVALID_ARGUMENT"
    assert vlm.generate("Hello", max_tokens=1).usage.num_output_tokens == 1


@pytest.mark.parametrize(
    "asked",
    [{"text": "x" * 2_000_000}, {"messages": [{"role": "user", "content": "x" * 2_000_000}]}],
    ids=["text_input", "messages"],
)
def test_text_that_no_context_can_hold_is_refused_unread(vlm: VlmClient, asked: dict[str, Any]) -> None:
    with pytest.raises(VlmError, match=r"limits\.text_bytes_mb") as error:
        vlm.generate(**asked)
    assert error.value.status == "INVALID_ARGUMENT"


def test_bad_image_in_a_batch_harms_no_other_request(demo_server: Endpoints) -> None:
    def ask(number: int) -> str:
        image = b"junk" if number % 4 == 0 else picture("green", size=120 + number)
        with VlmClient(demo_server.grpc) as client:
            try:
                return client.generate("What is it?", images=[image], max_tokens=1).text or "empty"
            except VlmError as error:
                return f"refused: {error.message}"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(16)))
    refused = [i for i, answer in enumerate(answers) if answer.startswith("refused: image[0]: ")]
    assert refused == list(range(0, 16, 4))


def test_same_greedy_request_twice_gives_the_same_answer_streamed_or_not(vlm: VlmClient) -> None:
    image = picture("blue", "rectangle")
    whole = vlm.generate("What is in the picture?", images=[image], max_tokens=24)
    stream = vlm.stream("What is in the picture?", images=[image], max_tokens=24)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert stream.answer.finish_reason == whole.finish_reason


def test_cancelled_stream_frees_its_sequence_within_a_second(demo_server: Endpoints, vlm: VlmClient) -> None:
    assert until(lambda: engine_stats(demo_server)["running"] == 0, 10)
    stream = vlm.stream("Tell me a very long story.", max_tokens=1500, ignore_eos=True)
    next(stream)
    assert engine_stats(demo_server)["running"] == 1
    begin = time.monotonic()
    stream.close()
    assert until(lambda: engine_stats(demo_server)["running"] == 0, 5)
    assert time.monotonic() - begin < 1.0


def test_mixed_load_is_answered_and_memory_stays_flat(tmp_path: Path) -> None:
    """With a small KV cache: its memory is touched block by block, and what fills up is no growth."""

    def ask(number: int) -> int:
        images = [picture("red", size=100 + number)] * (number % 3 == 0)
        with VlmClient(server.endpoints.grpc if number % 2 else server.endpoints.http) as client:
            return len(client.generate(f"Question {number}: what is this?", images=images, max_tokens=4).text)

    def load(numbers: list[int]) -> None:
        with ThreadPoolExecutor(16) as pool:
            assert len(list(pool.map(ask, numbers))) == len(numbers)

    numbers = list(range(100))
    with Server(composed_with({"pools.text.kv_cache_mb": 128}, tmp_path / "small"), free_ports()) as server:
        load(numbers)  # warm-up: pools of threads, slots, shared memory and the KV cache reach their size
        before = resident_bytes()
        load(numbers)
        assert resident_bytes() < before * 1.03


def resident_bytes() -> int:
    """Unique memory of tritonserver, its stubs and their workers."""
    family = psutil.Process().children(recursive=True)
    return sum(p.memory_full_info().uss for p in family)


def test_server_leaves_nothing_in_shared_memory_after_its_end(demo_server: Endpoints) -> None:
    """Only Triton's own regions exist while it runs; tests/test_serve_cli.py looks after the end."""
    regions = [name for name in os.listdir(SHM) if not name.startswith("triton_python_backend_shm_region")]
    assert not [name for name in regions if "tvlm" in name or "vlm" in name]


def test_two_pictures_are_never_mixed_up_under_concurrent_clients(demo_server: Endpoints) -> None:
    """A mix-up would be the answer to the other order; the model need not be right for that."""
    circle, dog = (PICTURES / name for name in ("circle.png", "dog.png"))
    orders = ([circle, dog], [dog, circle])

    def ask(order: int) -> str:
        with VlmClient(demo_server.grpc) as client:
            return client.generate("What is shown in the second picture?", images=orders[order], max_tokens=16).text

    alone = [ask(0), ask(1)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [0, 1] * 10))
    assert [i for i, answer in enumerate(answers) if answer == alone[1 - i % 2]] == []
    assert sum(answer == alone[i % 2] for i, answer in enumerate(answers)) >= 18  # a batch may tip a near tie
