"""Bad files through the real server: they fail, each with its own reason, and nobody else does."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton

from client.serving.server import Endpoints
from perf.bad_files import bad_kinds, cases, good, run
from tests.media.make_corpus import FOLDER

pytestmark = pytest.mark.server


def test_exactly_the_bad_files_of_a_load_fail_each_with_its_own_reason(demo_server: Endpoints) -> None:
    load = cases(50, bad=0.2, seed=3)
    outcome = run(demo_server.grpc, load, clients=8)
    assert outcome.wrong == []
    assert outcome.answered == 40
    assert sorted(outcome.refused.values()) == [1] * 10


@pytest.mark.parametrize("kind", range(10))
def test_a_bad_file_over_http_is_a_400_with_its_reason(demo_server: Endpoints, kind: int) -> None:
    case = bad_kinds(77)[kind]
    try:  # text as it stands, as a browser would send it; the rest in base64
        image = case.file.decode("ascii")
    except UnicodeDecodeError:
        image = base64.b64encode(case.file).decode()
    body = json.dumps({"text_input": "What is it?", "image": [image], "sampling_parameters": '{"max_tokens": 1}'})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{demo_server.http}/v2/models/vlm/generate", body.encode(), timeout=60)
    assert error.value.code == 400
    sentence = json.load(error.value)["error"]
    assert "image[0]: " in sentence
    assert str(case.reason) in sentence


def test_every_format_goes_through_the_decode_model(demo_server: Endpoints) -> None:
    """Straight to image_decode, in batches that mix good and bad, as no router would send them."""
    files = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
    with triton.InferenceServerClient(demo_server.grpc.removeprefix("grpc://")) as client:

        def decode(*images: bytes) -> triton.InferResult:
            tensor = triton.InferInput("image", [len(images), 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[image] for image in images], np.object_))
            return client.infer("image_decode", [tensor], client_timeout=60)

        for at in range(0, len(files), 8):
            batch = files[at : at + 8]
            tiles = decode(*batch).as_numpy("tiles")
            assert tiles.shape[:2] == (len(batch), 1)
        alone, together = decode(good(5)), decode(good(6), good(5))
        np.testing.assert_array_equal(alone.as_numpy("tiles")[0], together.as_numpy("tiles")[1])
        with pytest.raises(triton.InferenceServerException, match="image: it is empty"):
            decode(good(5), b"")
