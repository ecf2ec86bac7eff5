"""The weights of `longspan answer`, fitted on questions whose passages are known:
`longspan_documents/bundled/answers.json`.

    python tools/bundled/answer_weights.py DATA

makes the whole file: on fewer documents, since they take longer, the weights with the second look, for which every
passage is read again, and those for an encoder of one's own. For these the passage encoder, which is all-MiniLM-L6-v2
(in four bits), stands alone, on the scale to which every encoder is brought. `--features` keeps what the encoders
computed, and `--keep-ranking` fits the probabilities alone.

Ranking: the weights under which a right passage of a document is likeliest, each source counting the same. How sure it
is: logistic regressions on questions whose documents the ranking was not fitted on (four folds): that the document has
an answer, on questions with and without one, which count the same; and, on those with an answer, that a passage, and
one of those shown, is right. `longspan_documents.inference.ranking` multiplies them, for any share of questions with an
answer. Questions without one are asked of another document of the same source, or of their own with another name or
number, or after the passages that answer, and those beside them, were taken out. Each question is asked of a stretch of
its document too, so that short documents are known.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
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
from longspan_documents.inference.sentence_encoder import PAIRS
from longspan_documents.questions.kinds import names_of
from longspan_documents.text.passages import Passage

FOLDS = 4
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
THERE = ("overlap", "names", "near", "apart")
"""The features that tell whether there is an answer; without an encoder the first two."""
FOUND = ("chance", "shared")
"""The features that tell whether it was found; for a passage "behind" too."""


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
    found: Sequence[Case], encoder: Encoder | None, exchanged: int | None = None, second: PassageEncoder | None = None
) -> list[Asked]:
    """Every question of its own document, then, half as often, of the next document of its source; and one in so many
    with a name or number `exchanged`, where that is given. With a `second` encoder every passage is read again, see
    `looked_at`.

    A question that several documents are asked may be answered by the next one too, and is not asked of it.
    """
    asked: list[Asked] = []
    last: dict[str, Case] = {}
    times = Counter(question for case in found for question, _ in case.questions)
    names = {source: names_of_source(found, source) for source in {case.source for case in found}}
    for number, case in enumerate(found):
        index = PassageIndex([case.document], "en", encoder)
        if len(index.passages) < 2:
            continue
        again = second and SecondLook(second, index.texts)
        every = range(len(index.passages))
        foreign = [question for question, _ in last[case.source].questions[::2]] if case.source in last else []
        others = [question for question in foreign if times[question] == 1]
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


def by_one_encoder(one: Asked) -> Asked:
    """The same question as if the second encoder were one's own, which reads every passage."""
    apart, spread = _scale()
    similar = (one.evidence.column(READ) - apart) / spread
    table = np.stack([one.evidence.column("words"), similar, one.evidence.column("names")], 1)
    return replace(one, evidence=Evidence(("words", "passage", "names"), table))


@cache
def _scale() -> tuple[float, float]:
    """The passage encoder's mean cosine of questions and other answers, and what it lacks to that of their own."""
    questions, passages = (passage_encoder().embed(texts) for texts in zip(*PAIRS, strict=True))
    table, own = questions @ passages.T, np.eye(len(PAIRS), dtype=bool)
    return float(table[~own].mean()), float(table[own].mean() - table[~own].mean())


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


@dataclass(frozen=True)
class Judged:
    """A question with the features of its ranking.

    Attributes:
        source: kind of data.
        features: of the shown passages, best first, `(M,)` each.
        right: which of them answer, `(M,)` bool.
        there: whether any passage does.
    """

    source: str
    features: Mapping[str, np.ndarray]
    right: np.ndarray
    there: bool


def judged(one: Asked, weights: Weights) -> Judged:
    """Rank the passages, and take the features of the first ones."""
    scores = weights.scores(one.evidence)
    order = np.argsort(-scores, kind="stable")[:SHOWN]
    features = {name: values[order] for name, values in passage_features(one.evidence, scores).items()}
    return Judged(one.source, features, one.right[order], bool(one.right.any()))


def fit(
    asked: Sequence[Asked], kind: str, first: Weights | None = None, rank: dict[str, float] | None = None
) -> Weights:
    """All weights: of the ranking on every document, of the probabilities on documents that it was not fitted on.

    With the weights `first` the best passages by them are looked at again. Where `rank` is given, it is the ranking.
    """
    names, whole = RANKED[kind], asked
    see = (lambda one: one) if first is None else (lambda one: looked_at(one, first))
    taught = (lambda rows: rows) if first is None else (lambda rows: [*rows, *map(in_other_words, rows[::UNSHARED])])
    asked = [] if rank else [see(one) for one in whole]
    found: list[Judged] = []
    random = np.random.default_rng(0)
    for fold in range(FOLDS):
        known = rank or fit_rank(taught([one for one in asked if one.document % FOLDS != fold]), names)
        judge = Weights(known, {}, {}, {})
        inside = with_variants([one for one in whole if one.document % FOLDS == fold], random)
        found += [judged(see(one), judge) for one in inside]
    fitted = sureness(found, kind)
    return replace(fitted, rank=rank or fit_rank(taught(asked), names))


