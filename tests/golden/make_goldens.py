"""Makes the golden values with transformers, which shares no code with the served path.

    python -m tests.golden.make_goldens [--checkpoint checkpoints/demo]     (needs the extra "train")

Writes beside itself: pictures/ (small files as users send them), visual_tokens.npz (reference rows of each picture)
and goldens.json (prompts, the reference's greedy tokens, and its margin between the best two logits at each of them).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import SiglipImageProcessor

from build_engines.demo_checkpoint.model import (
    EOS_TOKEN_ID,
    IMAGE_TOKEN,
    VISUAL_TOKENS,
    load_reference,
    load_tokenizer,
)
from build_engines.demo_checkpoint.pictures import draw
from build_engines.demo_checkpoint.questions import ask
from build_engines.demo_checkpoint.scenes import random_scene

HERE = Path(__file__).parent
SEED = 20_26
PICTURES = 20
TOKENS = 16
ROWS = slice(0, None, 8)  # every eighth visual token of a picture: enough to tell, small enough to keep
SKILLS = ("shape", "object", "two shapes", "count shapes", "word", "number")

TEXT_QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Write a short poem about the sea.",
    "How many days does a week have?",
    "What do bees make?",
    "Explain what a transformer model is in one sentence.",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "What is 12 + 7?",
    "List the planets of the solar system.",
    "Why is the sky blue?",
    "Say hello in a friendly way.",
    "What is the opposite of cold?",
    "Summarise the water cycle.",
    "Write a Python function that adds two numbers.",
    "What should I pack for a day at the beach?",
    "Tell me a fact about elephants.",
    "How do I boil an egg?",
    "What is the largest ocean?",
)


def main() -> None:
    """Write all goldens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=HERE.parents[1] / "checkpoints" / "demo")
    checkpoint: Path = parser.parse_args().checkpoint
    reference = Reference(checkpoint)
    pictures, asked = _pictures_and_questions()
    pixels = [reference.pixels(path) for path in pictures]
    np.savez_compressed(
        HERE / "visual_tokens.npz",
        **{
            path.name: reference.visual_tokens(p)[ROWS].astype(np.float16)
            for path, p in zip(pictures, pixels, strict=True)
        },
    )
    goldens: list[dict[str, Any]] = []
    for batch in ([(question, ()) for question in TEXT_QUESTIONS], asked):  # one at a time takes five times as long
        answers = reference.greedy([q for q, _ in batch], [[pixels[i] for i in indices] for _, indices in batch])
        for (question, indices), (tokens, margins) in zip(batch, answers, strict=True):
            names = [pictures[i].name for i in indices]
            goldens.append({"question": question, "pictures": names, "tokens": tokens, "margins": margins})
    (HERE / "goldens.json").write_text(json.dumps(goldens, indent=1))


class Reference:
    """transformers' LlavaForConditionalGeneration in float32, with its own image processor and tokenizer."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = load_reference(checkpoint)
        self._tokenizer = load_tokenizer()
        self._tokenizer.padding_side = "left"
        self._template = (checkpoint / "chat_template.jinja").read_text()
        self._processor = SiglipImageProcessor.from_pretrained(str(checkpoint))

    def pixels(self, path: Path) -> torch.Tensor:
        """Normalised pixels [1, 3, size, size] of a picture file."""
        picture = Image.open(path).convert("RGB")
        values: torch.Tensor = self._processor(images=picture, return_tensors="pt")["pixel_values"]
        return values

    @torch.no_grad()
    def visual_tokens(self, pixels: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the connector gives for one picture [tokens, hidden]."""
        features = self._model.get_image_features(pixel_values=pixels)
        rows = getattr(features, "pooler_output", features)
        return np.asarray(torch.cat(list(rows)).reshape(VISUAL_TOKENS, -1), np.float32)

    @torch.no_grad()
    def greedy(self, questions: list[str], pixels: list[list[torch.Tensor]]) -> list[tuple[list[int], list[float]]]:
        """For each question the first greedy tokens, and at each the margin between the two best logits."""
        prompts = [self._prompt(question, len(own)) for question, own in zip(questions, pixels, strict=True)]
        inputs = self._tokenizer(prompts, return_tensors="pt", add_special_tokens=False, padding=True)
        images = [picture for own in pixels for picture in own]
        output = self._model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **({"pixel_values": torch.cat(images)} if images else {}),
        )
        best = torch.stack(output.logits).topk(2).values  # [tokens, questions, 2]
        margins = (best[..., 0] - best[..., 1]).T.tolist()
        answers = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        return [_until_the_end(answer, own) for answer, own in zip(answers, margins, strict=True)]

    def _prompt(self, question: str, pictures: int) -> str:
        content = [{"type": "image"}] * pictures + [{"type": "text", "text": question}]
        prompt: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
        )
        return prompt.replace(IMAGE_TOKEN, IMAGE_TOKEN * VISUAL_TOKENS)


def _until_the_end(tokens: list[int], margins: list[float]) -> tuple[list[int], list[float]]:
    """Without what follows the token that ends an answer: there other answers of the batch went on."""
    end = tokens.index(EOS_TOKEN_ID) + 1 if EOS_TOKEN_ID in tokens else len(tokens)
    return tokens[:end], [round(margin, 4) for margin in margins[:end]]


def _pictures_and_questions() -> tuple[list[Path], list[tuple[str, tuple[int, ...]]]]:
    """Twenty picture files of several kinds, and a question about each or about a pair of them."""
    rng = np.random.default_rng(SEED)
    (HERE / "pictures").mkdir(exist_ok=True)
    scenes = [random_scene(SKILLS[i % len(SKILLS)], rng, held_out=True) for i in range(PICTURES)]
    paths = []
    for i, scene in enumerate(scenes):
        kind = ("jpg", "png", "webp")[i % 3]
        path = HERE / "pictures" / f"{i:02d}.{kind}"
        draw(scene, int(rng.integers(150, 400)), rng).save(path)
        paths.append(path)
    asked: list[tuple[str, tuple[int, ...]]] = []
    for i in range(PICTURES):
        indices = (i,) if i % 3 else (i, (i + 1) % PICTURES)
        questions = ask([scenes[j] for j in indices], rng)
        asked.append((questions[int(rng.integers(len(questions)))].text, indices))
    return paths, asked


if __name__ == "__main__":
    main()
