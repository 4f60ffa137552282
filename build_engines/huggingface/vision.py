"""Vision tower and connector of a LLaVA-family checkpoint as ONNX: UINT8 tiles in, features out.

Normalisation is part of the graph, so that tiles travel as bytes. The cast to float comes before the transpose:
TensorRT refuses to transpose UINT8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from build_engines.huggingface.onnx_export import DTYPES, export, verify
from build_engines.huggingface.picture import PictureRule, read_picture_rule
from python_backends.media.packing import ROW_END_FILE


class Tower(nn.Module):
    """Tiles uint8 [n, side, side, 3] to features [n, T, hidden]."""

    def __init__(self, model: Any, rule: PictureRule) -> None:
        super().__init__()
        self.vision_tower = model.vision_tower
        self.connector = model.multi_modal_projector
        layer = model.config.vision_feature_layer
        self._layers = [layer] if isinstance(layer, int) else list(layer)
        self._drop_class = model.config.vision_feature_select_strategy == "default"
        self._rule = rule

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Normalise, encode, connect."""
        pixels = tiles.to(torch.float32) * torch.tensor(self._rule.scale) + torch.tensor(self._rule.shift)
        dtype = next(self.connector.parameters()).dtype
        states = self.vision_tower(pixels.permute(0, 3, 1, 2).to(dtype), output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in self._layers], dim=-1)
        if self._drop_class:
            features = features[:, 1:]
        visual_tokens: torch.Tensor = self.connector(features)
        return visual_tokens


def build_vision(checkpoint: Path, output: Path, precision: str = "f32") -> None:
    """Write `output`/model.onnx (and row_end.npy where the checkpoint has such a token).

    It is first exported in float32 and held against PyTorch; then in `precision` (f32, f16, bf16), in which it computes
    throughout: TensorRT takes types as they stand.

    Raises:
        BuildError: ONNX Runtime does not agree with PyTorch.
    """
    model = load_tower(checkpoint)
    tower = Tower(model, read_picture_rule(checkpoint)).eval()
    side = model.config.vision_config.image_size
    output.mkdir()
    path = output / "model.onnx"
    export(tower, {"tiles": _tiles(2, side)}, path, dynamic={"tiles": {0: "n"}})
    verify(tower, path, [{"tiles": _tiles(count, side)} for count in (1, 2, 5)])
    if precision != "f32":
        export(tower.to(DTYPES[precision]), {"tiles": _tiles(2, side)}, path, dynamic={"tiles": {0: "n"}})
    if getattr(model, "image_newline", None) is not None:
        np.save(output / ROW_END_FILE, model.image_newline.detach().float().numpy().astype(np.float16))


def load_tower(checkpoint: Path) -> Any:
    """transformers' model of a checkpoint in float32, without the layers of its LLM."""
    config = AutoConfig.from_pretrained(checkpoint)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = []
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, config=config, dtype=torch.float32)
    return model.model.eval()


def _tiles(count: int, side: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=random)
