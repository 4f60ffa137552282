"""The model `vlm` over HTTP, blocking: Triton's `generate` and `generate_stream`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import urllib3

from client.http_protocol import HEADERS, StreamedAnswer, Timeout, cut_off, nobody_there, outputs_of, refusal, url_of
from client.request import AnswerBuilder, VlmRequest
from client.types import Answer, TextStream

_CHUNK_BYTES = 65536


class HttpTransport:
    """Requests to one server (http://host:port) over a pool of connections; threads may share it."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._pool = urllib3.PoolManager(maxsize=64, retries=False, headers=HEADERS)

    def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        builder = AnswerBuilder()
        builder.add(outputs_of(self._post(request, Timeout(request.timeout_s)).data))
        return builder.answer()

    def stream(self, request: VlmRequest) -> TextStream:
        """Send the request; its pieces come from the stream."""
        timeout = Timeout(request.timeout_s)
        return _HttpStream(self._post(request, timeout), self._base_url, timeout)

    def close(self) -> None:
        """Close the pool."""
        self._pool.clear()

    def _post(self, request: VlmRequest, timeout: Timeout) -> urllib3.BaseHTTPResponse:
        with _errors(self._base_url, timeout):
            response = self._pool.request(
                "POST",
                url_of(self._base_url, request),
                json=request.json_body(),
                timeout=urllib3.Timeout(total=timeout.timeout_s),
                preload_content=not request.stream,
            )
            if response.status != 200:
                raise refusal(response.status, response.data)
            return response


class _HttpStream(TextStream):
    def __init__(self, response: urllib3.BaseHTTPResponse, base_url: str, timeout: Timeout) -> None:
        self._response = response
        self._chunks = response.stream(amt=_CHUNK_BYTES)
        self._base_url = base_url
        self._timeout = timeout
        self._received = StreamedAnswer()

    @property
    def answer(self) -> Answer:
        return self._received.answer

    def __next__(self) -> str:
        try:
            with _errors(self._base_url, self._timeout):
                while not self._received.has_next:
                    self._timeout.check()
                    self._received.feed(next(self._chunks))
            return self._received.next_text()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        # The server sees a client that went away when it writes its next piece.
        self._response.close()

    def __del__(self) -> None:
        self.close()


@contextmanager
def _errors(base_url: str, timeout: Timeout) -> Iterator[None]:
    """Failures of the connection in the product's terms."""
    try:
        yield
    except urllib3.exceptions.NewConnectionError as error:
        raise nobody_there(base_url) from error
    except urllib3.exceptions.TimeoutError as error:
        raise timeout.error() from error
    except urllib3.exceptions.HTTPError as error:
        raise cut_off() from error
