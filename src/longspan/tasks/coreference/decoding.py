"""From antecedents to clusters: each mention joins its best antecedent, if that is better than none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longspan.data.coreference.rows import Cluster, Mention, crossing, in_order


def clusters_of(output: Any, *, singletons: bool) -> list[tuple[Cluster, ...]]:
    """The clusters of each document of a batch.

    Of two mentions of one cluster that cross, only the one with the better score stays: CoNLL's brackets cannot tell
    such mentions apart, and they are never both right.

    Args:
        output: of `LongspanForCoreference`.
        singletons: keep mentions with a score above 0 that nothing joins.
    """
    best = output.antecedent_scores.argmax(-1) - 1
    chosen = output.antecedents.gather(2, best.clamp(min=0)[..., None])[..., 0] if output.antecedents.shape[2] else best
    chosen = chosen.masked_fill(best < 0, -1)
    documents = zip(
        output.mention_starts.tolist(),
        output.mention_ends.tolist(),
        output.mention_scores.tolist(),
        chosen.tolist(),
        strict=True,
    )
    return [_clusters(*document, singletons=singletons) for document in documents]


def _clusters(
    starts: Sequence[int], ends: Sequence[int], scores: Sequence[float], antecedents: Sequence[int], *, singletons: bool
) -> tuple[Cluster, ...]:
    clusters: list[dict[Mention, float]] = []
    owner: dict[int, int] = {}
    for index, (start, end, score, antecedent) in enumerate(zip(starts, ends, scores, antecedents, strict=True)):
        if start < 0:
            break
        owner[index] = owner[antecedent] if antecedent >= 0 else len(clusters)
        if antecedent < 0:
            clusters.append({})
        clusters[owner[index]][start, end] = score
    kept = [without_crossing(cluster) for cluster in clusters]
    return in_order(
        cluster for cluster in kept if len(cluster) > 1 or (singletons and next(iter(cluster.values())) > 0)
    )


def without_crossing(scores: dict[Mention, float]) -> dict[Mention, float]:
    """The mentions of a cluster, less the worse of each two that cross."""
    while (pair := crossing(scores)) is not None:
        worse = min(pair, key=scores.__getitem__)
        scores = {mention: score for mention, score in scores.items() if mention != worse}
    return scores
