"""Elements of a BYTES tensor, from the way in which Triton encodes them: each behind its length, 4 bytes little-endian.

Triton's stub does this for a request before the model sees it, holding Python's global lock, and no other request
reaches the model meanwhile. Two million elements would take it three seconds, 200 MB in large ones a quarter of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE_BYTES = 1 << 20  # smaller ones are copied within a tenth of a millisecond


def read(encoded: NDArray[np.uint8], most: int) -> Any:
    """The elements, object [elements]: bytes, or memoryviews of `encoded` where they are large.

    Of more than `most` none is read: what comes back has nothing but `reshape`, as the stub asks for no more, and all
    elements are empty then.
    """
    items, at, data = list[bytes | memoryview](), 0, encoded.data
    while at < len(data):
        if len(items) == most:
            return _TooMany()
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        item = data[begin:at]
        items.append(item if len(item) > _LARGE_BYTES else bytes(item))
    elements = np.empty(len(items), np.object_)
    for index, element in enumerate(items):  # at once NumPy would look into the memoryviews
        elements[index] = element
    return elements


class _TooMany:
    def reshape(self, shape: Any) -> NDArray[Any]:
        return np.broadcast_to(np.array(b"", np.object_), shape)