def with_variants(asked: Sequence[Asked], random: np.random.Generator) -> list[Asked]:
    """The questions, those with an answer after it was taken out, and all of a stretch of their documents."""
    gone = [without_answer(one) for one in asked if one.right.any()]
    return [*asked, *filter(None, gone), *(shorter(one, random) for one in asked)]


def sureness(found: Sequence[Judged], kind: str) -> Weights:
    """The three logistic regressions, without the ranking."""
    there_names = THERE if len(RANKED[kind]) > 1 else THERE[:2]
    heads = [{name: one.features[name][:1] for name in (*THERE, *FOUND)} for one in found]
    there = fit_logistic(heads, there_names, [np.array([one.there]) for one in found], shares_of(found))
    answered = [one for one in found if one.there]
    shares = shares_of(answered)
    heads = [{name: one.features[name][:1] for name in FOUND} for one in answered]
    shown = fit_logistic(heads, FOUND, [np.array([one.right.any()]) for one in answered], shares)
    passage = fit_logistic(
        [one.features for one in answered], ("behind", *FOUND), [one.right for one in answered], shares
    )
    return Weights({}, there, shown, passage)


def shares_of(asked: Sequence[Asked] | Sequence[Judged], answerable: float = 0.5) -> list[float]:
    """How much each question counts: every source the same, and `answerable` of it those with an answer."""
    groups: dict[tuple[str, bool], int] = defaultdict(int)
    for one in asked:
        groups[one.source, has_answer(one)] += 1
    return [(answerable if has_answer(one) else 1 - answerable) / groups[one.source, has_answer(one)] for one in asked]


def has_answer(one: Asked | Judged) -> bool:
    """Whether any passage answers."""
    return one.there if isinstance(one, Judged) else bool(one.right.any())


def save(asked: Sequence[Asked], path: Path) -> None:
    """Write what the encoders computed of questions."""
    np.savez_compressed(
        path,
        sources=[one.source for one in asked],
        documents=[one.document for one in asked],
        counts=[len(one.right) for one in asked],
        names=list(asked[0].evidence.names),
        table=np.concatenate([one.evidence.table for one in asked]).astype(np.float32),
        right=np.concatenate([one.right for one in asked]),
    )


def saved(path: Path) -> list[Asked]:
    """Read what `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        ends, names = np.cumsum(file["counts"])[:-1], tuple(file["names"].tolist())
        tables, rights = np.split(file["table"].astype(np.float64), ends), np.split(file["right"], ends)
        about = zip(file["sources"].tolist(), file["documents"].tolist(), tables, rights, strict=True)
        return [Asked(source, number, Evidence(names, table), right) for source, number, table, right in about]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("--documents", type=int, default=170, help="at most so many of each source")
    parser.add_argument("--again-documents", type=int, default=50, help="the same, whose passages are all read again")
    parser.add_argument("--features", type=Path, help="folder with what the encoders computed; made if it is missing")
    parser.add_argument("--keep-ranking", action="store_true", help="keep the ranking of the output file")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    known = json.loads(options.output.read_text(encoding="utf-8"))["weights"] if options.keep_ranking else {}
    asked = features(options, "asked", options.documents, None)
    again = features(options, "again", options.again_documents, passage_encoder())
    own = list(map(by_one_encoder, again))
    fitted: dict[str, Weights] = {}
    for kind in RANKED:
        rows = {READ: again, OWN: own}.get(kind, asked)
        fitted[kind] = fit(rows, kind, fitted["meaning"] if kind == READ else None, known.get(kind, {}).get("rank"))
    page: dict[str, Any] = {"made by": "tools/bundled/answer_weights.py"}
    for name, rows in {"bundled encoder, or words": asked, "read again, or by an encoder of one's own": again}.items():
        none = sum(not one.right.any() for one in rows)
        documents = len({one.document for one in rows})
        page[name] = {"documents": documents, "questions": len(rows), "without an answer": none}
    page["weights"] = {name: asdict(weights) for name, weights in fitted.items()}
    options.output.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(page, indent=1))


def features(options: argparse.Namespace, name: str, documents: int, second: PassageEncoder | None) -> list[Asked]:
    """The questions on at most so many documents of each source, computed or read from the folder of features."""
    path = options.features and options.features / f"{name}.npz"
    if path and path.exists():
        return saved(path)
    asked = asked_of_cases(cases(options.data, "train", documents), bundled_encoder(), EXCHANGED, second)
    if path:
        options.features.mkdir(parents=True, exist_ok=True)
        save(asked, path)
    return asked


if __name__ == "__main__":
    main()
