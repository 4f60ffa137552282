"""The served vision path against transformers: the same visual tokens (tests/golden/make_goldens.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray

from client.serving.server import Endpoints

pytestmark = pytest.mark.server

GOLDEN = Path(__file__).parent / "golden"
REFERENCE_ROWS = np.load(GOLDEN / "visual_tokens.npz")
ROWS = slice(0, None, 8)


@pytest.fixture(scope="module")
def visual_tokens(demo_server: Endpoints) -> dict[str, NDArray[np.float16]]:
    """Every golden picture through the ensemble image_embedding."""
    with triton.InferenceServerClient(demo_server.grpc.removeprefix("grpc://")) as client:
        return {name: embed(client, (GOLDEN / "pictures" / name).read_bytes()) for name in REFERENCE_ROWS.files}


def embed(client: Any, picture: bytes) -> NDArray[np.float16]:
    image = triton.InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[picture]], np.object_))
    rows: NDArray[np.float16] = client.infer("image_embedding", [image]).as_numpy("visual_tokens")[0]
    return rows


def test_visual_tokens_are_the_references_within_two_percent(visual_tokens: dict[str, NDArray[np.float16]]) -> None:
    errors = {}
    for name, rows in visual_tokens.items():
        reference = REFERENCE_ROWS[name].astype(np.float32)
        errors[name] = float(np.linalg.norm(rows[ROWS] - reference) / np.linalg.norm(reference))
    assert len(errors) == 20
    assert max(errors.values()) < 2e-2, errors
