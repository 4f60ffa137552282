"""The chat template of a checkpoint folder, as plain Jinja."""

from __future__ import annotations

import re
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.facts import CHAT_TEMPLATE, read_json

_OTHER_PLACES = ("chat_template.json", "processor_config.json", "tokenizer_config.json")
# transformers' own tag around what an assistant said; it marks tokens for training and prints nothing
_GENERATION = re.compile(r"\{%(-?)\s*generation\s*(-?)%\}")
_END_GENERATION = re.compile(r"\{%(-?)\s*endgeneration\s*(-?)%\}")


def read_chat_template(checkpoint: Path) -> str:
    """The template's text (BuildError: the folder has none)."""
    text = _find(checkpoint)
    return _END_GENERATION.sub(r"{%\1 endif \2%}", _GENERATION.sub(r"{%\1 if true \2%}", text))


def _find(checkpoint: Path) -> str:
    if (checkpoint / CHAT_TEMPLATE).is_file():
        return (checkpoint / CHAT_TEMPLATE).read_text()
    for name in _OTHER_PLACES:
        path = checkpoint / name
        template = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(template, str):
            return template
    raise BuildError(
        f"checkpoint {checkpoint} has no chat template ({CHAT_TEMPLATE}, or in {', '.join(_OTHER_PLACES)})"
    )
