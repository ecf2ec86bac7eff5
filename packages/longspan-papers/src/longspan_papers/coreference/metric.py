"""Agreement of predicted with annotated clusters: MUC, B³, CEAF-φ4, and their mean, the CoNLL score.

With annotated clusters K and predicted clusters R (of a document; all sums run over all documents)::

    MUC      recall = Σ_K (|K| − parts of K) / Σ_K (|K| − 1)                Vilain et al. 1995: links found
    B³       recall = Σ_K Σ_R |K ∩ R|² / |K|  /  Σ_K |K|                    Bagga and Baldwin 1998: per mention
    CEAF-φ4  recall = Σ φ(K, R) over the best matching / number of K        Luo 2005, φ = 2 |K ∩ R| / (|K| + |R|)

The parts of K are its intersections with the predicted clusters; each mention in no predicted cluster is a separate
part. Precision exchanges K and R. As in the scorer of the CoNLL shared tasks (Pradhan et al. 2014), mentions of only
one side are kept as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Clusters = Sequence[Sequence[tuple[int, int]]]

KINDS = ("muc", "b_cubed", "ceaf")
SCORES = ("conll", "mentions", *(f"{kind}{part}" for kind in KINDS for part in ("", "_precision", "_recall")))
"""Names of the scores, all in percent."""


@dataclass
class Ratio:
    """A precision or a recall, accumulated over documents."""

    matched: float = 0.0
    whole: float = 0.0

    def add(self, pair: tuple[float, float]) -> None:
        self.matched += pair[0]
        self.whole += pair[1]

    @property
    def value(self) -> float:
        return self.matched / self.whole if self.whole else 0.0


def coreference_scores(pairs: Iterable[tuple[Clusters, Clusters]], *, singletons: bool = False) -> dict[str, float]:
    """Computes the scores in percent: `conll`, the mean F1 of the three measures, each measure with its precision and
    recall, and `mentions`, the F1 of mention detection.

    Args:
        pairs: per document the annotated and the predicted clusters.
        singletons: False drops clusters of one mention on both sides, as in CoNLL-2012.
    """
    measures = {"muc": muc, "b_cubed": b_cubed, "ceaf": ceaf, "mentions": shared_mentions}
    sums = {name: (Ratio(), Ratio()) for name in measures}
    for pair in pairs:
        gold, predicted = (_sets(clusters, 1 if singletons else 2) for clusters in pair)
        for name, measure in measures.items():
            sums[name][0].add(measure(predicted, gold))
            sums[name][1].add(measure(gold, predicted))
    values = {name: (precision.value, recall.value) for name, (precision, recall) in sums.items()}
    scores = {"conll": sum(100 * f1(*values[kind]) for kind in KINDS) / 3, "mentions": 100 * f1(*values["mentions"])}
    for kind in KINDS:
        precision, recall = values[kind]
        scores[kind] = 100 * f1(precision, recall)
        scores[f"{kind}_precision"], scores[f"{kind}_recall"] = 100 * precision, 100 * recall
    return scores


def f1(precision: float, recall: float) -> float:
    """Returns the harmonic mean of precision and recall; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _sets(clusters: Clusters, smallest: int) -> list[frozenset[tuple[int, int]]]:
    sets = [frozenset((start, end) for start, end in cluster) for cluster in clusters]
    return [cluster for cluster in sets if len(cluster) >= smallest]


def muc(gold: Sequence[frozenset], predicted: Sequence[frozenset]) -> tuple[float, float]:
    """Returns the numbers of found links and of all links: the recall of MUC."""
    owner = _owners(predicted)
    links = 0
    for cluster in gold:
        known = [owner[mention] for mention in cluster if mention in owner]
        links += len(cluster) - len(set(known)) - (len(cluster) - len(known))
    return links, sum(len(cluster) - 1 for cluster in gold)


def b_cubed(gold: Sequence[frozenset], predicted: Sequence[frozenset]) -> tuple[float, float]:
    """Returns the sum over mentions of the share of their cluster found with them, and the number of mentions."""
    owner = _owners(predicted)
    total = 0.0
    for cluster in gold:
        shared = Counter(owner[mention] for mention in cluster if mention in owner)
        total += sum(count**2 for count in shared.values()) / len(cluster)
    return total, sum(map(len, gold))


def ceaf(gold: Sequence[frozenset], predicted: Sequence[frozenset]) -> tuple[float, float]:
    """Returns the similarity φ4 of the best matching of clusters, and the number of clusters."""
    likeness = np.array(
        [
            [
                2 * len(gold_cluster & predicted_cluster) / (len(gold_cluster) + len(predicted_cluster))
                for predicted_cluster in predicted
            ]
            for gold_cluster in gold
        ],
        np.float64,
    ).reshape(len(gold), len(predicted))
    return float(sum(likeness[pair] for pair in best_assignment(likeness))), len(gold)


def shared_mentions(gold: Sequence[frozenset], predicted: Sequence[frozenset]) -> tuple[float, float]:
    """Returns the number of mentions found, and of all mentions."""
    known = {mention for cluster in predicted for mention in cluster}
    mentions = {mention for cluster in gold for mention in cluster}
    return len(mentions & known), len(mentions)


def _owners(clusters: Sequence[frozenset]) -> dict[tuple[int, int], int]:
    """Maps each mention to its cluster, to the last one if it is in two."""
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def best_assignment(values: np.ndarray) -> list[tuple[int, int]]:
    """Returns pairs `(row, column)`, each row and column at most once, with the maximum sum of values.

    Rows are added one by one, each by an augmenting path of least cost to a free column, where the costs are reduced by
    row and column prices that keep all of them ≥ 0 (Kuhn 1955; Jonker and Volgenant 1987). O(R² C).

    Args:
        values: `(R, C)`, finite.

    Returns:
        min(R, C) pairs, by rows.
    """
    rows, columns = values.shape
    if rows > columns:
        return sorted((row, column) for column, row in best_assignment(values.T))
    costs = -values.astype(np.float64)
    row_prices, prices = np.zeros(rows), np.zeros(columns)
    taken = np.full(columns, -1)  # the row of each column
    for row in range(rows):
        distance, before = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, bool)
        current, reached, column = row, 0.0, -1
        visited = [(row, 0.0)]
        while True:
            reduced = reached + costs[current] - row_prices[current] - prices
            better = ~done & (reduced < distance)
            distance[better], before[better] = reduced[better], column
            column = int(np.where(done, np.inf, distance).argmin())
            reached = float(distance[column])
            done[column] = True
            if taken[column] < 0:
                break
            current = int(taken[column])
            visited.append((current, reached))
        for visited_row, at in visited:
            row_prices[visited_row] += reached - at
        prices[done] += distance[done] - reached
        while column >= 0:
            previous = int(before[column])
            taken[column] = row if previous < 0 else taken[previous]
            column = previous
    return sorted((int(row), column) for column, row in enumerate(taken) if row >= 0)
