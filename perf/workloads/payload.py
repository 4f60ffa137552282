"""Prompts and picture files from seeds. No two requests share a prefix or a picture, so that no cache can help."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

from perf.workloads.request import Picture

SIZES = ((512, 512), (640, 480), (1024, 768), (1280, 960))  # pixels
# Each is one token of the SmolLM2 vocabulary with the space before it; other tokenizers may differ a little.
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were her all she there would their we him been has when who will more no if out so said what "
    "up its about into than them can only other new some could time these two may then do first any my now such "
    "like our over man me even most made after also did many before must through back years where much your way "
    "well down should because each just those people how too little state good very make world still own see men "
    "work long get here between both life being under never day same another know while last might us great old "
    "year off come since against go came right used take "
).split()


def prompt_text(seed: int, tokens: int) -> str:
    """About so many tokens of words in random order."""
    return " ".join(random.Random(seed).choices(_WORDS, k=max(1, tokens)))


def picture(rng: np.random.Generator) -> Picture:
    """A picture of one of the usual sizes."""
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    return Picture(int(rng.integers(1 << 31)), width, height)


def picture_bytes(spec: Picture) -> bytes:
    """The JPEG file: coloured clouds, of about a photo's size (100 kB a megapixel)."""
    rng = np.random.default_rng(spec.seed)
    clouds = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize(
        (spec.width, spec.height), Image.Resampling.BILINEAR
    )
    buffer = io.BytesIO()
    clouds.save(buffer, format="JPEG", quality=85)
    return buffer.getvalue()
