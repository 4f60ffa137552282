"""tokenizer.json of a Hugging Face checkpoint, as transformers reads it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from build_engines.errors import BuildError


def build_tokenizer(checkpoint: Path, output: Path) -> None:
    """Write the tokenizer to `output`.

    Raises:
        BuildError: it is none of the fast ones, or does not know the picture's placeholder as one token.
    """
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise BuildError(f"checkpoint {checkpoint}: its tokenizer has no tokenizer.json")
    image = AutoConfig.from_pretrained(checkpoint).image_token_id
    if backend.id_to_token(image) is None:
        raise BuildError(f"checkpoint {checkpoint}: its tokenizer has no token {image}, the picture's placeholder")
    backend.save(str(output))
