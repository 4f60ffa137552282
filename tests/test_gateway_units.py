"""What the gateway decides without any server: settings, keys, fields, statuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from client.types import VlmError
from gateway.errors import ApiError, from_stack
from gateway.keys import load_keys
from gateway.schemas import ChatRequest, CompletionRequest
from gateway.settings import GatewaySettings, SettingsError, load_settings
from gateway.translate import from_chat, from_completion, image_sources
from gateway.validation import refusal

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "vlm", "messages": HELLO, **fields}
    try:
        parsed = ChatRequest.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise refusal(error) from None
    parsed.check_supported()
    return parsed


def sent(**fields: Any) -> Any:
    return from_chat(chat(**fields), [], [], 600, "req_1").request


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("logprobs", True),
        ("logprobs", 0),  # false is nothing; to /v1/completions 0 asks for the logprobs of the tokens themselves
        ("prompt_logprobs", 0),
        ("top_logprobs", 3),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("logit_bias", {"5": 1}),
        ("guided_json", {}),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as error:
        chat(**{field: value})
    assert (error.value.status, error.value.param, error.value.code) == (400, field, "unsupported_parameter")
    assert field in error.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": [], "tool_choice": "none", "logprobs": False, "response_format": {"type": "text"}},
        {"stop": None, "seed": None, "max_tokens": None, "temperature": None, "stream_options": None},
        {"tools": None, "logit_bias": {}, "modalities": ["text"]},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "parallel_tool_calls": True, "something": [1]},
    ],
)
def test_fields_that_change_nothing_are_ignored(fields: dict[str, Any]) -> None:
    assert sent(**fields) == sent()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]}, "messages[0].content"),
        ({"messages": HELLO * 4097}, "messages"),
        ({"messages": [0] * 1000}, "messages[0]"),
        ({"temperature": 2.5}, "temperature"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1 << 31}, "top_k"),
        ({"deadline_ms": 1 << 70}, "deadline_ms"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ],
)
def test_a_bad_value_is_refused_with_the_path_to_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert (error.value.status, error.value.param) == (400, param)
    assert error.value.message.startswith(param)


def test_a_number_of_any_length_is_refused() -> None:
    for digits in (50, 4000, 6000):
        with pytest.raises(ValidationError) as error:
            ChatRequest.model_validate_json(f'{{"model": "vlm", "messages": [], "top_k": {"1" * digits}}}')
        assert len(refusal(error.value).message) < 400


def test_a_refusal_quotes_no_content() -> None:
    secret = "data:image/png;base64," + "QUJD" * 5000
    for content in ({"type": "image_url", "image_url": secret}, {"type": secret}):
        with pytest.raises(ApiError) as error:
            chat(messages=[{"role": "user", "content": [content]}])
        assert len(error.value.message) < 400


def test_sampling_goes_to_the_engine_under_its_names() -> None:
    request = sent(
        max_tokens=7, temperature=0.5, top_p=0.9, stop="x", seed=-1, presence_penalty=1, frequency_penalty=-1, top_k=4
    )
    assert json.loads(request.sampling) == {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x"],
        "seed": (1 << 63) - 1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "top_k": 4,
    }
    assert json.loads(sent(max_tokens=7, max_completion_tokens=9).sampling) == {"max_tokens": 9}


def test_priority_and_deadline_go_to_the_scheduler() -> None:
    asked = from_chat(chat(service_tier="priority", deadline_ms=1500), [], [], 600, "req_1")
    assert (asked.request.parameters, asked.timeout_s) == ({"priority_class": "interactive", "deadline_ms": 1500}, 1.5)
    assert asked.late == "deadline_ms: the answer was not complete within 1500 ms"
    assert from_chat(chat(deadline_ms=700_000), [], [], 600, "req_1").late.endswith("request_timeout_s = 600")
    assert sent(service_tier="auto").parameters == {}
    assert sent(service_tier="flex").parameters == {"priority_class": "batch"}


def test_images_keep_their_places_between_texts_and_turns() -> None:
    def part(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}

    text = {"type": "text", "text": "and"}
    body = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [part("data:,1"), text, part("data:,2")]},
            {"role": "user", "content": [part("data:,3")]},
        ]
    )
    sources = image_sources(body)
    assert [source.url for source in sources] == ["data:,1", "data:,2", "data:,3"]
    assert sources[1].field == "messages[1].content[2].image_url"
    messages = json.loads(from_chat(body, sources, [b"1", b"2", b"3"], 600, "req_1").request.messages or "")
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1]["content"] == [{"type": "image"}, text, {"type": "image"}]


def test_completion_is_sent_without_the_chat_template() -> None:
    body = CompletionRequest.model_validate_json('{"model": "vlm", "prompt": ["Once"], "echo": true}')
    request = from_completion(body, 600, "req_1").request
    assert (request.text, request.switches()["apply_chat_template"]) == ("Once", False)
    assert request.request_id == "req_1"  # by which its line in the router's log is found
    assert request.switches()["exclude_input_in_output"] is False


@pytest.mark.parametrize(
    ("status", "message", "answer", "param"),
    [
        ("INVALID_ARGUMENT", "image[1]: 9 bytes are over the limit of 1 bytes (limits.image_bytes_mb)", 413, "second"),
        ("INVALID_ARGUMENT", "image[0]: HEIC is not supported (accepted: JPEG)", 415, "first"),
        ("INVALID_ARGUMENT", "image[0]: the file is cut off", 422, "first"),
        ("INVALID_ARGUMENT", "image: 9 images are over the limit images_per_request = 8", 400, "messages"),
        ("INVALID_ARGUMENT", "messages: 9 prompt tokens leave no room within context_tokens = 8", 400, "messages"),
        ("INVALID_ARGUMENT", "text_input: 9 prompt tokens leave no room within context_tokens = 8", 400, "prompt"),
        ("INVALID_ARGUMENT", "sampling_parameters: max_tokens = 9 and 2 prompt tokens are over", 400, "max_tokens"),
        ("UNAVAILABLE", "256 requests wait already (limit scheduler.classes.text.queue_limit)", 429, None),
        ("UNAVAILABLE", "deadline_ms: the answer was not complete within 5 ms", 408, "deadline_ms"),
        ("UNAVAILABLE", "llm_decoder_0: worker process ended with signal 9", 503, None),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", 408, None),
        ("INTERNAL", "KeyError: 5", 500, None),
    ],
)
def test_errors_of_the_stack_keep_their_sentence(status: str, message: str, answer: int, param: str | None) -> None:
    error = from_stack(VlmError(status, message), ["first", "second"])
    assert (error.status, error.param, error.message) == (answer, param, message)
    assert ("Retry-After" in error.headers()) == (answer in (429, 503))


def test_the_time_that_the_router_asks_to_wait_is_passed_on() -> None:
    error = from_stack(VlmError("UNAVAILABLE", "256 requests wait already (limit ...queue_limit); retry after 7 s"))
    assert (error.status, error.headers()["Retry-After"]) == (429, "7")


def test_keys_come_from_a_file_of_hashes_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may ask\n{hashlib.sha256(b'sk-alice').hexdigest()}  alice  # since May\n\n")
    ring = load_keys(GatewaySettings(host="0.0.0.0", api_keys_file=file), ["sk-env"])
    names = [ring.identify(key) for key in ("sk-alice", "sk-env", "sk-other", "", None, "k" * 10_000)]
    assert names == ["alice", "environment-0", None, None, None, None]


def test_without_keys_only_this_machine_is_served_unless_told_so() -> None:
    assert load_keys(GatewaySettings(), []).identify(None) == "anonymous"
    load_keys(GatewaySettings(host="::1"), [])
    load_keys(GatewaySettings(host="0.0.0.0", allow_no_keys=True), [])
    for host in ("0.0.0.0", "::", "192.0.2.1", "gateway.example"):
        with pytest.raises(SettingsError, match="no API keys"):
            load_keys(GatewaySettings(host=host), [])


def test_a_key_file_that_holds_a_key_instead_of_its_hash_is_refused_without_quoting_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-secret alice\n")
    with pytest.raises(SettingsError, match="line 1") as error:
        load_keys(GatewaySettings(api_keys_file=file), [])
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot: 1", "unknown key 'prot' \\(did you mean 'port'"),
        ("servers: [http://a:1]", "gRPC"),
        ("servers: ['grpc://a:1', 'grpc://a:1']", "named twice"),
        ("port: 70000", "port"),
        ("[]", "mapping"),
        ("{", "not YAML"),
    ],
)
def test_bad_settings_are_refused_in_one_line(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=sentence) as error:
        load_settings(file)
    assert "\n" not in str(error.value)
