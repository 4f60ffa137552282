"""From messages to prompt tokens: chat template, tokenizer, and places for the visual tokens."""

from __future__ import annotations

import re
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

_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters; the first one is itself marked in a client's text
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_LONG = 4096  # characters


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
    """Renders the checkpoint's chat template (a sandboxed Jinja template) and tokenises the result.

    Only the template can write special tokens: in a client's text `<|im_end|>` is what it looks like, not a turn's end.
    """

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str, image_token: str, bos_token: str = "", eos_token: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.encode_special_tokens = True  # as the text that they are
        self._image_token = image_token
        self._image_id = tokenizer.token_to_id(image_token)
        self._begin = tokenizer.encode("").ids  # what every prompt begins with, such as LLaMA's <s>
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        self._literals = [_OPEN, image_token, *special]
        self._literal_ids = [plain.encode(literal, add_special_tokens=False).ids for literal in self._literals]
        self._literal = re.compile("|".join(map(re.escape, sorted(self._literals, key=len, reverse=True))))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _raise_exception, "bos_token": bos_token, "eos_token": eos_token}
        self._template = environment.from_string(chat_template)

    def build(self, messages: Sequence[Message], apply_chat_template: bool = True) -> Prompt:
        """Render and tokenise (ServingError, INVALID_ARG when the template refuses the messages).

        Without the template the content of the messages is the prompt, one part after the other.
        """
        safe = [self._mark(message) for message in messages]
        marked = self._render(safe) if apply_chat_template else self._plain_text(safe)
        ids = self._encode(marked)
        places = np.flatnonzero(ids == self._image_id)
        pieces = tuple(piece[index > 0 :] for index, piece in enumerate(np.split(ids, places)))
        return Prompt(_MARK.sub(lambda mark: self._literals[int(mark[1])], marked), pieces)

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise invalid("messages", f"the chat template refuses them: {error}") from None

    def _plain_text(self, messages: Sequence[Message]) -> str:
        return "".join(part.get("text", self._image_token) for message in messages for part in message["content"])

    def _mark(self, message: Message) -> Message:
        """The message with a mark in the place of everything in its text that would be taken for a special token."""
        parts = [
            {**part, "text": self._literal.sub(lambda m: f"{_OPEN}{self._literals.index(m[0])}{_CLOSE}", part["text"])}
            if "text" in part
            else part
            for part in message["content"]
        ]
        return {**message, "content": parts}

    def _encode(self, marked: str) -> NDArray[np.int32]:
        """Token ids of the whole prompt at once: some tokenizers treat the begin of a text like no other place."""
        ids: list[int] = []
        for i, text in enumerate(_MARK.split(marked)):  # every second one is the number of a mark
            ids += self._literal_ids[int(text)] if i % 2 else self._tokenise(text)
        if ids[: len(self._begin)] != self._begin:  # a template may have written it
            ids = self._begin + ids
        return np.array(ids, np.int32)

    def _tokenise(self, text: str) -> list[int]:
        if len(text) < _LONG:
            return self._tokenizer.encode(text, add_special_tokens=False).ids if text else []
        # other threads run meanwhile; `encode` holds Python's global lock
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
