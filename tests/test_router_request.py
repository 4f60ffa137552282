"""Parsing of the vlm tensors: what is accepted, and the sentence that refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import ServingError, Status
from python_backends.lifting import lift
from python_backends.router.request import VlmRequest, parse_request

LIMITS = Limits(images_per_request=3, text_bytes_mb=0.1, image_bytes_mb=0.02)
PICTURE = "data:image/png;base64," + "A/+b" * 5000


def chat(*content: object) -> str:
    return json.dumps([{"role": "user", "content": list(content)}])


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


def test_a_text_to_go_on_with_may_hold_the_placeholder_where_no_picture_is_sent() -> None:
    request = parse(text_input="see <image>\n", apply_chat_template=False)
    assert request.messages == [{"role": "user", "content": [{"type": "text", "text": "see <image>\n"}]}]
    with pytest.raises(ServingError, match="2 placeholders <image> for 1 images"):
        parse(text_input="<image><image>", apply_chat_template=False, images=[b"a"])


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
            "sampling_parameters: 70,012 bytes are over the limit of 65,536 bytes",
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


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"text_input": "x" * 100_001},
            "text_input: 100,001 bytes are over the limit of 100,000 bytes (limits.text_bytes_mb)",
        ),
        (
            {"messages": "[" * 400_000},
            "messages: 400,000 bytes are over the limit of 232,288 bytes "
            "(limits.text_bytes_mb, and 3 pictures of twice limits.image_bytes_mb)",
        ),
        (
            {"messages": chat({"type": "text", "text": PICTURE * 5 + "x" * 20})},
            "messages: 100,191 bytes, of which more than 100,000 are not pictures (limits.text_bytes_mb = 0.1)",
        ),
        (
            {"messages": chat(*[{"type": "image_url", "image_url": {"url": PICTURE}}] * 3, {"type": "x" * 101_000})},
            "messages: 161,258 bytes, of which more than 100,000 are not pictures (limits.text_bytes_mb = 0.1)",
        ),
        (
            {"messages": "[" + "{}," * 33_000 + "1]"},
            "messages: 33000 parts are over context_tokens = 2048",
        ),
        (
            {"messages": chat(*[0] * 10_000)},
            "messages: 10000 parts are over context_tokens = 2048",
        ),
        (
            {"messages": chat(*[{"type": "image_url", "image_url": {"url": PICTURE}}] * 9)},
            "image: 9 images are over the limit images_per_request = 3",
        ),
        ({"messages": json.dumps([{"role": "r" * 50_000}])}, "messages[0].role: 'rrr"),
    ],
)
def test_what_is_too_much_to_be_read_is_refused_unread(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ServingError) as error:
        parse(**arrays)
    assert error.value.message.startswith(sentence)
    assert len(error.value.message) < 250
    assert error.value.status is Status.INVALID_ARG


def test_a_million_pictures_are_counted_and_not_looked_at() -> None:
    many = np.broadcast_to(np.array(b"x", np.object_), (1_000_000,))
    with pytest.raises(ServingError, match="image: 1000000 images are over the limit images_per_request = 3"):
        parse_request({"text_input": text("a"), "image": many}, LIMITS, "<image>")


def test_pictures_in_messages_are_not_counted_as_text_however_json_writes_them() -> None:
    slashes, plus = PICTURE.replace("/", "\\/"), PICTURE.replace("+", "\\u002B")
    urls = [f'{{"url" : "{slashes}"}}', f'"{plus}"', f'{{"detail": "low", "url":\n"{PICTURE}"}}']
    parts = ", ".join(f'{{"type": "image_url", "image_url": {url}}}' for url in urls)
    messages = f'[{{"role": "user", "content": [{parts}, {{"type": "text", "text": "\\"url\\": \\"data:,#1\\""}}]}}]'
    request = parse(messages=messages)
    assert request.images == [PICTURE.encode()] * 3
    assert kinds(request)[3] == '"url": "data:,#1"'


LONG = "x" * 2000


def test_large_tensors_are_taken_where_they_lie() -> None:
    picture = f"data:image/png;base64,{'A' * 30_000}"
    part = {"type": "image_url", "image_url": {"url": picture}}
    messages = json.dumps([{"role": "user", "content": [part, part, {"type": "text", "text": "Hi"}]}])
    arrays = {"messages": np.empty(1, np.object_)}
    arrays["messages"][0] = memoryview(messages.encode())
    request = parse_request(arrays, LIMITS, "<image>")
    assert request.images == [picture.encode()] * 2
    assert kinds(request)[2] == "Hi"


@given(
    st.recursive(
        st.sampled_from([f"data:{LONG}", f'data:a"{LONG}', f"data:{LONG}\\", '"url": "data:\\', "a\\", 'b"', 1]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["url", "image_url", "text", "a"]), inner),
    ),
    st.booleans(),
)
@settings(deadline=None)
def test_json_is_the_same_with_its_pictures_put_back(value: Any, spaces: bool) -> None:
    lifted = lift(json.dumps(value, indent=1 if spaces else None).encode(), 1_000_000)

    def put_back(item: Any, key: str = "") -> Any:
        if isinstance(item, dict):
            return {name: put_back(inner, name) for name, inner in item.items()}
        if isinstance(item, list):
            return [put_back(inner) for inner in item]
        return lifted.data_uri(item).decode() if isinstance(item, str) and key in ("url", "image_url") else item

    assert put_back(json.loads(lifted.text)) == value


def test_refusal_of_thousands_of_keys_is_a_short_sentence() -> None:
    unknown = {f"key{number}" * 20: 1 for number in range(500)}
    with pytest.raises(ServingError) as error:
        parse(text_input="a", sampling_parameters=json.dumps(unknown))
    assert error.value.message.endswith("; and 492 more")
    assert len(error.value.message) < 8 * 400
