"""Coarse-to-fine span ranking (Lee et al. 2017, 2018) in plain PyTorch: mention detection and antecedent scores.

Of all spans of up to L words within a sentence, the λ · N best are kept as mentions, in text order. Mention i is
compared with the mentions j before it::

    m_i = FFNN(g_i)                                             mention score
    c_ij = m_i + m_j + g_iᵀ W g_j / √D + prior(distance)        coarse: the A best are kept
    s_ij = c_ij + FFNN([g_i; g_j; g_i ∘ g_j; φ(distance); φ(same speaker)])
    P(j | i) = softmax over those j and "none", whose score is 0

The division by √D, D the width of g, is not in the paper: without it the products dominate until training has shrunk W.

Memory: candidates are scored in chunks without keeping activations; activations exist only for the K = λ · N kept
mentions, and pairs are scored in chunks that are recomputed in the backward pass. Memory grows with K · A and N.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attention.base import projected
from longspan_papers.coreference import CoreferenceHead
from longspan_papers.coreference.spans import (
    WORDS_AT_ONCE,
    FeedForward,
    Spans,
    Words,
    gather,
    possible,
    without_crossing,
)

MENTIONS_AT_ONCE = 128
DISTANCES = 10
"""Number of buckets of the distance in mentions: 0, 1, 2, 3, 4, 5–7, 8–15, 16–31, 32–63, more."""


class Mentions(NamedTuple):
    """The K best spans of each document, in text order, padded at the end.

    Attributes:
        starts: `(B, K)` int64 first words.
        lengths: `(B, K)` int64 words after the first.
        valid: `(B, K)` bool, False for padding.
    """

    starts: Tensor
    lengths: Tensor
    valid: Tensor


class Ranked(NamedTuple):
    """Mentions and their likely antecedents.

    Attributes:
        mentions: the spans.
        scores: `(B, K)`, m.
        antecedents: `(B, K, A)` int64 indices j < i, −1 = none, by descending coarse score.
        pair_scores: `(B, K, A + 1)`: 0 for no antecedent, then s of each; `-inf` for padding.
    """

    mentions: Mentions
    scores: Tensor
    antecedents: Tensor
    pair_scores: Tensor


class PairScorer(nn.Module):
    """Computes the fine score of pairs: a feed-forward network on `[g_i; g_j; g_i ∘ g_j; φ]`.

    Its first layer is a sum of four terms, so that the terms of i and j are computed once per mention, not per pair.
    """

    def __init__(self, width: int, options: CoreferenceHead) -> None:
        super().__init__()
        hidden = options.hidden_width
        self.left = nn.Linear(width, hidden)
        self.right = nn.Linear(width, hidden, bias=False)
        self.both = nn.Linear(width, hidden, bias=False)
        self.distance = nn.Embedding(DISTANCES, options.feature_width)
        self.speaker = nn.Embedding(3, options.feature_width)
        self.features = nn.Linear(2 * options.feature_width, hidden, bias=False)
        self.dropout = nn.Dropout(options.dropout)
        self.rest = FeedForward(hidden, hidden, options.hidden_layers - 1, options.dropout)

    def forward(self, mention: Tensor, antecedents: Tensor, right: Tensor, distance: Tensor, speaker: Tensor) -> Tensor:
        """Computes `(B, C, A)` scores of mentions `left` `(B, C, D)` with `antecedents` `(B, C, A, D)`.

        `right` is `self.right` of the antecedents; `distance` and `speaker` are buckets `(B, C, A)`.
        """
        features = torch.cat([self.distance(distance), self.speaker(speaker)], -1)
        hidden = (
            projected(self.left, mention)[:, :, None]
            + right
            + projected(self.both, mention[:, :, None] * antecedents)
            + projected(self.features, features)
        )
        return self.rest(self.dropout(hidden.relu()))


class RanksSpans(nn.Module):
    """Layers of a coreference model above its encoder."""

    model: Any

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder."""
        options = self.spans_of = config.head_options(CoreferenceHead)
        self.spans = Spans(config.states_width, options.span_width, options.feature_width)
        width = self.spans.width
        self.span_dropout = nn.Dropout(options.dropout)
        self.mention_scorer = FeedForward(width, options.hidden_width, options.hidden_layers, options.dropout)
        self.coarse = nn.Linear(width, width, bias=False)
        self.prior = nn.Embedding(DISTANCES, 1)
        self.pair_scorer = PairScorer(width, options)
        self.gate = nn.Linear(2 * width, width) if options.refinements else None

    def rank(self, words: Words) -> Ranked:
        """Returns the mentions of documents and the scores of their antecedents."""
        mentions = self.keep(words)
        vectors, scores = self.score_spans(words, mentions.starts, mentions.lengths)
        scores = scores.masked_fill(~mentions.valid, float("-inf"))
        speakers = gather(words.speakers, mentions.starts)
        chosen, pairs = self.pair(vectors, scores, mentions.valid, speakers)
        for _ in range(self.spans_of.refinements):
            vectors = self.refined(vectors, chosen, pairs)
            chosen, pairs = self.pair(vectors, scores, mentions.valid, speakers)
        return Ranked(mentions, scores, chosen, pairs)

    def score_spans(self, words: Words, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns vectors `(B, K, D)` and mention scores `(B, K)` of spans."""
        vectors = self.span_dropout(self.spans(words, starts, lengths))
        return vectors, self.mention_scorer(vectors).float()

    @torch.no_grad()
    def keep(self, words: Words) -> Mentions:
        """Returns the best spans by mention score, without dropout: at most λ · n of n words, rounded up."""
        options, count = self.spans_of, words.exists.shape[1]
        scores = self.candidate_scores(words)
        most = min(-int(-count * options.spans_per_word // 1), count * options.span_width)
        want = (words.exists.sum(1).double() * options.spans_per_word).ceil().long()
        if options.crossing:
            top = scores.flatten(1).topk(most)
            places = top.indices
            valid = (torch.arange(most, device=places.device) < want[:, None]) & top.values.isfinite()
        else:
            places, valid = without_crossing(scores, want, most)
        places = torch.where(valid, places, count * options.span_width).sort(1).values
        valid = places < count * options.span_width
        places = places.masked_fill(~valid, 0)
        return Mentions(places // options.span_width, places % options.span_width, valid)

    def candidate_scores(self, words: Words) -> Tensor:
        """Computes `(B, N, L)` mention scores of all spans, `-inf` for spans that do not exist."""
        training = self.mention_scorer.training
        self.mention_scorer.train(False)
        pieces = []
        for first in range(0, words.states.shape[1], WORDS_AT_ONCE):
            vectors = self.spans.all_from(words, first, min(WORDS_AT_ONCE, words.states.shape[1] - first))
            pieces.append(self.mention_scorer(vectors).float())
        self.mention_scorer.train(training)
        return torch.cat(pieces, 1).masked_fill(~possible(words, self.spans.longest), float("-inf"))

    def pair(self, vectors: Tensor, scores: Tensor, valid: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
        """Returns antecedents `(B, K, A)` and scores `(B, K, A + 1)`, computed in chunks; arguments `(B, K, …)`."""
        count = vectors.shape[1]
        columns = (
            vectors,
            projected(self.coarse, vectors) / vectors.shape[-1] ** 0.5,
            projected(self.pair_scorer.right, vectors),
            scores,
            valid,
            speakers,
        )
        chosen, pairs = [], []
        for first in range(0, max(count, 1), MENTIONS_AT_ONCE):
            some = slice(first, min(first + MENTIONS_AT_ONCE, count))
            indices, there = self.best_coarse(columns, some)
            if count > MENTIONS_AT_ONCE and torch.is_grad_enabled():
                result: Any = checkpoint(self.pair_scores, columns, some, indices, there, use_reentrant=False)
            else:
                result = self.pair_scores(columns, some, indices, there)
            chosen.append(torch.where(there, indices, -1))
            pairs.append(result)
        return torch.cat(chosen, 1), torch.cat(pairs, 1)

    @torch.no_grad()
    def best_coarse(self, columns: tuple[Tensor, ...], some: slice) -> tuple[Tensor, Tensor]:
        """Returns `(B, C, A)` the antecedents with the best coarse scores for a slice of C mentions, and which
        exist."""
        vectors, coarse, _, scores, valid, _ = columns
        places = torch.arange(vectors.shape[1], device=vectors.device)
        distance = places[some, None] - places
        likely = (coarse[:, some] @ vectors.transpose(1, 2)).float() + scores[:, None]
        likely = likely + self.prior(bucket(distance)).squeeze(-1)
        usable = (distance > 0) & valid[:, None] & valid[:, some, None]
        likely = likely.masked_fill(~usable, float("-inf"))
        most = min(self.spans_of.antecedents, vectors.shape[1] - 1)
        indices = likely.topk(max(most, 0), -1).indices
        return indices, usable.gather(2, indices)

    def pair_scores(self, columns: tuple[Tensor, ...], some: slice, indices: Tensor, there: Tensor) -> Tensor:
        """Computes `(B, C, A + 1)` scores of a slice of mentions: 0 for no antecedent, then those of `indices`."""
        vectors, coarse, right, scores, _, speakers = columns
        antecedents = gather(vectors, indices)
        places = torch.arange(vectors.shape[1], device=vectors.device)
        distance = bucket(places[some, None] - indices)
        speaker_i, speaker_j = speakers[:, some, None], gather(speakers, indices)
        speaker = torch.where((speaker_i < 0) | (speaker_j < 0), 0, torch.where(speaker_i == speaker_j, 1, 2))
        product = (coarse[:, some, None] * antecedents).sum(-1)
        fine = self.pair_scorer(vectors[:, some], antecedents, gather(right, indices), distance, speaker)
        mention = scores[:, some, None] + gather(scores, indices)
        summed = (product + fine).float() + self.prior(distance).squeeze(-1) + mention
        summed = summed.masked_fill(~there, float("-inf"))
        return torch.cat([torch.zeros_like(scores[:, some, None]), summed], -1)

    def refined(self, vectors: Tensor, chosen: Tensor, pairs: Tensor) -> Tensor:
        """Updates span vectors from their antecedents: `f ∘ g + (1 − f) ∘ Σ_j P(j) g_j`, where "none" represents g
        itself."""
        assert self.gate is not None
        weights = pairs.softmax(-1).to(vectors.dtype)
        pieces = []
        for first in range(0, max(vectors.shape[1], 1), MENTIONS_AT_ONCE):
            some = slice(first, first + MENTIONS_AT_ONCE)
            antecedent_vectors = gather(vectors, chosen[:, some].clamp(min=0))
            antecedents = (weights[:, some, None, 1:] @ antecedent_vectors).squeeze(2)
            pieces.append(antecedents + weights[:, some, :1] * vectors[:, some])
        expected = torch.cat(pieces, 1)
        share = projected(self.gate, torch.cat([vectors, expected], -1)).sigmoid()
        return share * vectors + (1 - share) * expected


def bucket(distance: Tensor) -> Tensor:
    """Returns the buckets of distances in mentions: one each up to 4, then by powers of two."""
    logarithm = distance.clamp(min=1).float().log2().floor().long() + 3
    return torch.where(distance <= 4, distance.clamp(min=0), logarithm).clamp(max=DISTANCES - 1)
