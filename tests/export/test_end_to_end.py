"""Random checkpoints of each family, built by `tvlm build` and served: greedy answers are transformers' own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)

from build_engines import build
from client import VlmClient
from client.serving.server import Server
from tests.conftest import free_ports
from tests.export.random_checkpoints import FAMILIES, PATCH, TEMPLATE, make, tokenizer
from tests.media.scenes import photo

NEW_TOKENS = 16
Size = tuple[int, int]
# questions with the sizes of the pictures that they are about
PROMPTS: list[tuple[str, list[Size]]] = [
    ("Hello", []),
    ("What is in the picture?", [(56, 56)]),
    ("And in this one?", [(100, 60)]),
    ("Describe it.", [(60, 170)]),
    ("A wide one:", [(230, 50)]),
    ("One larger than any canvas", [(300, 280)]),
    ("Tall", [(58, 400)]),
    ("Two of them", [(80, 80), (160, 60)]),
    ("Three, {of} different <shapes>", [(50, 190), (120, 120), (57, 56)]),
    ("Count: 1 2 3 4 5", [(211, 199)]),
]


@dataclass
class Served:
    family: str
    checkpoint: Path
    url: str


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = make(request.param, folder / "checkpoint")
    deployment = folder / "deployment.yaml"
    deployment.write_text(
        yaml.safe_dump(
            {
                "checkpoint": "checkpoint",
                "pools": {"text": {"weights": "f32", "kv_cache_mb": 64}},
                "limits": {"context_tokens": 1024},
            }
        )
    )
    build(deployment, folder / "built")
    with Server(folder / "built", free_ports()) as server:
        yield Served(request.param, checkpoint, server.endpoints.grpc)


def test_greedy_answers_are_those_of_transformers(served: Served) -> None:
    reference = Reference(served)
    expected = [reference.greedy(question, [photo(*size) for size in sizes]) for question, sizes in PROMPTS]
    assert len(set(expected)) > len(expected) // 2, "answers that do not depend on the prompt prove nothing"
    with VlmClient(served.url) as client:
        answers = [client.generate(q, images=files(sizes), max_tokens=NEW_TOKENS) for q, sizes in PROMPTS]
    assert [answer.text for answer in answers] == [text for text, _ in expected]
    assert [answer.usage.num_input_tokens for answer in answers] == [count for _, count in expected]


def test_the_picture_decides_the_answer(served: Served) -> None:
    with VlmClient(served.url) as client:
        dark, bright = (
            client.generate("Say", images=[png(Image.new("RGB", (150, 90), colour))], max_tokens=NEW_TOKENS)
            for colour in ("black", "white")
        )
    assert dark.text != bright.text


def files(sizes: list[Size]) -> list[bytes]:
    return [png(photo(*size)) for size in sizes]


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


class Reference:
    """The family's model and processor in transformers, in float32."""

    def __init__(self, served: Served) -> None:
        self._model = AutoModelForImageTextToText.from_pretrained(served.checkpoint, dtype=torch.float32).eval()
        self._tokenizer = tokenizer()
        self._processor = _processor(served.family, served.checkpoint, self._tokenizer)

    @torch.no_grad()
    def greedy(self, question: str, pictures: list[Image.Image]) -> tuple[str, int]:
        """The answer, and the number of tokens of the prompt."""
        content = [{"type": "image"}] * len(pictures) + [{"type": "text", "text": question}]
        prompt = self._processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        images: dict[str, Any] = {"images": [pictures]} if pictures else {}
        inputs = self._processor(text=[prompt], add_special_tokens=False, return_tensors="pt", **images)
        output = self._model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
        count = inputs["input_ids"].shape[1]
        return self._tokenizer.decode(output[0, count:], skip_special_tokens=True), count


class _WithoutVideo(LlavaOnevisionProcessor):
    """transformers' video processors need torchvision, and here are no videos."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
        pass


def _processor(family: str, checkpoint: Path, own_tokenizer: Any) -> Any:
    common = {"tokenizer": own_tokenizer, "patch_size": PATCH, "chat_template": TEMPLATE}
    if family == "llava":
        return LlavaProcessor(
            CLIPImageProcessorPil.from_pretrained(checkpoint), vision_feature_select_strategy="default",
            num_additional_image_tokens=1, **common,
        )  # fmt: skip
    if family == "llava_next":
        return LlavaNextProcessor(
            LlavaNextImageProcessorPil.from_pretrained(checkpoint), vision_feature_select_strategy="default",
            num_additional_image_tokens=1, **common,
        )  # fmt: skip
    del common["patch_size"]
    return _WithoutVideo(
        LlavaOnevisionImageProcessorPil.from_pretrained(checkpoint), num_image_tokens=16,
        vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_4", **common,
    )  # fmt: skip
