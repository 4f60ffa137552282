"""Qwen2.5-VL's vision tower and merger as ONNX: packed UINT8 patches in, visual tokens out (arXiv 2502.13923).

transformers splits the sequence by lengths in Python, which no graph can hold. Here attention within windows is a batch
over windows, gathered by index and padded to a whole one, and full attention is masked to the patch's own picture; the
indices come from `python_backends.media.patches`. Patches stay in their order, so tokens come out in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForImageTextToText

from build_engines.huggingface.onnx_export import DTYPES, export, verify
from build_engines.huggingface.picture import PictureRule, read_picture_rule
from python_backends.media.patches import pack
from python_backends.media.tiling import PatchGrid, Size

_PATCHES = {0: "4*units"}  # four become a token
DYNAMIC = {
    "patches": _PATCHES,
    "positions": _PATCHES,
    "pictures": _PATCHES,
    "windows": {0: "windows"},
    "slots": _PATCHES,
}
_GRIDS = (
    [Size(8, 4)],
    [Size(6, 10), Size(18, 4)],
    [Size(20, 22), Size(2, 2), Size(8, 8)],
)  # that are held against PyTorch


_BASE = 10_000.0  # of the rotary frequencies


class QwenTower(nn.Module):
    """Patches uint8 [P, side, side, 3] and their indices to visual tokens [P / 4, hidden]."""

    def __init__(self, visual: Any, rule: PictureRule) -> None:
        super().__init__()
        config = visual.config
        self._heads = config.num_heads
        self._full = set(config.fullatt_block_indexes)
        self.blocks, self.merger = visual.blocks, visual.merger
        # a still picture is two equal frames to the convolution over time
        weight = visual.patch_embed.proj.weight.detach().sum(2).permute(0, 2, 3, 1).flatten(1)
        self.embed = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.embed.weight = nn.Parameter(weight.contiguous())
        self._quarter = config.hidden_size // config.num_heads // 4
        self._rule = rule

    def forward(
        self,
        patches: torch.Tensor,
        positions: torch.Tensor,
        pictures: torch.Tensor,
        windows: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """See `patches.Packed` for the indices."""
        pixels = patches.to(torch.float32) * torch.tensor(self._rule.scale) + torch.tensor(self._rule.shift)
        x = self.embed(pixels.flatten(1).to(self.embed.weight.dtype))
        frequencies = torch.tensor([_BASE ** (-index / self._quarter) for index in range(self._quarter)])
        angles = (positions.float()[..., None] * frequencies).flatten(1)  # [P, head size / 2]
        turn = angles.cos()[:, None], angles.sin()[:, None]
        own_picture = (pictures[:, None] == pictures[None, :])[None, None]
        there = (windows >= 0)[:, None, None, :]
        rows = windows.clamp(min=0).long()
        for index, block in enumerate(self.blocks):
            query, key, value = block.attn.qkv(block.norm1(x)).reshape(len(x), 3, self._heads, -1).unbind(1)
            query, key = _turned(query, *turn), _turned(key, *turn)
            if index in self._full:
                mixed = _attention(query[None], key[None], value[None], own_picture)[0]
            else:
                gathered = _attention(query[rows], key[rows], value[rows], there)
                mixed = gathered.flatten(0, 1)[slots.long()]
            x = x + block.attn.proj(mixed.flatten(1))
            x = x + block.mlp(block.norm2(x))
        visual_tokens: torch.Tensor = self.merger(x)
        return visual_tokens


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions on [P, heads, size], in float32 as the reference has them."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, size] each; `mask` is true where a key may be seen."""
    swapped = (each.transpose(1, 2) for each in (query, key, value))
    return functional.scaled_dot_product_attention(*swapped, attn_mask=mask).transpose(1, 2)


def build_qwen_vision(checkpoint: Path, output: Path, precision: str = "f32") -> None:
    """Write `output`/model.onnx; see `vision.build_vision` (BuildError)."""
    config = AutoConfig.from_pretrained(checkpoint)
    text = config.get_text_config()
    text.num_hidden_layers, text.layer_types = 0, []
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, config=config, dtype=torch.float32)
    tower = QwenTower(model.model.visual, read_picture_rule(checkpoint)).eval()
    vision = config.vision_config
    rule = PatchGrid(vision.patch_size, vision.spatial_merge_size)
    output.mkdir()
    path = output / "model.onnx"
    example = example_inputs(_GRIDS[1], rule, vision.window_size)
    export(tower, example, path, DYNAMIC)
    verify(tower, path, [example_inputs(grids, rule, vision.window_size) for grids in _GRIDS])
    if precision != "f32":
        export(tower.to(DTYPES[precision]), example, path, DYNAMIC)


def example_inputs(grids: list[Size], rule: PatchGrid, window_pixels: int) -> dict[str, torch.Tensor]:
    """Random pictures of these patch grids."""
    packed = pack(grids, rule, window_pixels)
    random = np.random.default_rng(len(grids))
    shape = (len(packed.pictures), rule.patch, rule.patch, 3)
    arrays = {"patches": random.integers(0, 256, shape, np.uint8), **vars(packed)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
