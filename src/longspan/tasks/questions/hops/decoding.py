"""From a model's logits over a question and its paragraphs to an answer, its evidence, and what a second stage reads.

- **Paragraphs**: the two with the highest relevance, of equal ones the earlier (the paper says that evidence comes from
  exactly two, not which; this is our rule).
- **Evidence**: their sentences whose logit is above 0, and of each at least the best one.
- **Answer**: yes or no where that is the likeliest type; else the span of the two paragraphs with the highest `s_i +
  e_j`, inside one sentence or title, read from the original text.
- **Second stage**: at most five paragraphs, the best, whose relevance is above −3, as in the paper, which names no
  least number; or else so many at least, whatever their relevance; in the order of the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.data.questions.hop_rows import Fact, HopRow, Occurrence
from longspan.models.heads.multi_hop import NO, WORDS, YES
from longspan.tasks.questions.answering import best_spans

PARAGRAPHS = 2
"""Evidence comes from so many."""


@dataclass(frozen=True, kw_only=True)
class HopAnswer:
    """What a model answers to a row.

    Attributes:
        answer: words of the row, "yes" or "no"; empty where the model saw no words.
        facts: the sentences that it rests on.
        relevance: of each paragraph, before the sigmoid; -inf for those that were cut off.
        place: where the words stand; None for yes and no.
    """

    answer: str
    facts: tuple[Fact, ...]
    relevance: tuple[float, ...]
    place: Occurrence | None = None


def best_paragraphs(relevance: Sequence[float], count: int) -> list[int]:
    """The `count` most relevant of those that the model saw, best first."""
    seen = [number for number, value in enumerate(relevance) if value > float("-inf")]
    return sorted(seen, key=lambda number: (-relevance[number], number))[:count]


def kept_paragraphs(relevance: Sequence[float], *, most: int, threshold: float, least: int = PARAGRAPHS) -> list[int]:
    """The paragraphs that a second stage reads, in their order: of the `most` best those above the threshold, and the
    `least` best in any case."""
    best = best_paragraphs(relevance, most)
    return sorted(number for place, number in enumerate(best) if place < least or relevance[number] > threshold)


def reduced(row: HopRow, answer: HopAnswer, *, most: int, threshold: float, least: int = PARAGRAPHS) -> HopRow:
    """The row with those paragraphs only, maybe none; what annotators said of it stays as it is."""
    kept = kept_paragraphs(answer.relevance, most=most, threshold=threshold, least=least)
    return replace(row, paragraphs=tuple(row.paragraphs[number] for number in kept))


def decode(
    output: Any, features: Sequence[Mapping[str, Any]], rows: Sequence[HopRow], max_answer_tokens: int
) -> list[HopAnswer]:
    """The answers of a batch.

    Args:
        output: of `LongspanForMultiHop`.
        features: of each row, see `hop_features`.
        rows: what the features were made of.
        max_answer_tokens: the longest answer.
    """
    relevance, evidence, start, end = (
        logits.float().cpu()
        for logits in (output.relevance_logits, output.evidence_logits, output.start_logits, output.end_logits)
    )
    kinds = output.type_logits.argmax(-1).tolist()
    scores = [_by_paragraph(values, one, row) for values, one, row in zip(relevance, features, rows, strict=True)]
    chosen = [best_paragraphs(values, PARAGRAPHS) for values in scores]
    places = _spans(start, end, features, chosen, max_answer_tokens)
    found = []
    for index, row in enumerate(rows):
        place = places[index] if kinds[index] == WORDS else None
        said = {YES: "yes", NO: "no"}.get(kinds[index], "" if place is None else row.text(place))
        facts = _facts(evidence[index], features[index], chosen[index], row)
        found.append(HopAnswer(answer=said, facts=facts, relevance=scores[index], place=place))
    return found


def _by_paragraph(values: Tensor, features: Mapping[str, Any], row: HopRow) -> tuple[float, ...]:
    found = [float("-inf")] * len(row.paragraphs)
    for token, number in features["titles"]:
        found[number] = float(values[token])
    return tuple(found)


def _facts(values: Tensor, features: Mapping[str, Any], chosen: Sequence[int], row: HopRow) -> tuple[Fact, ...]:
    """Sentences of the chosen paragraphs, in the order of these."""
    facts: list[Fact] = []
    for number in chosen:
        scores = {index: float(values[token]) for token, owner, index in features["marks"] if owner == number}
        if scores:
            best = max(scores, key=lambda index: (scores[index], -index))
            facts += [(row.paragraphs[number].title, i) for i, score in scores.items() if score > 0 or i == best]
    return tuple(facts)


def _spans(
    start: Tensor, end: Tensor, features: Sequence[Mapping[str, Any]], chosen: Sequence[Sequence[int]], longest: int
) -> list[Occurrence | None]:
    """The best words of the chosen paragraphs of each row; None where the model saw none of them."""
    parts = torch.full(start.shape, -1)
    for row, (one, numbers) in enumerate(zip(features, chosen, strict=True)):
        usable = [part if part >= 0 and one["owners"][part][0] in numbers else -1 for part in one["parts"]]
        parts[row, : len(usable)] = torch.tensor(usable)
    most = max(1, int(parts.max()) + 1)
    scores, first, last = best_spans(start, end, parts, most, longest)
    found: list[Occurrence | None] = []
    for row, one in enumerate(features):
        part = int(scores[row].argmax())
        if scores[row, part] == float("-inf"):
            found.append(None)
            continue
        (paragraph, sentence), places = one["owners"][part], (int(first[row, part]), int(last[row, part]))
        found.append(Occurrence(paragraph, sentence, one["spans"][places[0]][0], one["spans"][places[1]][1]))
    return found
