"""Positions of Qwen2-VL's multimodal rotary embedding (arXiv 2409.12191, section 2.1).

A token has three positions: time, height, width. Text counts all three up together; an image's tokens share one time
and have their places in its grid, from the position after the text before it; what follows goes on after the largest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.protocol import VISUAL_TOKEN


def mrope_positions(tokens: NDArray[np.int32], grids: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Positions int64 [3, 1, tokens] of a prompt, and int32 [1, 1] by which its answer's differ from the count so far.

    `tokens` has VISUAL_TOKEN where images stand, `grids` [images, 2] height and width of each in tokens.
    """
    positions = np.empty((3, len(tokens)), np.int64)
    at = following = 0
    for height, width in grids.tolist():
        begin = at + int(np.argmax(tokens[at:] == VISUAL_TOKEN))
        positions[:, at:begin] = np.arange(following, following + begin - at)
        following += begin - at
        at = begin + height * width
        rows, columns = np.divmod(np.arange(height * width), width)
        positions[:, begin:at] = following + np.stack((np.zeros_like(rows), rows, columns))
        following += max(height, width)
    positions[:, at:] = np.arange(following, following + len(tokens) - at)
    following += len(tokens) - at
    return positions[:, np.newaxis], np.array([[following - len(tokens)]], np.int32)
