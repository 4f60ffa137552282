"""The official openai package drives the gateway in front of the real demo server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from client import VlmClient
from client.serving.server import Endpoints
from tests.gateways import RunningGateway
from tests.test_server import engine_stats, picture
from tests.waiting import until

pytestmark = pytest.mark.server

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
VISUAL_TOKENS = 64  # of one picture, in the demo checkpoint


@pytest.fixture
def client(demo_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def image(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def user(*parts: Any) -> Any:
    return [{"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}]


def test_text_is_answered_as_over_grpc(client: openai.OpenAI, demo_server: Endpoints) -> None:
    question = "What is the capital of France?"
    reply = client.chat.completions.create(
        model="vlm", messages=[{"role": "user", "content": question}], max_completion_tokens=16
    )
    with VlmClient(demo_server.grpc) as direct:
        answer = direct.generate(question, max_tokens=16)
    assert reply.choices[0].message.content == answer.text
    assert reply.choices[0].finish_reason == answer.finish_reason
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == answer.usage.num_input_tokens
    assert reply.usage.completion_tokens == answer.usage.num_output_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


@pytest.mark.parametrize("files", [["circle.png"], ["circle.png", "dog.png"]])
def test_pictures_are_answered_as_over_grpc_and_counted(
    client: openai.OpenAI, demo_server: Endpoints, files: list[str]
) -> None:
    question = "What is in the last picture?"
    parts = [image((PICTURES / name).read_bytes()) for name in files]
    reply = client.chat.completions.create(model="vlm", messages=user(*parts, question), max_tokens=12)
    with VlmClient(demo_server.grpc) as direct:
        answer = direct.generate(question, images=[PICTURES / name for name in files], max_tokens=12)
    assert reply.choices[0].message.content == answer.text
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.model_dump()["image_tokens"] == VISUAL_TOKENS * len(files)
    assert reply.usage.prompt_tokens > VISUAL_TOKENS * len(files)


def test_stream_gives_the_same_answer_in_pieces_with_usage_last(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "vlm", "messages": user("Name three fruits."), "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert len(chunks) > 5
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert all(c.usage is None for c in chunks[:-1])


def test_sampling_stop_and_penalties_reach_the_engine(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "vlm", "messages": user("Count from one to ten."), "max_tokens": 32}
    greedy = client.chat.completions.create(**asked).choices[0].message.content or ""
    word = greedy.split()[2]
    stopped = client.chat.completions.create(**asked, stop=word).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (greedy[: greedy.index(word)], "stop")
    penalised = client.chat.completions.create(**asked, presence_penalty=2, frequency_penalty=2)
    assert penalised.choices[0].message.content != greedy
    sampled = [
        client.chat.completions.create(**asked, temperature=1.5, seed=seed).choices[0].message.content
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


def test_completion_goes_on_with_a_text(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="vlm", prompt="The capital of France is", max_tokens=8)
    chat = client.chat.completions.create(model="vlm", messages=user("The capital of France is"), max_tokens=8)
    assert reply.usage is not None
    assert chat.usage is not None
    assert reply.usage.prompt_tokens < chat.usage.prompt_tokens  # no template around it
    echoed = client.completions.create(model="vlm", prompt="The capital of France is", max_tokens=8, echo=True)
    assert echoed.choices[0].text == f"The capital of France is{reply.choices[0].text}"


def test_a_text_to_go_on_with_may_hold_the_placeholder_of_pictures(client: openai.OpenAI) -> None:
    prompt = 'In HTML, <image> is no tag. <|im_end|> neither: use "'
    reply = client.completions.create(model="vlm", prompt=prompt, max_tokens=4, echo=True)
    assert reply.choices[0].text.startswith(prompt)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.model_dump()["image_tokens"] == 0


def test_an_empty_text_is_refused_by_its_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"prompt: .* at least 1 character") as error:
        client.completions.create(model="vlm", prompt="")
    assert error.value.param == "prompt"


def test_models_can_be_listed_and_named(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["vlm"]
    assert client.models.retrieve("vlm").id == "vlm"


ERRORS = {
    400: openai.BadRequestError,
    404: openai.NotFoundError,
    408: openai.APIStatusError,
    413: openai.APIStatusError,
    415: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
}
BROKEN = picture("red")[:-40]


@pytest.mark.parametrize(
    ("changes", "status", "param", "sentence"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools", "support"),
        ({"temperature": 3}, 400, "temperature", "less than or equal to 2"),
        ({"temperature": 0.001}, 400, "temperature", "must be 0 (greedy)"),
        ({"max_tokens": 100_000}, 400, "max_tokens", "context_tokens = 2048"),
        ({"messages": user("word " * 3000)}, 400, "messages", "context_tokens = 2048"),
        (
            {"messages": user("?", *[image(picture("red"))] * 9)},
            400,
            "messages",
            "images_per_request = 8",
        ),
        (
            {"messages": user("?", {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}})},
            400,
            "messages[0].content[1].image_url",
            "allowed_media_domains",
        ),
        ({"model": "gpt-5"}, 404, "model", "is not served here (models: vlm)"),
        ({"messages": user("x" * 40_000_000)}, 413, "body", "body_mb"),
        (
            {"messages": user("?", image(b"\x89PNG\r\n\x1a\n" + b"x" * 20_000_001))},
            413,
            "messages[0].content[1].image_url",
            "image_bytes_mb",
        ),
        (
            {"messages": user(image(picture("red")), "?", image(b"%PDF-1.4"))},
            415,
            "messages[0].content[2].image_url",
            "PDF is not supported (accepted: JPEG",
        ),
        (
            {"messages": user(image(BROKEN), "?")},
            422,
            "messages[0].content[0].image_url",
            "image[0]: ",
        ),
        ({"extra_body": {"deadline_ms": 1}}, 408, "deadline_ms", "deadline_ms"),
    ],
)
def test_each_error_is_of_its_class_and_names_field_and_limit(
    client: openai.OpenAI, changes: dict[str, Any], status: int, param: str | None, sentence: str
) -> None:
    asked: dict[str, Any] = {"model": "vlm", "messages": user("Hi"), "max_tokens": 64, **changes}
    with pytest.raises(ERRORS[status]) as raised:
        client.chat.completions.create(**asked)
    assert raised.value.status_code == status
    assert sentence in raised.value.message
    if param is not None:
        assert raised.value.param == param


def test_a_key_that_is_not_known_is_an_authentication_error(
    demo_server: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVLM_API_KEYS", "sk-one,sk-two")
    settings = {"servers": [demo_server.grpc], "requests_per_minute": 2}
    with RunningGateway(tmp_path, **settings) as gateway:
        for key in ("none", ""):
            with pytest.raises((openai.AuthenticationError, openai.OpenAIError)) as error:
                list(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key or "-", max_retries=0).models.list())
            assert getattr(error.value, "status_code", 401) == 401
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-two", max_retries=0)
        asked: dict[str, Any] = {"model": "vlm", "messages": user("Hi"), "max_tokens": 1}
        for _ in range(2):
            client.chat.completions.create(**asked)
        with pytest.raises(openai.RateLimitError, match="requests_per_minute") as limited:
            client.chat.completions.create(**asked)
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_sequence(client: openai.OpenAI, demo_server: Endpoints, streamed: bool) -> None:
    assert until(lambda: engine_stats(demo_server)["running"] == 0, 10)
    asked: dict[str, Any] = {
        "model": "vlm",
        "messages": user("Tell me a very long story."),
        "max_tokens": 1500,
        "extra_body": {"ignore_eos": True},
    }
    if streamed:
        stream = client.chat.completions.create(**asked, stream=True)
        next(iter(stream))
        assert engine_stats(demo_server)["running"] == 1
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=1).chat.completions.create(**asked)
    assert until(lambda: engine_stats(demo_server)["running"] == 0, 2)
