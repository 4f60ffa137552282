"""Many questions about one picture in one sequence: the picture is paid for once, each question sees only itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from build_engines.demo_checkpoint.model import EOS_TOKEN_ID
from build_engines.demo_checkpoint.questions import Question

HEADER = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
)
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Packed:
    """A batch of sequences that follow one shared beginning; L is the longest sequence."""

    embeddings: Tensor  # float32 [N, L, 576]
    mask: Tensor  # bool [N, 1, L, shared + L]
    positions: Tensor  # int64 [N, L]
    rows: list[int] = field(default_factory=list)  # for every answer token: its sequence,
    places: list[int] = field(default_factory=list)  # the place that predicts it,
    targets: list[int] = field(default_factory=list)  # its id,
    begins: list[bool] = field(default_factory=list)  # and whether it is its answer's first


class Language:
    """The frozen LLM with its tokenizer: losses of packed answers, and greedy replies."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.requires_grad_(False), tokenizer
        self.words: nn.Embedding = model.get_input_embeddings()
        self.newline = self.embed("\n")

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, special tokens understood, nothing added."""
        result: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return result

    def embed(self, text: str) -> Tensor:
        """Input embeddings of a text, float32 [tokens, 576]."""
        rows: Tensor = self.words(torch.tensor(self.ids(text)))
        return rows

    def pictures(self, visual: list[Tensor]) -> Tensor:
        """The part of a user turn before the question: each picture's visual tokens and a newline."""
        return torch.cat([part for tokens in visual for part in (tokens, self.newline)])

    def pack(self, shared: int, prefixes: list[Tensor], questions: list[list[Question]]) -> Packed:
        """Prefixes float32 [tokens, 576] each with its questions; `shared` is the length of what comes before."""
        branches = [[(self.ids(q.text + TAIL), [*self.ids(q.answer), EOS_TOKEN_ID]) for q in qs] for qs in questions]
        # The last token of an answer is only predicted.
        lengths = [
            len(prefix) + sum(len(q) + len(a) - 1 for q, a in parts)
            for prefix, parts in zip(prefixes, branches, strict=True)
        ]
        longest, hidden = max(lengths), prefixes[0].shape[1]
        mask = torch.zeros(len(prefixes), 1, longest, shared + longest, dtype=torch.bool)
        mask[..., :shared] = True
        positions = torch.zeros(len(prefixes), longest, dtype=torch.int64)
        packed = Packed(torch.empty(0), mask, positions)
        rows = []
        for row, (prefix, parts) in enumerate(zip(prefixes, branches, strict=True)):
            start = len(prefix)
            own = mask[row, 0, :, shared:]
            own[:start, :start] = torch.ones(start, start, dtype=torch.bool).tril()
            positions[row, :start] = shared + torch.arange(start)
            pieces, end = [prefix], start
            for asked, answer in parts:
                tokens = [*asked, *answer[:-1]]
                size = len(tokens)
                pieces.append(self.words(torch.tensor(tokens)))
                own[end : end + size, :start] = True
                own[end : end + size, end : end + size] = torch.ones(size, size, dtype=torch.bool).tril()
                positions[row, end : end + size] = shared + start + torch.arange(size)
                packed.rows += [row] * len(answer)
                packed.places += range(end + len(asked) - 1, end + size)
                packed.targets += answer
                packed.begins += [True] + [False] * (len(answer) - 1)
                end += size
            pieces.append(prefix.new_zeros(longest - end, hidden))
            rows.append(torch.cat(pieces))
        packed.embeddings = torch.stack(rows)
        return packed

    def shared_start(self, workspace: Tensor | None) -> tuple[DynamicCache, int]:
        """Keys and values of the header, and of the first picture's workspace tokens where all have the same."""
        rows = self.embed(HEADER) if workspace is None else torch.cat([self.embed(HEADER), workspace])
        cache = DynamicCache()
        self.model.model(inputs_embeds=rows[None], past_key_values=cache, use_cache=True)
        return cache, len(rows)

    def answer_logits(self, cache: DynamicCache, packed: Packed) -> Tensor:
        """Logits float32 [answer tokens, vocabulary] for every token of every answer."""
        count = len(packed.embeddings)
        expanded = DynamicCache()
        for index, layer in enumerate(cache.layers):
            expanded.update(layer.keys.expand(count, -1, -1, -1), layer.values.expand(count, -1, -1, -1), index)
        bias = torch.zeros(packed.mask.shape).masked_fill_(~packed.mask, torch.finfo(torch.float32).min)
        hidden = self.model.model(
            inputs_embeds=packed.embeddings,
            attention_mask=bias,
            position_ids=packed.positions,
            past_key_values=expanded,
            use_cache=True,
        ).last_hidden_state
        logits: Tensor = self.model.lm_head(hidden[packed.rows, packed.places])
        return logits

    @torch.no_grad()
    def reply(self, visual: list[Tensor], question: str, limit: int = 24) -> str:
        """The greedy reply to a question about pictures given as visual tokens float32 [64, 576]."""
        rows = torch.cat([self.embed(HEADER), self.pictures(visual), self.embed(question + TAIL)])
        cache, made = DynamicCache(), list[int]()
        while len(made) < limit:
            output = self.model(inputs_embeds=rows[None], past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = int(output.logits[0, -1].argmax())
            if token == EOS_TOKEN_ID:
                break
            made.append(token)
            rows = self.words(torch.tensor([token]))
        text: str = self.tokenizer.decode(made)
        return text
