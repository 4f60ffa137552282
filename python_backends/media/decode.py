"""Encoded file to UINT8 tiles, with Pillow, as close to the reference image processor as it needs to be.

draft() lets libjpeg decode at 1/2, 1/4 or 1/8 by using fewer DCT coefficients: perf/decode makes 413 tiles a second of
128x128 from 1280x960, and 285 of 224x224, where everything has to be decoded. Mean absolute difference to decoding
everything, of 255 levels: photos 0.2, drawings 0.1, black text on white 0.2 to 0.8 with 3 times the tile kept; up to
1.5 with 2 times and 6 with 1 time. Hence 3.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, UnidentifiedImageError

from python_backends.errors import ServingError
from python_backends.media.cutting import cut, scales
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits, refuse
from python_backends.media.pixels import to_rgb
from python_backends.media.sniff import ACCEPTED, HEIC, ImageHeader, read_header
from python_backends.media.tiling import Size

_DRAFT_TILES = 3  # how many times the tile draft() must leave
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Memory of pictures that Pillow keeps for the next ones, in blocks of 16 MB: new pages from the system cost a tenth.
Image.core.set_blocks_max(4)  # type: ignore[attr-defined]
_TURNED_BY_PILLOW = ("TIFF", "HEIF")  # while it loads them
_ON_SIDE = (5, 6, 7, 8)
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # parallel over pictures, not within one
if HEIC in ACCEPTED:
    import pillow_heif

    # A thumbnail may show another picture than the file's; it would be taken for a draft.
    pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)


def decode(data: bytes, size: int, limits: ImageLimits) -> NDArray[np.uint8]:
    """Decode an encoded image file to one RGB tile, uint8 [size, size, 3].

    The picture is turned upright (EXIF), squashed to the square, laid on white where it is transparent, and in sRGB.
    Of an animation or a file of several pages the first is taken.

    Raises:
        ServingError: INVALID_ARG with one sentence, whatever is wrong with the file.
    """
    tile: NDArray[np.uint8] = decode_file(data, read_header(data, limits), Layout(size), limits, alone=True)[0]
    return tile


def decode_file(
    data: bytes, header: ImageHeader, layout: Layout, limits: ImageLimits, *, alone: bool
) -> NDArray[np.uint8]:
    """Tiles uint8 [tiles, side, side, 3] of a file whose header was read (and checked) already.

    The size in the header decides how it is cut, as the router has counted its tokens by it.
    """
    size = Size(*header.upright_size)
    wanted = scales(size, layout, alone)
    draft = _DRAFT_TILES * max(max(to.width / size.width, to.height / size.height) for to in wanted)
    with _explained(header, len(data)):
        image = Image.open(io.BytesIO(data), formats=[header.format])
        image.decodermaxblock = len(data)  # at once: it lies in memory, and what a decoder leaves of a part is copied
        limits.check_size(*image.size)  # Pillow may read another size than the header's, from a second header
        image.draft(None, (int(image.width * draft), int(image.height * draft)))
        if header.format == "JPEG" and image.mode == "RGB":  # four bytes a pixel as Pillow holds it: nothing to unpack
            image.tile = [part._replace(args=("RGBX", "")) for part in image.tile]
        image.load()
        orientation = 1 if header.format in _TURNED_BY_PILLOW else header.orientation

        def scaled(size: Size) -> Image.Image:
            if orientation not in _TURNS:
                return to_rgb(image, (size.width, size.height))
            lying = orientation in _ON_SIDE
            stored = to_rgb(image, (size.height, size.width) if lying else (size.width, size.height))
            return stored.transpose(_TURNS[orientation])  # last, when it is small and cheap

        return cut(scaled, size, layout, alone)


@contextmanager
def _explained(header: ImageHeader, size: int) -> Iterator[None]:
    """Turns whatever Pillow and its libraries raise into a sentence for the client."""
    name = f"{header.format} of {header.width} x {header.height} pixels and {size:,} bytes"
    try:
        yield
    except ServingError:
        raise
    except UnidentifiedImageError:
        raise refuse(f"{name} can't be decoded: its header is broken, or of an unusual kind") from None
    except MemoryError:
        raise refuse(f"{name} can't be decoded in the memory that is allowed for it") from None
    except Exception as error:  # OSError, SyntaxError, ValueError, struct.error, ... : Pillow has no base class
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise refuse(f"{name} can't be decoded: {reason}") from None
