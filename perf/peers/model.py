"""A checkpoint as transformers' own LLaVA model: the LLM's 4-bit weights unpacked to float32."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

from build_engines.demo_checkpoint.model import VISION_FILE, language_state, load_reference


def load(checkpoint: Path) -> LlavaForConditionalGeneration:
    """The model in eval mode. The bench checkpoint's tower is random there as here: same sizes, other numbers."""
    if (checkpoint / VISION_FILE).exists():
        return load_reference(checkpoint)
    torch.manual_seed(7)
    model = LlavaForConditionalGeneration(LlavaConfig.from_pretrained(str(checkpoint)))
    model.load_state_dict(model.state_dict() | language_state())
    model.tie_weights()
    return model.eval()
