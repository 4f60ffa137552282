"""Give a trained tower one more channel for every token's place, without changing what it computes."""

from __future__ import annotations

import torch
from torch import Tensor

from build_engines.demo_checkpoint.model import TRAINED_WIDTH, VISUAL_TOKENS, VisionPath, llava_config

# Small beside the features, so that the layer norms see only more channels and not these values.
AMPLITUDE = 0.0625


@torch.no_grad()
def widen(trained: VisionPath) -> VisionPath:
    """The same tower with 64 more channels, which carry a one at the token's own place past every layer.

    The connector has no layer norm before it, and a trained residual stream drowns the position embedding: without the
    channels it can't tell the tokens apart. The connector of the result is new.
    """
    path = VisionPath(llava_config())
    _centre(trained)
    old, new = dict(trained.vision_tower.named_parameters()), path.vision_tower
    for name, parameter in new.named_parameters():
        parameter.copy_(_padded(old[name], parameter))
        if "layer_norm" in name and name.endswith("weight"):
            # The variance is now a mean over more channels, most of the new ones about zero.
            parameter.mul_((TRAINED_WIDTH / (TRAINED_WIDTH + VISUAL_TOKENS)) ** 0.5)
    places = torch.eye(VISUAL_TOKENS) - 1 / VISUAL_TOKENS  # sums to zero: the mean stays
    new.embeddings.position_embedding.weight[:, TRAINED_WIDTH:] = AMPLITUDE * places
    return path


def _centre(trained: VisionPath) -> None:
    """Make every feature vector's mean zero: the layer norms take the mean away anyhow, and so new zeros do no harm."""
    tower = trained.vision_tower
    tower.embeddings.position_embedding.weight -= tower.embeddings.position_embedding.weight.mean(1, keepdim=True)
    writers = [tower.embeddings.patch_embedding]
    for layer in tower.encoder.layers:
        writers += [layer.self_attn.out_proj, layer.mlp.fc2]
    for writer in writers:
        writer.weight -= writer.weight.mean(0, keepdim=True)
        writer.bias -= writer.bias.mean()


def _padded(value: Tensor, like: Tensor) -> Tensor:
    result = torch.zeros_like(like)
    result[tuple(slice(size) for size in value.shape)] = value
    return result
