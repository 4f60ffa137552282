"""The pictures of a request, as bytes for the model: data: URIs as they are, others fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.aside import aside
from gateway.budget import Lease
from gateway.errors import bad_request
from gateway.fetch import Fetcher
from gateway.translate import ImageSource
from python_backends.lifting import Lifted


async def load_images(
    sources: Sequence[ImageSource], lifted: Lifted, fetcher: Fetcher, limit: int, lease: Lease
) -> list[bytes]:
    """One element for each source, in order (ApiError, naming the field); at most `limit` are fetched."""
    remote = [source for source in sources if not _is_data(source)]
    if len(remote) > limit:
        problem = f"{remote[limit].field}: {len(remote)} remote images are over the limit remote_images = {limit}"
        raise bad_request(remote[limit].field, problem)
    fetches = [asyncio.create_task(fetcher.fetch(source.field, source.url, lease)) for source in remote]
    try:
        fetched = dict(zip(remote, await asyncio.gather(*fetches), strict=True))
    finally:
        for fetch in fetches:  # the first that fails fails the request
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
    return await aside(
        lifted.picture_bytes,
        lambda: [lifted.data_uri(source.url) if _is_data(source) else fetched[source] for source in sources],
    )


def _is_data(source: ImageSource) -> bool:
    return source.url[:5].lower() == "data:"
