"""Parsing of the vlm tensors: what is accepted, and the sentence that refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import ServingError, Status
from python_backends.router.request import VlmRequest, parse_request

LIMITS = Limits(images_per_request=3)


def text(value: str) -> NDArray[Any]:
    return np.array([value.encode()], np.object_)


def parse(**arrays: Any) -> VlmRequest:
    images = arrays.pop("images", [])
    tensors = {name: text(value) if isinstance(value, str) else np.array([value]) for name, value in arrays.items()}
    if images:
        tensors["image"] = np.array(images, np.object_)
    return parse_request(tensors, LIMITS, "<image>")


def kinds(request: VlmRequest) -> list[str]:
    return [part.get("text", "<image>") for message in request.messages for part in message["content"]]


def test_images_without_placeholders_stand_before_the_text() -> None:
    assert kinds(parse(text_input="What?", images=[b"a", b"b"])) == ["<image>", "<image>", "What?"]


def test_placeholders_put_images_where_they_stand() -> None:
    assert kinds(parse(text_input="A <image>\nor <image>?", images=[b"a", b"b"])) == [
        "A ",
        "<image>",
        "or ",
        "<image>",
        "?",
    ]


def test_messages_mix_tensor_images_and_data_uris_in_order() -> None:
    url = "data:image/png;base64,AAAA"
    content = [{"type": "image"}, {"type": "image_url", "image_url": {"url": url}}, {"type": "image"}]
    request = parse(messages=json.dumps([{"role": "user", "content": content}]), images=[b"1", b"2"])
    assert request.images == [b"1", url.encode(), b"2"]


def test_defaults_are_vllms_but_for_greedy_sampling() -> None:
    request = parse(text_input="hi")
    assert not request.stream
    assert not request.echo_input
    assert request.sampling.temperature == 0
    assert request.sampling.max_tokens is None


def test_stop_may_be_one_string_or_many() -> None:
    assert parse(text_input="hi", sampling_parameters='{"stop": "x"}').sampling.stop == ("x",)
    assert parse(text_input="hi", sampling_parameters='{"stop": ["x", "y"]}').sampling.stop == ("x", "y")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({}, "text_input: exactly one of text_input and messages must be given"),
        ({"text_input": "a", "messages": "[]"}, "text_input: exactly one of text_input and messages must be given"),
        ({"text_input": "<image>", "images": []}, "text_input: 1 placeholders <image> for 0 images; they must match"),
        (
            {"text_input": "<image>", "images": [b"a", b"b"]},
            "text_input: 1 placeholders <image> for 2 images; they must match",
        ),
        ({"text_input": "a", "images": [b"x"] * 4}, "image: 4 images are over the limit images_per_request = 3"),
        ({"messages": "{"}, "messages: not JSON"),
        ({"messages": "[]"}, "messages: must be a JSON array with at least one message"),
        (
            {"messages": '[{"role": "robot", "content": ""}]'},
            "messages[0].role: 'robot' is not one of system, user, assistant",
        ),
        (
            {"messages": '[{"role": "user", "content": 3}]'},
            "messages[0].content: must be a string or an array of parts",
        ),
        (
            {"messages": '[{"role": "user", "content": [{"type": "image"}]}]'},
            "messages[0].content[0]: more image parts than elements in the tensor image",
        ),
        (
            {"messages": '[{"role": "user", "content": "x"}]', "images": [b"a"]},
            "messages: 0 image parts for 1 images; they must match",
        ),
        (
            {"messages": '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]'},
            "messages[0].content[0].image_url: must be a data: URI; remote images are not fetched here",
        ),
        ({"text_input": "a", "sampling_parameters": "{"}, "sampling_parameters: not JSON"),
        ({"text_input": "a", "sampling_parameters": "[]"}, "sampling_parameters: input should be an object, not []"),
        (
            {"text_input": "a", "sampling_parameters": '{"temperature": 1e-320}'},
            "sampling_parameters: key 'temperature' = 1e-320: must be 0 (greedy), or from 0.01 to 2",
        ),
        ({"messages": '[{"role": "user", "content": ' + "9" * 5000 + "}]"}, "messages: not JSON: Exceeds the limit"),
        (
            {"messages": '[{"role": "user", "content": "\\ud800"}]'},
            "messages[0].content[0]: must be a part of type text (in valid Unicode), image or image_url",
        ),
        (
            {"text_input": "a", "sampling_parameters": '{"temprature": 1}'},
            "sampling_parameters: unknown key 'temprature' (did you mean 'temperature'?)",
        ),
        (
            {"text_input": "a", "sampling_parameters": '{"stop": "' + "x" * 70_000 + '"}'},
            "sampling_parameters: 70012 characters are over the limit of 65536",
        ),
        (
            {"text_input": "a", "sampling_parameters": '{"max_tokens": 0}'},
            "sampling_parameters: key 'max_tokens' = 0: input should be greater than or equal to 1",
        ),
        (
            {"text_input": "a", "sampling_parameters": '{"max_tokens": 2, "min_tokens": 3}'},
            "sampling_parameters: min_tokens = 3 is over max_tokens = 2",
        ),
    ],
)
def test_bad_request_is_refused_by_field_value_and_limit(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ServingError) as error:
        parse(**arrays)
    assert error.value.message.startswith(sentence)
    assert error.value.status is Status.INVALID_ARG


def test_refusal_of_thousands_of_keys_is_a_short_sentence() -> None:
    unknown = {f"key{number}" * 20: 1 for number in range(500)}
    with pytest.raises(ServingError) as error:
        parse(text_input="a", sampling_parameters=json.dumps(unknown))
    assert error.value.message.endswith("; and 492 more")
    assert len(error.value.message) < 8 * 400
