"""From a request for the servers to a response: whole or streamed, with everything it held given back in the end."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from starlette.responses import JSONResponse, Response

from client.types import Answer, VlmError
from gateway.backends import Call, Pool
from gateway.errors import ApiError, from_stack
from gateway.quotas import Slot
from gateway.record import RequestRecord
from gateway.replies import Shape, event
from gateway.streaming import EventStream, Write
from gateway.translate import Asked


async def answer(record: RequestRecord, asked: Asked, shape: Shape, pool: Pool, slot: Slot) -> Response:
    """Ask the servers (ApiError). A stream's response begins when its first piece is there.

    `slot` is closed when the answer is complete, streamed ones included.
    """
    running = _Running(record, slot, asked.image_fields)
    try:
        first = await running.start(pool, asked, shape)
        if asked.request.stream:
            return EventStream(functools.partial(running.write_events, shape, first), running.close)
        response = JSONResponse(shape.whole(await running.finish()))
    except VlmError as error:
        await running.close()
        raise running.refused(error) from error
    except BaseException:
        await running.close()
        raise
    await running.close()
    return response


class _Running:
    """One request's call to a server, and the accounts that are settled when it ends."""

    call: Call

    def __init__(self, record: RequestRecord, slot: Slot, image_fields: Sequence[str]) -> None:
        self._record = record
        self._slot = slot
        self._image_fields = image_fields
        self._call: Call | None = None

    async def start(self, pool: Pool, asked: Asked, shape: Shape) -> str | None:
        """The first piece of the answer."""
        self._call, first = await pool.start(asked, self._record.begin_s, shape.prepare)
        self.call = self._call
        self._record.first_piece()
        return first

    async def finish(self) -> Answer:
        """Wait for the rest."""
        while await self.call.read() is not None:
            pass
        return self.call.answer

    async def write_events(self, shape: Shape, first: str | None, write: Write) -> None:
        """The answer as server-sent events. An error is the last one: `[DONE]` would say that it is complete."""
        await write(shape.opening + (shape.piece(first) if first else b""), True)  # the first piece is what counts
        piece = first
        try:
            while piece is not None:
                piece = await self.call.read()
                if piece:
                    await write(shape.piece(piece), True)
        except VlmError as error:
            await write(event(self.refused(error).body()), False)
        else:
            await write(shape.end(self.call.answer), False)

    def refused(self, error: VlmError) -> ApiError:
        """What the client is told."""
        refusal = from_stack(error, self._image_fields)
        self._record.error = refusal.code
        return refusal

    async def close(self) -> None:
        """Cancel what still runs, and settle the accounts."""
        tokens = 0
        if self._call is not None:
            usage = self._call.answer.usage
            self._record.input_tokens, self._record.output_tokens = usage.num_input_tokens, usage.num_output_tokens
            tokens = (usage.num_input_tokens or 0) + (usage.num_output_tokens or 0)
            await self._call.aclose()
        await self._slot.close(tokens)
