"""Scoring sentences as plain PyTorch: means over each sentence's tokens, and a document of any length in pieces."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.models.heads.sentence_layers import SentenceLayers
from longspan.models.heads.specs import SentenceScoring
from longspan.models.segments import sums_by_sentence
from longspan.stacks.block import Block


class Scorer(nn.Module):
    """`output(dropout(activation(dense(x))))`: `(…, E)` → `(…)`."""

    def __init__(self, width: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.dropout(self.activation(self.dense(hidden)))).squeeze(-1)


def checked_ids(
    part: str, ids: Tensor | None, hidden: Tensor, attention_mask: Tensor | None, most: int | None
) -> tuple[Tensor, int]:
    """`(B, T)` index of the sentence, or other part of the document, of each token, −1 on padding; and how many parts.

    Args:
        part: "sentence" or "paragraph", as arguments name it.
        ids: `(B, T)` as given, −1 = none.
        hidden: `(B, T, E)`.
        attention_mask: `(B, T)`, or `None` where all tokens are real.
        most: the number of parts; `None` means the largest index plus one.
    """
    if ids is None:
        raise InputError(f"{part}_ids is missing; give the index of each token's {part}, (B, T), -1 for none")
    if ids.shape != hidden.shape[:2]:
        raise InputError(
            f"{part}_ids has shape {tuple(ids.shape)} but the input is {tuple(hidden.shape[:2])}; give one index per "
            "token"
        )
    ids = ids if attention_mask is None else ids.masked_fill(~attention_mask.bool(), -1)
    if most is not None and torch.compiler.is_compiling():
        return ids, most
    count = int(ids.max()) + 1 if ids.numel() else 0
    if most is not None and count > most:
        raise InputError(f"{part}_ids counts {count} {part}s but max_{part}s={most}, or the width of labels; give more")
    return ids, count if most is None else most


def mean_by_sentence(hidden: Tensor, sentence_ids: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Mean state of each sentence's tokens, in time and memory linear in T and N.

    Args:
        hidden: `(B, T, E)`.
        sentence_ids: `(B, T)` int64 index of each token's sentence, −1 = none.
        sentences: N.

    Returns:
        `(B, N, E)` means, 0 for sentences without tokens; `(B, N)` bool, True where a sentence has tokens.
    """
    sums, counts = sums_and_counts(hidden, sentence_ids, sentences)
    return (sums / counts.clamp(min=1)[..., None]).to(hidden.dtype), counts > 0


def sums_and_counts(hidden: Tensor, sentence_ids: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Sum of each sentence's states, `(B, N, E)` in at least float32, and how many they are, `(B, N)` int64."""
    rows, _, width = hidden.shape
    wide = torch.promote_types(hidden.dtype, torch.float32)
    sums = torch.zeros(rows * (sentences + 1), width, dtype=wide, device=hidden.device)
    sums = sums.index_add(0, _places(sentence_ids, sentences), hidden.flatten(0, 1).to(wide))
    sums = sums.unflatten(0, (rows, sentences + 1))[:, :sentences]
    return sums, tokens_by_sentence(sentence_ids, sentences)


def tokens_by_sentence(sentence_ids: Tensor, sentences: int) -> Tensor:
    """How many tokens each sentence has: `(B, T)` → `(B, N)` int64; arguments as in `mean_by_sentence`."""
    rows = sentence_ids.shape[0]
    place = _places(sentence_ids, sentences)
    counts = place.new_zeros(rows * (sentences + 1)).index_add(0, place, torch.ones_like(place))
    return counts.unflatten(0, (rows, sentences + 1))[:, :sentences]


def _places(sentence_ids: Tensor, sentences: int) -> Tensor:
    """Index of each token's sentence in a flat `(B · (N + 1),)`: a row's last place takes tokens of no sentence."""
    place = torch.where(sentence_ids < 0, sentences, sentence_ids)
    first = torch.arange(sentence_ids.shape[0], device=sentence_ids.device)[:, None] * (sentences + 1)
    return (place + first).flatten()


class ScoresSentences(nn.Module):
    """What every sentence scorer has: an encoder below, blocks over the sentences, and the scorer."""

    block: ClassVar[type[Block]] = Block
    """The class of those over the sentences."""
    model: Any
    sentence_layers: SentenceLayers | None
    scorer: Scorer

    def add_layers(self, config: Any) -> None:
        """Make the layers above the encoder."""
        options = config.head_options(SentenceScoring)
        dropout = config.dropout if options.dropout is None else options.dropout
        self.sentence_layers = SentenceLayers(config, self.block) if options.layers else None
        self.scorer = Scorer(config.states_width, nn.GELU(), dropout)

    def score(self, means: Tensor, counts: Tensor) -> Tensor:
        """`(B, N, E)` means over each sentence's tokens, and how many these are, `(B, N)` → `(B, N)` scores."""
        if self.sentence_layers is not None:
            means = self.sentence_layers(means, counts > 0, counts)
        return self.scorer(means)

    @torch.inference_mode()
    def score_document(self, input_ids: Tensor, sentence_ids: Tensor) -> Tensor:
        """Scores `(N,)` of one document of any length, as `forward` gives them, in the memory of a piece of it.

        Args:
            input_ids: `(T,)` int64, all real.
            sentence_ids: `(T,)` int64, rising from 0 to N − 1; every sentence has a token.
        """
        sums = sums_by_sentence(self.model.encoder, input_ids, sentence_ids)
        counts = tokens_by_sentence(sentence_ids[None], len(sums))
        means = (sums[None] / counts.clamp(min=1)[..., None]).to(self.scorer.dense.weight.dtype)
        return self.score(means, counts)[0]
