"""What a request weighs, and what each of its tensors may: looked at before anything is read of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import invalid
from python_backends.media.limits import ImageLimits
from python_backends.sampling import MAX_BYTES


@dataclass(frozen=True)
class Weight:
    """Bytes of one request as sent. Pictures inside `messages` count as text here."""

    text: int
    images: int


def weigh(arrays: Mapping[str, NDArray[Any]], limits: Limits) -> Weight:
    """Count elements and bytes, which costs the same for any request (ServingError, INVALID_ARG, naming the tensor)."""
    sizes = {name: len(the_one(arrays, name)) for name in _most_bytes(limits) if name in arrays}
    for name, size in sizes.items():
        most, setting = _most_bytes(limits)[name]
        if size > most:
            raise invalid(name, f"{size:,} bytes are over the limit of {most:,} bytes{setting}")
    images = arrays["image"].reshape(-1) if "image" in arrays else ()
    check_images(len(images), limits)
    return Weight(sum(sizes.values()), sum(len(as_bytes("image", image)) for image in images))


def _most_bytes(limits: Limits) -> dict[str, tuple[int, str]]:
    """Of each text tensor, and the setting that says so."""
    text, count = int(limits.text_bytes_mb * 1_000_000), limits.images_per_request
    with_pictures = text + count * ImageLimits.of(limits).max_payload_bytes
    return {
        "text_input": (text, " (limits.text_bytes_mb)"),
        "messages": (with_pictures, f" (limits.text_bytes_mb, and {count} pictures of twice limits.image_bytes_mb)"),
        "sampling_parameters": (MAX_BYTES, ""),
    }


def check_images(count: int, limits: Limits) -> None:
    """Refuse a request with too many pictures (ServingError, INVALID_ARG)."""
    if count > limits.images_per_request:
        raise invalid("image", f"{count} images are over the limit images_per_request = {limits.images_per_request}")


def the_one(arrays: Mapping[str, NDArray[Any]], name: str) -> bytes | memoryview:
    """The element of a BYTES tensor that has one (ServingError)."""
    return as_bytes(name, only(arrays, name))


def only(arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The element of a tensor that has one (ServingError)."""
    items = arrays[name].reshape(-1)
    if len(items) != 1:
        raise invalid(name, f"holds {len(items)} elements; it must hold 1")
    return items[0]


def as_bytes(name: str, item: Any) -> bytes | memoryview:
    """An element of a BYTES tensor, not copied (ServingError)."""
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, memoryview)):
        return item
    raise invalid(name, f"elements must be BYTES, not {type(item).__name__}")
