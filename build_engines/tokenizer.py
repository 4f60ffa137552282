"""tokenizer.json (Hugging Face `tokenizers`) from the metadata of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from build_engines.errors import BuildError
from build_engines.facts import IMAGE_TOKEN
from build_engines.gguf_reader import PlainReader

# What `tokenizer.ggml.pre` names is code in llama.cpp, not data: SmolLM's splits off every digit, the rest is GPT-2's.
_KNOWN_PRE_TOKENIZER = ("gpt2", "smollm")


def build_tokenizer(gguf: Path, output: Path) -> None:
    """Write the tokenizer of a LLaVA model over this GGUF file to `output` (BuildError)."""
    read_tokenizer(gguf, [IMAGE_TOKEN]).save(str(output))


def read_tokenizer(gguf: Path, extra_special: list[str]) -> Tokenizer:
    """The tokenizer of a GGUF file, with `extra_special` tokens after its own vocabulary.

    Raises:
        BuildError: the file's tokenizer is not a byte-level BPE of the SmolLM family.
    """
    reader = PlainReader(gguf)
    model, pre = (str(_field(reader, f"tokenizer.ggml.{name}")) for name in ("model", "pre"))
    if (model, pre) != _KNOWN_PRE_TOKENIZER:
        raise BuildError(f"{gguf.name}: tokenizer {model!r} with pre-tokenizer {pre!r} is not 'gpt2' with 'smollm'")
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [_pair(merge) for merge in _field(reader, "tokenizer.ggml.merges")]

    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control + extra_special])
    return tokenizer


def _field(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise BuildError(f"the GGUF file has no {name}: it is not a complete model")
    return field.contents()


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
