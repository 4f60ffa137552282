"""From messages to prompt tokens: chat template, tokenizer, and places for the visual tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from python_backends.engines.protocol import VISUAL_TOKEN
from python_backends.errors import invalid
from python_backends.router.request import Message


@dataclass(frozen=True)
class Prompt:
    """A prompt whose images are not encoded yet: text pieces with one image between each two."""

    text: str  # as the template rendered it, image placeholders included
    pieces: tuple[NDArray[np.int32], ...]  # token ids; len = images + 1

    @property
    def images(self) -> int:
        """How many images the prompt has places for."""
        return len(self.pieces) - 1

    @property
    def text_tokens(self) -> int:
        """Prompt tokens without the visual ones."""
        return sum(len(piece) for piece in self.pieces)

    def with_visual_tokens(self, counts: Sequence[int]) -> NDArray[np.int32]:
        """The whole prompt [tokens], VISUAL_TOKEN `counts[i]` times in the place of image i."""
        parts = [self.pieces[0]]
        for count, piece in zip(counts, self.pieces[1:], strict=True):
            parts += [np.full(count, VISUAL_TOKEN, np.int32), piece]
        return np.concatenate(parts)


class PromptBuilder:
    """Renders the checkpoint's chat template (a sandboxed Jinja template) and tokenises the result."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str, image_token: str) -> None:
        self._tokenizer = tokenizer
        self._image_token = image_token
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(chat_template)

    def build(self, messages: Sequence[Message]) -> Prompt:
        """Render and tokenise (ServingError, INVALID_ARG when the template refuses the messages)."""
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise invalid("messages", f"the chat template refuses them: {error}") from None
        pieces = tuple(
            np.array(self._tokenizer.encode(piece, add_special_tokens=False).ids, np.int32)
            for piece in text.split(self._image_token)
        )
        return Prompt(text, pieces)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
