"""How large a picture may be: one set of limits, checked before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.deployment import MOST_SIDE, Limits
from python_backends.errors import ServingError, invalid

FIELD = "image"  # the tensor that every refusal here names
SMALL_PIXELS = 4_000_000  # a picture of up to so many never waits for a larger one: decoded within 0.2 s by any codec


@dataclass(frozen=True)
class ImageLimits:
    """Bytes of one encoded file, width x height of one picture, and its longer side."""

    max_bytes: int
    max_pixels: int
    max_side: int = MOST_SIDE

    @classmethod
    def of(cls, limits: Limits) -> ImageLimits:
        """From the deployment file, which counts in millions."""
        return cls(int(limits.image_bytes_mb * 1_000_000), int(limits.image_pixels_mp * 1_000_000), limits.image_side)

    @property
    def max_payload_bytes(self) -> int:
        """What a payload may weigh as sent: base64 with line breaks and a data: header make a file 1.4 times larger."""
        return 2 * self.max_bytes + 4096

    def check_payload(self, count: int) -> None:
        """Refuse a payload that can't hold an acceptable file, without looking at it (ServingError)."""
        if count > self.max_payload_bytes:
            raise refuse(
                f"{count:,} bytes as sent are over twice the limit of {self.max_bytes:,} bytes (limits.image_bytes_mb)"
            )

    def check_bytes(self, count: int) -> None:
        """Refuse a file that is too large (ServingError)."""
        if count > self.max_bytes:
            raise refuse(f"{count:,} bytes are over the limit of {self.max_bytes:,} bytes (limits.image_bytes_mb)")

    def check_size(self, width: int, height: int) -> None:
        """Refuse a picture that would be too large when decoded, or has no pixels at all (ServingError)."""
        size = f"{width} x {height}"
        if width < 1 or height < 1:
            raise refuse(f"the size of {size} pixels in its header is not possible")
        if max(width, height) > self.max_side:
            raise refuse(f"{size} pixels are over the limit of {self.max_side:,} pixels a side (limits.image_side)")
        if width * height > self.max_pixels:
            raise refuse(
                f"{size} = {width * height:,} pixels are over the limit of {self.max_pixels:,} pixels "
                "(limits.image_pixels_mp)"
            )


def refuse(problem: str) -> ServingError:
    """The picture itself is at fault."""
    return invalid(FIELD, problem)
