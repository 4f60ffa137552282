"""The load generator over OpenAI's endpoint: the real gateway before a tritonserver that echoes."""

import asyncio
from collections.abc import Iterator

import pytest

from client.serving.server import Endpoints
from perf.load import OK, Run, open_loop, open_target
from perf.workloads import Picture, Request
from tests.gateways import RunningGateway

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def gateway(echo_server: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with RunningGateway(tmp_path_factory.mktemp("gateway"), servers=[echo_server.grpc]) as running:
        yield running


async def drive(url: str, asked: list[Request]) -> Run:
    target = open_target([url])
    try:
        return await open_loop(asked, [target.prepare(request) for request in asked], target, timeout_s=30)
    finally:
        await target.close()


def ask(number: int, prompt: str, pictures: tuple[Picture, ...] = ()) -> Request:
    return Request(number, 0.01 * number, "image" if pictures else "text", prompt, pictures, 8)


def test_streams_are_timed_piece_by_piece_from_their_intended_time(gateway: RunningGateway) -> None:
    run = asyncio.run(drive(gateway.url, [ask(number, "count 5 20") for number in range(8)]))
    for record in run.records:
        assert record.outcome == OK
        assert record.first_s is not None
        assert record.sent_s >= record.intended_s == 0.01 * record.number
        assert len(record.gaps_s) == 4
        assert record.end_s is not None
        assert record.intended_s < record.first_s <= record.end_s
    assert run.cpu_share > 0


def test_token_counts_and_pictures_go_through(gateway: RunningGateway) -> None:
    (record,) = asyncio.run(drive(gateway.url, [ask(0, "what is it", (Picture(1, 64, 64),))])).records
    assert record.outcome == OK
    assert (record.input_tokens, record.output_tokens) == (7, 3)


def test_refusals_keep_their_status_and_broken_streams_are_failures(gateway: RunningGateway) -> None:
    run = asyncio.run(drive(gateway.url, [ask(0, "fail INVALID_ARG no such thing"), ask(1, "break it fell over")]))
    refused, broken = run.records
    assert (refused.outcome, refused.error) == ("INVALID_ARGUMENT", "no such thing")
    assert broken.outcome == "UNAVAILABLE"
    assert broken.end_s is None


def test_urls_of_two_kinds_are_refused(gateway: RunningGateway) -> None:
    with pytest.raises(ValueError, match="all grpc:// or all http://"):
        asyncio.run(drive_both(gateway.url))


async def drive_both(url: str) -> None:
    open_target([url, "grpc://localhost:1"])


def test_nobody_there_is_a_record_too() -> None:
    (record,) = asyncio.run(drive("http://127.0.0.1:9", [ask(0, "hi")])).records
    assert record.outcome == "UNAVAILABLE"
