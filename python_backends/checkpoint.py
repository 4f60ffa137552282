"""Facts of a checkpoint that the stages need at run time, written once by `tvlm build` into `artifacts/`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

CHECKPOINT_FILE = "checkpoint.json"


class Tiling(BaseModel):
    """Any-resolution tiles (media/tiling.py): LLaVA-NeXT's, and with `max_tiles` LLaVA-OneVision's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    canvases: tuple[tuple[int, int], ...]  # width and height in pixels, whole tiles
    max_tiles: int | None = None  # larger canvases' features are shrunk to those of so many tiles
    alone_only: bool = False  # among other pictures of a request a picture is one squashed tile


class NativeResolution(BaseModel):
    """Pictures keep their shape, and are packed patches to the tower (media/patches.py): Qwen2.5-VL's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patch: int  # pixels of a side
    merge: int  # patches of a side that become one token
    window: int  # pixels of a side; most of the tower's layers attend within it
    min_pixels: int  # what is smaller is scaled up, what is larger down
    max_pixels: int


class Checkpoint(BaseModel):
    """What router and stages must know of the model, independent of any engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    # pixels of one side of the square tile the vision tower takes; of native resolution an example, to warm up with
    image_size: int
    tokens_per_tile: int  # visual tokens that one tile, or the example, becomes
    # of a picture that is one tile: scaled to the square, or its middle cut out, or put on a square of a colour
    fit: Literal["squash", "crop", "pad"] = "squash"
    pad_colour: tuple[int, int, int] = (0, 0, 0)
    tiling: Tiling | None = None  # any-resolution tiles
    native: NativeResolution | None = None  # neither of the two: a picture is one tile
    hidden_size: int  # width of a token embedding, of text and of images
    vocab_size: int
    kv_bytes_per_token: int  # of the KV cache in 16 bits: 2 (K, V) x layers x KV heads x head size x 2
    context_tokens: int  # the longest sequence the LLM was trained for
    image_token: str  # the placeholder in the chat template, such as "<image>"
    eos_token_ids: tuple[int, ...]
    bos_token: str = ""  # as a chat template writes them
    eos_token: str = ""
    # how the LLM takes visual tokens in: decoder_only, in their places in the sequence (LLaVA, Qwen-VL, InternVL);
    # cross_attention, beside it (Llama 3.2 Vision)
    fusion: Literal["decoder_only", "cross_attention"] = "decoder_only"

    def prompt_tokens(self, text: int, visual: int) -> int:
        """Length of a prompt as the LLM's sequence: what prefill, KV cache, context and placement count.

        ModServe (section 4.3) places by total tokens for decoder-only models, by text tokens for cross-attention ones.
        """
        return text + visual if self.fusion == "decoder_only" else text

    def within(self, image_tokens: int) -> Checkpoint:
        """With pictures of native resolution of up to so many visual tokens (`limits.image_tokens`)."""
        if self.native is None:
            return self
        native, unit = self.native, self.native.patch * self.native.merge
        side = min(self.image_size // unit, math.isqrt(image_tokens))  # of the example, in tokens
        area = {
            "min_pixels": min(native.min_pixels, (side * unit) ** 2),
            "max_pixels": min(native.max_pixels, image_tokens * unit**2),
        }
        return self.model_copy(
            update={
                "native": native.model_copy(update=area),
                "image_size": side * unit,
                "tokens_per_tile": side**2,
            }
        )


def load_checkpoint(artifacts: Path) -> Checkpoint:
    """Read `artifacts/checkpoint.json` (FileNotFoundError, pydantic.ValidationError)."""
    return Checkpoint.model_validate_json((artifacts / CHECKPOINT_FILE).read_text())
