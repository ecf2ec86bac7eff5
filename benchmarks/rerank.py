"""A handful of weights fitted on the other pages: where a passage stands, what it is, and what a reader thinks of it.

Where labels are few, a logistic regression over a few numbers per passage is the honest measure of what can be learned
from them: a neural reader has to beat it, or to help it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longspan.data.questions.rows import QuestionRow
from longspan.tasks.questions.document import kept_candidates, stem
from longspan.tasks.questions.options import QuestionOptions

PENALTY = 0.02
WINDOW, STEP = 30, 12
"""Words of the stretch of a passage that holds the most of the question, and how far it moves."""
_WORD = re.compile(r"\w+")

Ranked = tuple[Tensor, list[int], int | None]
"""Features `(C, F)` of the passages, their indices in the row, and the place of the right one among them."""


def features(row: QuestionRow, passages: int, reader: Sequence[float | None] | None = None) -> Ranked:
    """What is known of each of the first passages of a row; `reader` are scores of all passages."""
    every = kept_candidates(row, QuestionOptions(max_candidates=0))
    words = {index: [stem(word) for word in _WORD.findall(row.answer(row.candidates[index].span))] for index in every}
    holders = Counter(word for found in words.values() for word in set(found))
    asked = {stem(word) for word in _WORD.findall(row.question)}
    rarity = {
        word: max(math.log((len(every) + 1) / (holders[word] + 0.5)), 0.0) if holders[word] else 0 for word in asked
    }
    whole = sum(rarity.values()) + 1e-6
    kept = every[:passages]
    table = []
    for place, index in enumerate(kept):
        found, kind = words[index], row.candidates[index].kind
        stretches = [found[start : start + WINDOW] for start in range(0, max(1, len(found)), STEP)]
        values = [
            sum(rarity[word] for word in asked & set(found)) / whole,
            max(sum(rarity[word] for word in asked & set(stretch)) for stretch in stretches) / whole,
            *(float(place == first) for first in range(4)),
            math.log1p(place),
            math.log1p(len(found)),
            float(len(found) < 15),
            *(float(kind == name) for name in ("paragraph", "table", "list")),
        ]
        if reader is not None:
            score = reader[index]
            values.append(-10.0 if score is None else max(score, -10.0))
        table.append(values)
    right = row.annotations[0].candidate
    return torch.tensor(table), kept, kept.index(right) if right in kept else None


def fit(rows: Sequence[Ranked]) -> Callable[[Tensor], Tensor]:
    """Weights that make the right passage likeliest among those of its page, as a function from features to scores."""
    everything = torch.cat([table for table, _, _ in rows])
    mean, spread = everything.mean(0), everything.std(0) + 1e-3
    weights = torch.zeros(everything.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = [
            torch.nn.functional.cross_entropy(((table - mean) / spread @ weights)[None], torch.tensor([right]))
            for table, _, right in rows
            if right is not None
        ]
        loss = torch.stack(losses).mean() + PENALTY * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return lambda table: (table - mean) / spread @ weights.detach()


def leave_out(groups: Sequence[Sequence[Ranked]]) -> list[list[int]]:
    """For every row of every group the passages from the best down, by weights fitted on the other groups."""
    orders = []
    for number, group in enumerate(groups):
        score = fit([row for index, other in enumerate(groups) if index != number for row in other])
        for table, kept, _ in group:
            orders.append([kept[place] for place in score(table).argsort(descending=True).tolist()])
    return orders
