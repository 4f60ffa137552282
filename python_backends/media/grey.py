"""Grey of more than 8 bits: which values mean black and white."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # TIFF tags
_WHITE_IS_ZERO, _UNSIGNED, _SIGNED = 0, 1, 2


@dataclass(frozen=True)
class Levels:
    """The values that mean black and white; the first is the larger one where a TIFF says so."""

    black: float
    white: float
    unsigned: bool  # 32 bits, which Pillow holds as signed ones

    @classmethod
    def of(cls, image: Image.Image) -> Levels:
        """Of a whole picture of a mode that begins with I or F.

        16 bits cover 0 to 65535, 12 bits 0 to 4095 and float 0 to 1, as their writers mean it; what goes beyond has no
        agreed range and is stretched between its own extremes.
        """
        bits, sample_format = _tag(image, _BITS, 16), _tag(image, _SAMPLE_FORMAT, _UNSIGNED)
        unsigned = image.mode == "I" and bits == 32 and sample_format == _UNSIGNED
        if image.mode == "F":
            usual = 1.0
        elif image.mode.startswith("I;16") and bits == 12:
            usual = 4095.0
        else:
            usual = 32767.0 if bits == 16 and sample_format == _SIGNED else 65535.0
        black, white = 0.0, usual
        if not image.mode.startswith("I;16"):
            low, high = _extrema(image, unsigned)
            if (low < 0 or high > usual) and np.isfinite(high - low):
                black, white = low, high
        if _tag(image, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO:
            black, white = white, black
        return cls(black, white, unsigned)

    def to_8_bits(self, image: Image.Image) -> Image.Image:
        """A part of the picture, in mode L; its transparent level is white."""
        values = _values(image, self.unsigned)
        scale = np.float32(255.0 / ((self.white - self.black) or 1e-30))
        scaled = (np.nan_to_num(values.astype(np.float32)) - np.float32(self.black)) * scale + np.float32(0.5)
        grey = scaled.clip(0, 255).astype(np.uint8)
        transparent = image.info.get("transparency")
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return Image.fromarray(grey, "L")


def _extrema(image: Image.Image, unsigned: bool) -> tuple[float, float]:
    if unsigned:
        values = _values(image, unsigned)
        return float(values.min()), float(values.max())
    low, high = image.getextrema()
    return float(low), float(high)  # type: ignore[arg-type]


def _values(image: Image.Image, unsigned: bool) -> NDArray[Any]:
    values: NDArray[Any] = np.asarray(image)
    return values.view(np.uint32) if unsigned else values


def _tag(image: Image.Image, tag: int, default: int) -> int:
    """A TIFF tag of one number, or of one for each channel."""
    value = getattr(image, "tag_v2", {}).get(tag, default)
    first = value[0] if isinstance(value, tuple) and value else value
    return first if isinstance(first, int) else default
