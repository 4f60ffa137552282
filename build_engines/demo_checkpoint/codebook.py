"""The word for every fact: what the last sixteen visual tokens should be, learned through the frozen LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from build_engines.demo_checkpoint import facts

HIDDEN = 576


class Codebook(nn.Module):
    """Facts int64 [N, 14] to the visual tokens that say them, float32 [N, 64, 576]."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(facts.TOTAL_VALUES, HIDDEN))
        self.slots = nn.Parameter(torch.zeros(facts.FACT_TOKENS, HIDDEN))
        self.workspace = nn.Parameter(torch.zeros(facts.FIRST_FACT_TOKEN, HIDDEN))
        starts = [facts.OFFSETS[group] for group in facts.FACTS]
        self.register_buffer("starts", torch.tensor(starts), persistent=False)

    @classmethod
    def from_words(cls, embeddings: Tensor, tokenizer: Any) -> Codebook:
        """Start from the LLM's embeddings [vocabulary, 576] of each value's own word, and of a comma for nothing."""
        book = cls()
        rows = []
        for group, values in facts.GROUPS.items():
            for value in values:
                # Characters stand without the space that begins a word.
                text = "," if value == facts.NONE else value if group == "character" else f" {value}"
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                rows.append(embeddings[torch.tensor(ids)].mean(0))
        comma = embeddings[tokenizer(",", add_special_tokens=False)["input_ids"][0]]
        with torch.no_grad():
            book.values.copy_(torch.stack(rows))
            book.workspace.copy_(comma.expand_as(book.workspace))
            book.slots[len(facts.FACTS) :] = comma
        return book

    @classmethod
    def load(cls, file: Path) -> Codebook:
        """A trained codebook, frozen."""
        book = cls()
        book.load_state_dict(torch.load(file, weights_only=True))
        return book.requires_grad_(False)

    def fact_tokens(self, values: Tensor) -> Tensor:
        """The last sixteen visual tokens, float32 [N, 16, 576]."""
        words = self.values[values.clamp(min=0) + self.starts]
        words = torch.cat([words, words.new_zeros(len(words), facts.FACT_TOKENS - len(facts.FACTS), HIDDEN)], dim=1)
        return words + self.slots

    def forward(self, values: Tensor) -> Tensor:
        """All 64 visual tokens, float32 [N, 64, 576]."""
        workspace = self.workspace.expand(len(values), -1, -1)
        return torch.cat([workspace, self.fact_tokens(values)], dim=1)

    def distance(self, tokens: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """How wrong the last tokens [N, 16, 576] are, in variances of the values; how nearly they say other values.

        A fact that is something counts as three that are nothing; one that is IGNORED doesn't count.
        """
        error = (tokens - self.fact_tokens(values)).square().mean(-1) / self.values.var()
        weight = torch.ones_like(error)
        weight[:, : len(facts.FACTS)][values > 0] = 3.0
        weight[:, : len(facts.FACTS)][values == facts.IGNORED] = 0.0
        confusion = tokens.new_zeros(())
        for index, group in enumerate(facts.FACTS):
            start = facts.OFFSETS[group]
            choices = self.values[start : start + len(facts.GROUPS[group])]
            said = tokens[:, index] - self.slots[index]
            # Squared distances, but for what is the same for all choices.
            nearness = 2 * said @ choices.T - choices.square().sum(-1)
            confusion = confusion + F.cross_entropy(nearness, values[:, index], ignore_index=facts.IGNORED)
        return (error * weight).mean(), confusion

    def workspace_error(self, tokens: Tensor) -> Tensor:
        """How wrong the first tokens [N, 48, 576] are, which always say the same."""
        return (tokens - self.workspace).square().mean() / self.values.var()
