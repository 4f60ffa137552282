"""Colours, depths and strips: what the corpus is too small to show."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from python_backends.media import pixels
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from tests.media.make_corpus import base, exif, faded, palette_with_hole
from tests.media.scenes import photo

LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)


def tile_of(image: Image.Image, kind: str = "PNG", **options: object) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return decode(file.getvalue(), 32, LIMITS)


def picture(mode: str) -> Image.Image:
    """Large enough to be averaged down before the filter, in sizes that no factor divides."""
    size = (1023, 771)
    if mode == "P+trns":
        image = palette_with_hole()
        large = image.resize(size, Image.Resampling.NEAREST)
        large.info["transparency"] = image.info["transparency"]
        return large
    if mode.startswith(("I", "F")):
        grey = np.asarray(photo(*size).convert("L")).astype(np.float32) / 255
        return Image.fromarray(
            {"I;16": (grey * 65535).astype(np.uint16), "I": (grey * 1e9).astype(np.int32)}.get(mode, grey)
        )
    source = faded().resize(size) if mode in ("RGBA", "LA") else photo(*size)
    return source.convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "P+trns", "1", "I;16", "I", "F", "CMYK"])
def test_strips_change_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture(mode)
    whole = np.asarray(pixels.to_rgb(image, (32, 32)))
    monkeypatch.setattr(pixels, "_STRIP_PIXELS", 20_000)
    np.testing.assert_array_equal(np.asarray(pixels.to_rgb(image, (32, 32))), whole)
    monkeypatch.setattr(pixels, "_REDUCING_GAP", 1000.0)  # so: no averaging first
    exact = np.asarray(pixels.to_rgb(image, (32, 32))).astype(int)
    assert np.abs(exact - whole).mean() < 1


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_grey_keeps_its_levels(mode: str) -> None:
    levels = np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(4, axis=0)
    values = {"I;16": (levels * 65535).astype(np.uint16), "I": (levels * 60_000).astype(np.int32)}.get(mode, levels)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    assert len(np.unique(decode(file.getvalue(), 256, LIMITS))) > 230


def test_a_transparent_level_of_16_bit_grey_is_white() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(file, "PNG", transparency=1000)
    assert decode(file.getvalue(), 8, LIMITS).min() == 255


def test_invisible_colours_do_not_bleed() -> None:
    image = Image.new("RGBA", (64, 64), (255, 0, 255, 0))
    image.paste((0, 0, 0, 255), (0, 0, 32, 64))
    tile = tile_of(image)
    assert (tile[..., 0] == tile[..., 1]).all(), "grey all over: no magenta at the edge"
    assert tile[0, -1].tolist() == [255, 255, 255]


def _wide_gamut() -> bytes:
    """A profile whose green and red are exchanged for blue, as no display has: easy to tell from none."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * profile[131], 12)}
    red, blue = tags[b"rXYZ"], tags[b"bXYZ"]
    profile[red + 4 : red + 8], profile[blue + 4 : blue + 8] = (
        profile[blue + 4 : blue + 8],
        profile[red + 4 : red + 8],
    )
    return bytes(profile).replace("sRGB built-in".encode("utf-16-be"), "swap built-in".encode("utf-16-be"))


def test_an_embedded_profile_is_applied() -> None:
    tile = tile_of(Image.new("RGB", (40, 40), (255, 0, 0)), icc_profile=_wide_gamut())
    np.testing.assert_allclose(tile[5, 5], (0, 0, 255), atol=2)


@pytest.mark.parametrize("profile", [b"nonsense", b"\0" * 500, _wide_gamut()[:300]])
def test_a_broken_profile_is_ignored(profile: bytes) -> None:
    tile = tile_of(Image.new("RGB", (40, 40), (255, 0, 0)), "JPEG", icc_profile=profile, quality=95)
    np.testing.assert_allclose(tile[5, 5], (255, 0, 0), atol=3)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_broken_exif_is_ignored(kind: str) -> None:
    broken = exif(6).tobytes()[:-14] + b"\xff" * 9
    tile = tile_of(base(), kind, exif=broken, quality=95)
    np.testing.assert_allclose(tile[8, 8], base().getpixel((12, 8)), atol=25)


def test_orientation_beyond_8_is_ignored() -> None:
    np.testing.assert_array_equal(tile_of(base(), exif=exif(9)), tile_of(base()))


def test_lab_is_converted() -> None:
    lab = ImageCms.profileToProfile(
        Image.new("RGB", (40, 40), (200, 40, 40)),
        ImageCms.createProfile("sRGB"),
        ImageCms.createProfile("LAB"),
        outputMode="LAB",
    )
    assert lab is not None
    np.testing.assert_allclose(tile_of(lab, "TIFF")[5, 5], (200, 40, 40), atol=4)


def unsigned_tiff(levels: np.ndarray) -> bytes:
    """32-bit grey as Pillow can't write it."""
    height, width = levels.shape
    tags = (
        (256, width), (257, height), (258, 32), (259, 1), (262, 1), (273, 8 + 2 + 9 * 12 + 4), (277, 1), (278, height),
        (279, levels.size * 4),
    )  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + levels.astype("<u4").tobytes()


@pytest.mark.parametrize("most", [65_535, 2**31, 2**32 - 1])
def test_unsigned_32_bit_grey_grows_brighter_all_along(most: int) -> None:
    ramp = np.linspace(0, most, 64).astype(np.uint32)[None].repeat(4, axis=0)
    row = decode(unsigned_tiff(ramp), 64, LIMITS)[0, :, 0].astype(int)
    assert (np.diff(row) >= 0).all()
    assert row[0] == 0
    assert row[-1] == 255
