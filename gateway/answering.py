"""From a request for the servers to a response: whole or streamed, with everything it held given back in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from client.types import VlmError
from gateway.backends import Call, Pool
from gateway.disconnect import while_connected
from gateway.errors import ApiError, from_stack
from gateway.quotas import Slot
from gateway.record import RequestRecord, record_of
from gateway.replies import Shape, event
from gateway.streaming import EventStream
from gateway.translate import Asked


async def answer(request: Request, asked: Asked, shape: Shape, pool: Pool, slot: Slot) -> Response:
    """Ask the servers (ApiError; ClientGone). A stream's response begins when its first piece is there.

    `slot` is closed when the answer is complete, streamed ones included.
    """
    running = _Running(record_of(request), slot, asked.image_fields)
    try:
        async with while_connected(request.receive):
            first = await running.start(pool, asked)
            if not asked.request.stream:
                await running.finish()
        if asked.request.stream:
            return EventStream(running.events(shape, first), running.close)
        response = JSONResponse(shape.whole(running.call.answer))
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

    async def start(self, pool: Pool, asked: Asked) -> str | None:
        """The first piece of the answer."""
        self._call, first = await pool.start(asked, self._record.begin_s)
        self.call = self._call
        self._record.first_piece()
        return first

    async def finish(self) -> None:
        """Wait for the rest."""
        while await self.call.read() is not None:
            pass

    async def events(self, shape: Shape, first: str | None) -> AsyncIterator[bytes]:
        """The answer as server-sent events. An error is the last one: `[DONE]` would say that it is complete."""
        yield shape.opening() + (shape.piece(first) if first else b"")  # one write: the first piece is what counts
        piece = first
        try:
            while piece is not None:
                piece = await self.call.read()
                if piece:
                    yield shape.piece(piece)
        except VlmError as error:
            refusal = self.refused(error)
            yield event(refusal.body())
            return
        yield shape.end(self.call.answer)

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
