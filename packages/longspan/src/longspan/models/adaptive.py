"""Adaptive embeddings and softmax for large vocabularies (Grave et al. 2017, arXiv 1609.04309).

Words are numbered by frequency, and `cutoffs` split the numbers into clusters. The head predicts a word of the
first cluster, the shortlist, or one of the other clusters, and then the word within it: `log p(word) = log
p(cluster) + log p(word | cluster)`. In the form of Transformer-XL (Dai et al. 2019, arXiv 1901.02860), the
embeddings of cluster i are F / divisorⁱ wide and projected to the model's width E, and the output layer can share
both the embeddings and the projections.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.losses import IGNORED, check_labels
from longspan.ops.half_linear import linear

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields

PROJECTION_STD = 0.01
"""Standard deviation of the initial projections, as in the authors' code."""


def borders(config: ModelFields) -> list[int]:
    """Returns the first word of each cluster, and the number of words."""
    assert config.cutoffs is not None
    return [0, *config.cutoffs, config.vocab_size]


def widths(config: ModelFields) -> list[int]:
    """Returns the width of each cluster's embeddings."""
    assert config.embedding_size is not None
    return [config.embedding_size // config.embedding_divisor**cluster for cluster in range(len(borders(config)) - 1)]


def _tables(config: ModelFields) -> list[tuple[int, int]]:
    """Returns (words, width) of each table: one per cluster, or one for all if they are equally wide."""
    if config.embedding_divisor == 1:
        return [(config.vocab_size, widths(config)[0])]
    counts = [stop - start for start, stop in pairwise(borders(config))]
    return list(zip(counts, widths(config), strict=True))


def _has_projections(config: ModelFields, width: int) -> bool:
    """Whether embeddings are projected to that width: always for several clusters, as published."""
    return config.embedding_divisor > 1 or config.embedding_size != width


class ReadWeights(nn.Linear):
    """A projection whose weights are accessed directly (by rows, transposed or shared). It has a type of its own, since
    PyTorch's quantisation would replace an `nn.Linear` by a layer without such weights.
    """


class Projections(nn.ModuleList):
    """Matrices `(E, F)` from the embeddings' widths to the model's."""

    def __init__(self, widths: list[int], width: int) -> None:
        super().__init__(ReadWeights(part, width, bias=False) for part in widths)

    @torch.no_grad()
    def init_matrices(self) -> None:
        """Initialises what was not loaded from a file."""
        for matrix in self:
            nn.init.normal_(matrix.weight, std=PROJECTION_STD)  # pyright: ignore[reportArgumentType]


class AdaptiveEmbedding(nn.Module):
    """The token embeddings of a model with `cutoffs`."""

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.borders = borders(config)
        self.num_embeddings, self.embedding_dim = config.vocab_size, config.hidden_size
        tables, width = _tables(config), config.hidden_size
        self.tables = nn.ModuleList(nn.Embedding(*sizes) for sizes in tables)
        projected = [size for _, size in tables] if _has_projections(config, width) else []
        self.projections = Projections(projected, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps ids `(…)` int64 to vectors `(…, E)`, with the table of each cluster and its projection."""
        if len(self.tables) == 1:
            return self._project(0, self.tables[0](ids))
        flat = ids.flatten()
        parts, places = [], []
        last = len(self.tables) - 1
        for cluster, (start, stop) in enumerate(pairwise(self.borders)):
            # The first and last table also get ids out of range, for which they raise, as any table does.
            rows = (((flat >= start) | (cluster == 0)) & ((flat < stop) | (cluster == last))).nonzero().squeeze(1)
            parts.append(self._project(cluster, self.tables[cluster](flat[rows] - start)))
            places.append(rows)
        # Every cluster is used, even without a word, so that all weights have a gradient in every process.
        hidden = torch.cat(parts)
        return torch.empty_like(hidden).index_copy(0, torch.cat(places), hidden).view(*ids.shape, -1)

    def _project(self, cluster: int, embedded: Tensor) -> Tensor:
        return projected(self.projections[cluster], embedded) if len(self.projections) else embedded


class AdaptiveHead(nn.Module):
    """The language-model head of a model with `cutoffs`; its `forward` returns log-probabilities of all words.

    Args:
        config: `cutoffs`, `embedding_size` and `embedding_divisor` define the clusters.
        width: width of the states.
    """

    def __init__(self, config: ModelFields, width: int) -> None:
        super().__init__()
        self.borders, self.shortlist = borders(config), borders(config)[1]
        self.words = nn.ModuleList(ReadWeights(size, count) for count, size in _tables(config))
        self.projections = Projections(widths(config) if _has_projections(config, width) else [], width)
        tails = len(self.borders) - 2
        self.clusters = ReadWeights(widths(config)[0], tails) if tails else None

    @property
    def weight(self) -> Tensor:
        """The weights `(words, F)` of the shortlist, for their dtype and device."""
        return self.words[0].weight  # pyright: ignore[reportReturnType]

    def forward(self, states: Tensor) -> Tensor:
        """Maps `(…, E)` to `(…, V)` log-probabilities, for generation; the loss does not need them."""
        head = self._head(states)
        parts = [head[..., : self.shortlist]]
        for cluster in range(1, len(self.borders) - 1):
            parts.append(self._cluster(head, cluster)[..., None] + self._tail(cluster, states))
        return torch.cat(parts, dim=-1)

    def nats(self, states: Tensor, words: Tensor) -> Tensor:
        """Returns `−log p` `(N,)` of words `(N,)` after states `(N, E)`; each tail is computed only for its words."""
        head, predicted = self._head(states), []
        for cluster, rows in self._rows(words):
            ids = (words[rows] - self.borders[cluster])[:, None]
            if cluster == 0:
                predicted.append((rows, head[rows].gather(1, ids)[:, 0]))
                continue
            within = self._tail(cluster, states[rows]).gather(1, ids)[:, 0]
            predicted.append((rows, self._cluster(head[rows], cluster) + within))
        rows, values = (torch.cat(parts) for parts in zip(*predicted, strict=True))
        return -torch.zeros_like(values).index_copy(0, rows, values)

    def loss(self, states: Tensor, labels: Tensor, count: Tensor | int | None = None) -> Tensor:
        """Returns the mean cross-entropy of `(B, T)` labels, −100 for none, after states `(B, T, E)`; `count`
        is the divisor.
        """
        check_labels(labels, states.shape[:-1])
        real = labels != IGNORED
        words = labels[real]
        if words.numel() and not 0 <= int(words.min()) <= int(words.max()) < self.borders[-1]:
            raise InputError(f"labels has words outside of the vocabulary of {self.borders[-1]}; correct them")
        total = self.nats(states[real], words).sum()
        return total / (real.sum().clamp(min=1) if count is None else count)

    def best(self, states: Tensor) -> Tensor:
        """Returns the most likely word `(N,)` after states `(N, E)`; a tail is computed only if it can contain it."""
        head = self._head(states)
        value, word = head[:, : self.shortlist].max(-1)
        for cluster in range(1, len(self.borders) - 1):
            rows = (self._cluster(head, cluster) > value).nonzero().squeeze(1)
            tail, place = self._tail(cluster, states[rows]).max(-1)
            tail = tail + self._cluster(head[rows], cluster)
            wins = tail > value[rows]
            value[rows[wins]], word[rows[wins]] = tail[wins], place[wins] + self.borders[cluster]
        return word

    def _rows(self, words: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yields each cluster and the positions of its words, also without any (see `AdaptiveEmbedding.forward`)."""
        for cluster, (start, stop) in enumerate(pairwise(self.borders)):
            yield cluster, ((words >= start) & (words < stop)).nonzero().squeeze(1)

    def _head(self, states: Tensor) -> Tensor:
        """Maps `(…, E)` to `(…, shortlist + tails)` log-probabilities."""
        weight, bias = self._matrix(0)
        if self.clusters is not None:
            weight, bias = torch.cat([weight, self.clusters.weight]), torch.cat([bias, self.clusters.bias])
        return _log_softmax(linear(self._project(0, states), weight, bias))

    def _tail(self, cluster: int, states: Tensor) -> Tensor:
        """Maps `(…, E)` to `(…, words)` log-probabilities within the cluster."""
        return _log_softmax(linear(self._project(cluster, states), *self._matrix(cluster)))

    def _cluster(self, head: Tensor, cluster: int) -> Tensor:
        """Returns the log-probability `(…)` of the cluster."""
        return head[..., self.shortlist + cluster - 1]

    def _matrix(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Returns weight `(words, F)` and bias of a cluster."""
        if len(self.words) > 1:
            return self.words[cluster].weight, self.words[cluster].bias  # pyright: ignore[reportReturnType]
        start, stop = self.borders[cluster : cluster + 2]
        only = self.words[0]
        return only.weight[start:stop], only.bias[start:stop]  # pyright: ignore[reportIndexIssue]

    def _project(self, cluster: int, states: Tensor) -> Tensor:
        """Projects from the states' width to the cluster's."""
        if not len(self.projections):
            return states
        return states @ self.projections[cluster].weight  # pyright: ignore[reportOperatorIssue]


def tied_weights(config: ModelFields) -> dict[str, str]:
    """Returns weight of the head → the embedding weight that it is tied to."""
    assert config.cutoffs is not None
    head, token = "lm_head", "decoder.embeddings.token"
    tables = len(_tables(config))
    names = {f"{head}.words.{i}.weight": f"{token}.tables.{i}.weight" for i in range(tables)}
    if not _has_projections(config, config.hidden_size):
        return names
    clusters = range(len(config.cutoffs) + 1)
    tied = config.tie_projections
    tied = [tied] * len(clusters) if isinstance(tied, bool) else tied
    for cluster in (cluster for cluster in clusters if tied[cluster]):
        source = cluster if tables > 1 else 0
        names[f"{head}.projections.{cluster}.weight"] = f"{token}.projections.{source}.weight"
    return names


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
