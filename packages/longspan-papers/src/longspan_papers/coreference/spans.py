"""Word states from token states, and vectors and scores of spans: the building blocks of span ranking."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention.base import projected
from longspan.models.heads.sentence_network import mean_by_sentence

WORDS_AT_ONCE = 256
"""Number of start words whose candidate spans are scored together, which bounds memory."""


@dataclass
class Words:
    """The words of B documents, up to N.

    Attributes:
        states: `(B, N, E)`, mean of the states of each word's tokens.
        exists: `(B, N)` bool.
        sentences: `(B, N)` int64 index of each word's sentence, −1 = none.
        speakers: `(B, N)` int64 index of its speaker, −1 = unknown.
    """

    states: Tensor
    exists: Tensor
    sentences: Tensor
    speakers: Tensor


def words_of(hidden: Tensor, word_ids: Tensor, count: int, sentence_ids: Tensor, speaker_ids: Tensor | None) -> Words:
    """Pools tokens into words: `hidden` `(B, T, E)`, all ids `(B, T)` int64 with −1 = none, `count` N."""
    states, exists = mean_by_sentence(hidden, word_ids, count)
    places = torch.where(word_ids < 0, count, word_ids)

    def largest(ids: Tensor) -> Tensor:
        """Returns per word the id of its tokens, which all have the same."""
        start = ids.new_full((ids.shape[0], count + 1), -1)
        return start.scatter_reduce(1, places, ids, "amax")[:, :count]

    unknown = word_ids.new_full((word_ids.shape[0], count), -1)
    speakers = unknown if speaker_ids is None else largest(speaker_ids)
    return Words(states, exists, largest(sentence_ids), speakers)


class FeedForward(nn.Module):
    """Feed-forward network with `layers` hidden layers, ReLU and dropout, and a scalar output: `(…, width)` → `(…)`."""

    def __init__(self, width: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.output = nn.Linear(widths[-1], 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.hidden:
            inputs = self.dropout(projected(layer, inputs).relu())
        return projected(self.output, inputs).squeeze(-1)


class Spans(nn.Module):
    """Vectors of spans, `g = [h_start; h_end; Σ_t α_t h_t; φ(width)]` with α = softmax of `w · h_t` over the span.

    Spans have up to L words; φ is a learned embedding of F values per span width (Lee et al. 2017).
    """

    def __init__(self, states_width: int, longest: int, features: int) -> None:
        super().__init__()
        self.longest = longest
        self.attention = nn.Linear(states_width, 1)
        self.widths = nn.Embedding(longest, features)
        self.width = 3 * states_width + features
        """Width of g."""

    def forward(self, words: Words, starts: Tensor, lengths: Tensor) -> Tensor:
        """Computes `(B, K, width)` of the spans with first words `starts` `(B, K)` and `lengths + 1` words `(B, K)`."""
        steps = torch.arange(self.longest, device=starts.device)
        inside = steps <= lengths[..., None]
        places = (starts[..., None] + steps).clamp(max=words.states.shape[1] - 1)
        window = gather(words.states, places)
        scores = projected(self.attention, window).squeeze(-1)
        return self._vectors(window, scores, inside, gather(words.states, starts + lengths), lengths)

    def all_from(self, words: Words, first: int, count: int) -> Tensor:
        """Computes `(B, count, L, width)` of every span that begins at the words `first … first + count − 1`.

        Spans that extend past the last word are included with arbitrary values.
        """
        states = words.states[:, first : first + count + self.longest - 1]
        missing = count + self.longest - 1 - states.shape[1]
        states = functional.pad(states, (0, 0, 0, missing))
        window = states.unfold(1, self.longest, 1).transpose(-1, -2)
        scores = projected(self.attention, states).squeeze(-1).unfold(1, self.longest, 1)
        steps = torch.arange(self.longest, device=states.device)
        inside = steps <= steps[:, None]
        weights = scores[:, :, None].masked_fill(~inside, float("-inf")).softmax(-1)
        rows = states.shape[0]
        widths = self.widths.weight.expand(rows, count, -1, -1)
        starts = window[:, :, :1].expand_as(window)
        return torch.cat([starts, window, weights.to(window.dtype) @ window, widths.to(window.dtype)], -1)

    def _vectors(self, window: Tensor, scores: Tensor, inside: Tensor, ends: Tensor, lengths: Tensor) -> Tensor:
        weights = scores.masked_fill(~inside, float("-inf")).softmax(-1).to(window.dtype)
        mean = (weights[..., None, :] @ window).squeeze(-2)
        return torch.cat([window[..., 0, :], ends, mean, self.widths(lengths).to(window.dtype)], -1)


def gather(values: Tensor, places: Tensor) -> Tensor:
    """Gathers `(B, N, …)` at `places` `(B, …)` → `(B, …, …)`."""
    rows = torch.arange(values.shape[0], device=values.device).view(-1, *[1] * (places.ndim - 1))
    return values[rows, places]


def possible(words: Words, longest: int) -> Tensor:
    """Returns `(B, N, L)` bool: whether the span of k + 1 words from word n exists and lies in one sentence."""
    count = words.exists.shape[1]
    steps = torch.arange(longest, device=words.exists.device)
    ends = torch.arange(count, device=words.exists.device)[:, None] + steps
    last = ends.clamp(max=count - 1)
    same = words.sentences[:, last] == words.sentences[..., None]
    known = words.exists[..., None] & words.exists[:, last] & (words.sentences >= 0)[..., None]
    return same & known & (ends < count)


def without_crossing(scores: Tensor, want: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Selects the best candidates of which no two cross: `(B, most)` flat indices, and which of them are valid.

    Candidates are taken by descending score unless they cross one already taken (Lee et al. 2017). Per word it suffices
    to store the last end of a selected span that starts there, and the first start of one that ends there.

    Args:
        scores: `(B, N, L)`, `-inf` where there is no span.
        want: `(B,)` number of candidates to select.
        most: K.
    """
    rows, count, longest = scores.shape
    places = torch.zeros(rows, most, dtype=torch.long)
    valid = torch.zeros(rows, most, dtype=torch.bool)
    order = scores.flatten(1).argsort(dim=1, descending=True, stable=True).cpu()
    usable = scores.isfinite().flatten(1).sum(1).tolist()
    for row in range(rows):
        last, first = [-1] * count, [count] * count
        taken = 0
        for index in order[row, : usable[row]].tolist():
            if taken >= int(want[row]):
                break
            start, end = index // longest, index // longest + index % longest
            inner = any(last[place] > end for place in range(start + 1, end + 1))
            if inner or any(first[place] < start for place in range(start, end)):
                continue
            last[start], first[end] = max(last[start], end), min(first[end], start)
            places[row, taken], valid[row, taken] = index, True
            taken += 1
    return places.to(scores.device), valid.to(scores.device)
