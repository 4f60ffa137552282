"""When the client asks again: decisions in virtual time, and against a real tritonserver whose model `vlm` echoes."""

import asyncio
import itertools
import threading
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import Answer, AsyncVlmClient, RetryPolicy, VlmClient, VlmError
from client.request import VlmRequest, error_of
from client.retry import Attempts
from client.serving.server import Endpoints, Server
from tests.conftest import echo_output, free_ports

QUICK = RetryPolicy(attempts=4, first_wait_s=0.01)
FULL = VlmError("UNAVAILABLE", "64 requests wait already")


def waits(policy: RetryPolicy, error: VlmError, timeout_s: float | None = None) -> list[float]:
    """The waits before each attempt until the error stays."""
    now = 0.0
    attempts = Attempts(policy, VlmRequest(stream=True, timeout_s=timeout_s), lambda: now)
    passed: list[float] = []
    while True:
        try:
            passed.append(attempts.wait_s(error))
        except VlmError as last:
            assert last is error
            return passed
        now += passed[-1]


@given(st.integers(1, 12), st.floats(0, 5), st.floats(5, 60))
def test_waits_are_bounded_and_as_many_as_attempts_but_one(attempts, first, longest):
    got = waits(RetryPolicy(attempts, first, longest), FULL)
    assert len(got) == attempts - 1
    assert all(0 <= wait <= min(first * 2**n, longest) for n, wait in enumerate(got))


def test_refused_clients_do_not_come_back_together():
    assert len({waits(RetryPolicy(), FULL)[0] for _ in range(50)}) == 50


@given(st.floats(0.1, 10).map(lambda value: round(value, 2)))
def test_a_hint_is_the_least_wait(hint):
    got = waits(RetryPolicy(), VlmError("UNAVAILABLE", f"64 requests wait already; retry after {hint} s"))
    assert len(got) == 3
    assert all(hint <= wait <= 1.25 * hint for wait in got)


def test_a_hint_beyond_the_longest_wait_is_not_waited_for():
    assert waits(RetryPolicy(longest_wait_s=10), VlmError("UNAVAILABLE", "the server drains; retry after 60 s")) == []


@given(st.floats(0.01, 20))
def test_no_attempt_starts_after_the_deadline(timeout_s):
    assert sum(waits(RetryPolicy(attempts=20), FULL, timeout_s)) < timeout_s


@pytest.mark.parametrize(
    "status", ["INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "CANCELLED", "NOT_FOUND", "INTERNAL", "UNKNOWN"]
)
def test_other_errors_stay(status):
    assert waits(RetryPolicy(), VlmError(status, "no; retry after 1 s")) == []


def test_later_attempts_have_only_the_time_that_is_left():
    now = itertools.count(step=0.5)
    attempts = Attempts(RetryPolicy(), VlmRequest(stream=True, timeout_s=10), lambda: next(now))
    assert [attempts.request().timeout_s for _ in range(2)] == [9.5, 9.0]


@pytest.mark.parametrize("policy", [{"attempts": 0}, {"first_wait_s": -1}, {"first_wait_s": 11}])
def test_a_policy_without_sense_is_refused(policy):
    with pytest.raises(VlmError, match=next(iter(policy))):
        RetryPolicy(**policy)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Request for unknown model: 'vlm' has no available versions", "UNAVAILABLE"),  # it drains
        ("Stub process 'vlm_0_0' is not healthy.", "UNAVAILABLE"),  # it was killed
        ("[UNAVAILABLE] 64 requests wait already; retry after 2 s", "UNAVAILABLE"),
        ("[INVALID_ARG] image[0]: it is empty (0 bytes)", "INVALID_ARGUMENT"),
        ("Request for unknown model: 'vlm' is not found", "UNKNOWN"),
    ],
)
def test_an_error_has_the_status_that_its_text_says(text, status):
    error = error_of(text)
    assert error.status == status
    assert not error.message.startswith("[")


Ask = Callable[[str], Answer]


def sync_generate(url: str, retry: RetryPolicy) -> Ask:
    def ask(text: str) -> Answer:
        with VlmClient(url, retry=retry) as vlm:
            return vlm.generate(text)

    return ask


def sync_stream(url: str, retry: RetryPolicy) -> Ask:
    def ask(text: str) -> Answer:
        with VlmClient(url, retry=retry) as vlm, vlm.stream(text) as pieces:
            for _ in pieces:
                pass
            return pieces.answer

    return ask


def async_generate(url: str, retry: RetryPolicy) -> Ask:
    async def talk(text: str) -> Answer:
        async with AsyncVlmClient(url, retry=retry) as vlm:
            return await vlm.generate(text)

    return lambda text: asyncio.run(talk(text))


def async_stream(url: str, retry: RetryPolicy) -> Ask:
    async def talk(text: str) -> Answer:
        async with AsyncVlmClient(url, retry=retry) as vlm, vlm.stream(text) as pieces:
            async for _ in pieces:
                pass
            return pieces.answer

    return lambda text: asyncio.run(talk(text))


@pytest.fixture(params=itertools.product(["grpc", "http"], [sync_generate, sync_stream, async_generate, async_stream]))
def ask(request: pytest.FixtureRequest, echo_server: Endpoints) -> Ask:
    scheme, make = request.param
    made: Ask = make(getattr(echo_server, scheme), QUICK)
    return made


def seen(server: Endpoints, text: str) -> int:
    with VlmClient(server.grpc) as vlm:
        return int(vlm.generate(f"seen {text}").text)


def test_a_busy_server_is_asked_again(ask, echo_server):
    text = f"busy 2 {uuid.uuid4()}; retry after 0.01 s"
    assert ask(text).text.startswith(text)
    assert seen(echo_server, text) == 3


def test_a_server_that_stays_busy_is_left_after_the_last_attempt(ask, echo_server):
    text = f"busy 9 {uuid.uuid4()}; retry after 0.01 s"
    with pytest.raises(VlmError) as caught:
        ask(text)
    assert (caught.value.status, caught.value.retry_after_s) == ("UNAVAILABLE", 0.01)
    assert seen(echo_server, text) == 4


@pytest.mark.parametrize("make", [sync_stream, async_stream])
@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_nothing_is_asked_again_once_a_piece_has_come(echo_server, scheme, make):
    text = f"break {uuid.uuid4()}; retry after 0.01 s"
    with pytest.raises(VlmError) as caught:
        make(getattr(echo_server, scheme), QUICK)(text)
    assert caught.value.status == "UNAVAILABLE"
    assert seen(echo_server, text) == 1


def test_a_wait_ends_when_the_stream_is_closed(echo_server):
    patient = RetryPolicy(first_wait_s=60, longest_wait_s=60)
    text = f"busy 9 {uuid.uuid4()}; retry after 50 s"
    with VlmClient(echo_server.grpc, retry=patient) as vlm:
        pieces = vlm.stream(text)
        threading.Timer(0.2, pieces.close).start()
        assert list(pieces) == []
    assert seen(echo_server, text) == 1


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_request_waits_for_a_server_that_starts(tmp_path, scheme):
    server = Server(echo_output(tmp_path / "out"), free_ports())
    patient = RetryPolicy(attempts=400, first_wait_s=0.1, longest_wait_s=0.1)
    answers: list[Answer] = []

    def ask() -> None:
        with VlmClient(getattr(server.endpoints, scheme), retry=patient) as vlm:
            answers.append(vlm.generate("Hello", timeout_s=30))

    asking = threading.Thread(target=ask)
    asking.start()
    with server:
        asking.join(40)
    assert answers[0].text.startswith("Hello")
