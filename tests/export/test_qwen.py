"""A random Qwen2.5-VL from picture to TensorRT-LLM's door, through the real tritonserver, against transformers.

Decode and encode run on CPUs (Pillow, OpenVINO). The LLM is a fake of TensorRT-LLM's API, which writes down what it is
given: embeddings, positions and hashes.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, Qwen2VLImageProcessorPil

from build_engines.builder import build, is_stale
from build_engines.chat_template import read_chat_template
from build_engines.compose import compose_repository
from build_engines.errors import BuildError
from build_engines.facts import CHAT_TEMPLATE, read_facts
from build_engines.gpu_steps import link_checkpoint
from build_engines.huggingface.tokenizer import build_tokenizer
from build_engines.huggingface.towers import build_tower
from build_engines.llm_trtllm import write_model_yaml
from client import VlmClient
from client.serving.server import Server
from client.types import VlmError
from python_backends.checkpoint import CHECKPOINT_FILE, load_checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, parse_deployment
from python_backends.media.decode import decode_file
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.media.patches import cut_patches
from python_backends.media.sniff import read_header
from python_backends.media.tiling import PatchGrid
from tests.conftest import free_ports
from tests.export.random_checkpoints import BOS, IMAGE, QWEN_TEMPLATE, make_qwen, tokenizer
from tests.fakes.trtllm import OUT_OF_VOCABULARY
from tests.media.scenes import photo
from tests.waiting import until

IMAGE_TOKENS = 200  # of the deployment file; the checkpoint has 300
NEAR = 2 / 255  # the golden tolerance, see tests/test_media_fidelity.py
TARGET = "TEXT[deployment.pools.text.device]"
Size = tuple[int, int]
PROMPTS: list[tuple[str, list[Size]]] = [
    ("What is in the picture?", [(112, 112)]),
    ("A wide one:", [(500, 90)]),
    ("Tiny", [(20, 30)]),
    ("Larger than it may be", [(900, 700)]),
    ("Two of them", [(84, 300), (200, 130)]),
    ("The first one twice", [(112, 112), (60, 60), (112, 112)]),
]


@dataclass
class Served:
    checkpoint: Path
    calls: Path
    url: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("qwen")
    checkpoint = make_qwen(folder / "checkpoint")
    output = folder / "built"
    artifacts = output / "artifacts"
    artifacts.mkdir(parents=True)
    deployment: Deployment = parse_deployment(
        {"checkpoint": str(checkpoint), "limits": {"image_tokens": IMAGE_TOKENS}}, "test"
    )
    facts = read_facts(checkpoint, "gpu").within(IMAGE_TOKENS)
    (artifacts / CHECKPOINT_FILE).write_text(facts.model_dump_json())
    (artifacts / BUILT_FILE).write_text(deployment.model_dump_json())
    (artifacts / CHAT_TEMPLATE).write_text(read_chat_template(checkpoint))
    build_tokenizer(checkpoint, artifacts / "tokenizer.json")
    build_tower(checkpoint, artifacts / "vision")
    link_checkpoint(checkpoint, artifacts / "llm")
    write_model_yaml(deployment, artifacts)
    compose_repository(deployment, facts, output / "model_repository")
    decoder = output / "model_repository" / "llm_decoder_0" / "1" / "model.py"
    assert TARGET in decoder.read_text()
    decoder.write_text(decoder.read_text().replace(TARGET, '"tests.fakes.trtllm_worker:RecordedEngine"'))
    with Server(output, free_ports()) as server:
        yield Served(checkpoint, artifacts / "calls", server.endpoints.grpc)


@pytest.fixture(scope="module")
def model(served: Served) -> Any:
    return AutoModelForImageTextToText.from_pretrained(served.checkpoint, dtype=torch.float32).eval()


def test_the_llm_is_given_what_transformers_would_give_it(served: Served, model: Any) -> None:
    """All requests at once, so that pictures of different sizes share batches."""
    shutil.rmtree(served.calls)
    served.calls.mkdir()
    with VlmClient(served.url) as client, ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = list(threads.map(lambda prompt: ask(client, *prompt), PROMPTS))
    assert until(lambda: len(list(served.calls.glob("?.npz")) + list(served.calls.glob("??.npz"))) == len(PROMPTS), 10)
    calls = [dict(np.load(file)) for file in served.calls.glob("*.npz")]
    for (question, sizes), answer in zip(PROMPTS, answers, strict=True):
        expected = reference(model, served.checkpoint, question, [photo(*size) for size in sizes])
        given = [call for call in calls if np.array_equal(placed(call["prompt"]), expected.ids)]
        assert len(given) == 1, question
        images = [given[0][f"image_{index}"] for index in range(len(sizes))]
        for image, features in zip(images, expected.features, strict=True):
            assert image.shape == features.shape
            assert np.abs(image - features).max() < 2e-3 * np.abs(features).max(), question
        np.testing.assert_array_equal(given[0]["positions"], expected.positions)
        np.testing.assert_array_equal(given[0]["delta"], expected.delta)
        assert answer.usage.num_visual_tokens == sum(len(features) for features in expected.features)
        assert answer.usage.num_input_tokens == len(expected.ids)
        hashes = [tuple(row) for row in given[0]["hashes"].tolist()]
        assert [hashes.index(one) for one in hashes] == [sizes.index(size) for size in sizes]


def test_a_picture_that_is_too_thin_is_refused_before_it_is_decoded(served: Served) -> None:
    with VlmClient(served.url) as client, pytest.raises(VlmError, match=r"image\[0\]: .* aspect ratio 300"):
        client.generate("What?", images=[png(Image.new("RGB", (1200, 4)))])


@pytest.mark.parametrize("size", [(112, 112), (500, 90), (20, 30), (900, 700), (333, 444), (1280, 960)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_pixels_are_those_of_transformers(served: Served, size: Size, kind: str) -> None:
    """Within the golden tolerance of squares, of pictures as they come out of decode."""
    limits = ImageLimits(10_000_000, 10_000_000)
    file = io.BytesIO()
    photo(*size).save(file, kind)
    data = file.getvalue()
    layout = Layout.of(load_checkpoint(served.calls.parent))
    (pixels,) = decode_file(data, read_header(data, limits), layout, limits, alone=True)
    rule = PatchGrid()
    processor = processor_of(served.checkpoint)
    (patches,) = [processor(images=Image.open(file), return_tensors="np")["pixel_values"]]
    frames = patches.reshape(-1, 3, 2, rule.patch, rule.patch)[:, :, 0].transpose(0, 2, 3, 1)
    wanted = frames * np.array(processor.image_std) + np.array(processor.image_mean)
    given = cut_patches(pixels, rule)
    assert given.shape == wanted.shape
    assert np.abs(given / 255 - wanted).mean() * 2 < NEAR  # which is of values from -1 to 1


def test_the_cpu_profile_refuses_the_family(served: Served, tmp_path: Path) -> None:
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(f"checkpoint: {served.checkpoint}\n")
    assert is_stale(deployment, tmp_path / "built")
    with pytest.raises(
        BuildError, match=r"profile cpu can't serve model_type 'qwen2_5_vl': its LLM wants positions of"
    ):
        build(deployment, tmp_path / "built")


def ask(client: VlmClient, question: str, sizes: Sequence[Size]) -> Any:
    return client.generate(question, images=[png(photo(*size)) for size in sizes], max_tokens=3)


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def placed(prompt: Any) -> Any:
    """Ids that stand for rows of embeddings as the placeholders that they took the place of."""
    return np.where(prompt >= OUT_OF_VOCABULARY, IMAGE, prompt)


def processor_of(checkpoint: Path) -> Any:
    return Qwen2VLImageProcessorPil.from_pretrained(checkpoint, max_pixels=IMAGE_TOKENS * 28 * 28)


@dataclass
class Expected:
    ids: Any
    features: list[Any]
    positions: Any
    delta: Any


@torch.no_grad()
def reference(model: Any, checkpoint: Path, question: str, pictures: list[Image.Image]) -> Expected:
    inputs = processor_of(checkpoint)(images=pictures, return_tensors="pt")
    features = model.get_image_features(**inputs, return_dict=True).pooler_output
    content = [{"type": "image"}] * len(pictures) + [{"type": "text", "text": question}]
    text = tokenizer().apply_chat_template(
        [{"role": "user", "content": content}], chat_template=QWEN_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    ids = [BOS]
    left = iter(features)
    for token in tokenizer()(text, add_special_tokens=False)["input_ids"]:
        ids += [IMAGE] * len(next(left)) if token == IMAGE else [token]
    tokens = torch.tensor([ids])
    positions, delta = model.model.get_rope_index(
        tokens, mm_token_type_ids=(tokens == IMAGE).int(), image_grid_thw=inputs["image_grid_thw"]
    )
    return Expected(np.array(ids), [one.numpy() for one in features], positions.numpy(), delta.numpy().reshape(1, 1))
