"""Pieces of streams: at once when there is time, together when there is not."""

from __future__ import annotations

import asyncio

import pytest

from python_backends.router.outbox import Outbox


class Stream:
    """Gathers what is fed to it until it is flushed."""

    def __init__(self, outbox: Outbox, broken: bool = False) -> None:
        self.sent: list[str] = []
        self._outbox = outbox
        self._text = ""
        self._broken = broken

    def feed(self, text: str) -> None:
        self._text += text
        self._outbox.add(self)

    def flush(self) -> None:
        if self._broken:
            raise RuntimeError("the client is gone")
        self.sent.append(self._text)
        self._text = ""


async def until_sent(stream: Stream, pieces: int) -> None:
    while len(stream.sent) < pieces:
        await asyncio.sleep(0)


def test_a_piece_leaves_at_once_when_there_is_time_and_joins_others_when_there_is_not() -> None:
    async def scene() -> Stream:
        outbox = Outbox()
        stream = Stream(outbox)
        stream.feed("a")
        await until_sent(stream, 1)
        stream.feed("b")
        stream.feed("c")
        await until_sent(stream, 2)
        return stream

    assert asyncio.run(scene()).sent == ["a", "bc"]


def test_streams_take_turns_and_a_broken_one_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> list[Stream]:
        outbox = Outbox()
        streams = [Stream(outbox), Stream(outbox, broken=True), Stream(outbox)]
        for _ in range(3):
            for stream in streams:
                stream.feed("x")
            await until_sent(streams[2], len(streams[2].sent) + 1)
        return streams

    first, broken, last = asyncio.run(scene())
    assert first.sent == last.sent == ["x", "x", "x"]
    assert broken.sent == []
    assert "could not be sent" in caplog.text
