"""The official metrics of Natural Questions and TyDi QA, from their published rules.

Every question is judged twice: for its long answer (TyDi QA: the passage) and for its short one (the minimal answer). A
judgement records whether there is a gold answer, whether there is a prediction, its credit, and its score. Predictions
with a score below a threshold count as "no answer"; the reported F1 is that of the best threshold, found for long and
short answers separately, with predictions of equal score taken together::

    precision = credit / predicted answers        recall = credit / questions with a gold answer

Rules (Kwiatkowski et al. 2019 and nq_eval; Clark et al. 2020 and tydi_eval, where they differ):

- A question has a gold answer if at least two annotators gave one. Both scripts require two even for files with a
  single annotator per question, in which nothing could be right; here one suffices for such files.
- A long answer is right if it equals any annotator's. Places are equal if their bytes or their tokens are equal; TyDi
  QA compares the passage's index.
- A short answer is right if its set of spans equals one annotator's set, as published, including HTML tokens at the
  edges; or if its yes or no equals any annotator's. TyDi QA credits a span with its byte F1 against the best-matching
  annotator.
- For a question without a gold answer, a prediction only lowers precision.
- TyDi QA: best thresholds per language, then the mean over all languages except English.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from longspan.errors import InputError
from longspan_documents.questions.rows import YES_NO, Place, QuestionRow

VOTES = 2
"""Number of annotators that must have given an answer."""

PRECISIONS = (0.5, 0.75, 0.9)
"""Precisions at which recall is reported."""

NOWHERE = Place()
"""The place of an answer that does not exist."""

LEFT_OUT = "english"
"""The language excluded from the mean over languages."""


@dataclass(frozen=True, kw_only=True)
class AnswerLabel:
    """The answer of one annotator or of a system to a question.

    Attributes:
        candidate: index of the passage among the row's candidates, which TyDi QA compares; None = no answer.
        long: place of the long answer, which Natural Questions compares.
        short: places of the spans of the short answer.
        yes_no: "yes" or "no", else "none"; a prediction of either is judged by it, not by its spans.
        long_score, short_score: confidence of a system; unused for annotators.
    """

    candidate: int | None = None
    long: Place = NOWHERE
    short: tuple[Place, ...] = ()
    yes_no: str = "none"
    long_score: float = 0.0
    short_score: float = 0.0

    def __post_init__(self) -> None:
        """Raises `InputError` for other values of `yes_no`."""
        if self.yes_no not in YES_NO:
            raise InputError(f"yes_no={self.yes_no!r} is unknown; choose one of {', '.join(YES_NO)}")

    @property
    def spans(self) -> tuple[Place, ...]:
        """The non-null short spans."""
        return tuple(place for place in self.short if lies_somewhere(place))

    @property
    def has_short(self) -> bool:
        """Whether there is a short answer, as spans or as yes or no."""
        return bool(self.spans) or self.yes_no != "none"


class Judged(NamedTuple):
    """One prediction compared with the annotations of its question."""

    has_gold: bool
    has_prediction: bool
    credit: float
    """1 for a right answer, 0 for a wrong one; in between for TyDi QA's minimal answers."""
    score: float


class Measured(NamedTuple):
    """F1, precision and recall, between 0 and 1."""

    f1: float
    precision: float
    recall: float


@dataclass(frozen=True)
class Curve:
    """Precision and recall over all thresholds.

    Attributes:
        best: at the threshold of the highest F1 (the highest threshold in ties); zeros if nothing is right.
        threshold: that threshold: predictions with at least this score count; 0 if nothing is right.
        recall_at: for each of `PRECISIONS` the highest recall at a precision of at least that.
        everything: with every prediction counted, whatever its score.
    """

    best: Measured
    threshold: float
    recall_at: tuple[float, ...]
    everything: Measured


def lies_somewhere(place: Place) -> bool:
    """Whether a place is non-null: has bytes or tokens."""
    return any(_units(place))


def same_place(first: Place, second: Place) -> bool:
    """Whether two places have the same bytes or the same tokens; units unknown in one of them are not compared."""
    return any(
        first_unit and first_unit == second_unit
        for first_unit, second_unit in zip(_units(first), _units(second), strict=True)
    )


def same_spans(ours: Iterable[Place], theirs: Iterable[Place]) -> bool:
    """Whether two sets of non-null places are equal, ignoring order and duplicates."""
    ours, theirs = list(ours), list(theirs)
    one_way = all(any(same_place(span, other) for other in theirs) for span in ours)
    return one_way and all(any(same_place(span, other) for other in ours) for span in theirs)


def byte_overlap(gold: Place, predicted: Place) -> float:
    """Computes the F1 of two places' bytes: twice the overlap, over the sum of their lengths."""
    both = min(gold.end_byte, predicted.end_byte) - max(gold.start_byte, predicted.start_byte)
    lengths = gold.end_byte - gold.start_byte + predicted.end_byte - predicted.start_byte
    return 2 * both / lengths if both > 0 else 0.0


def judge_long(gold: Sequence[AnswerLabel], predicted: AnswerLabel, votes: int = VOTES) -> Judged:
    """Judges the long answer of Natural Questions."""
    has_gold = sum(lies_somewhere(label.long) for label in gold) >= votes
    right = has_gold and any(same_place(label.long, predicted.long) for label in gold)
    return Judged(has_gold, lies_somewhere(predicted.long), float(right), predicted.long_score)


def judge_short(gold: Sequence[AnswerLabel], predicted: AnswerLabel, votes: int = VOTES) -> Judged:
    """Judges the short answer of Natural Questions."""
    has_gold = sum(label.has_short for label in gold) >= votes
    if predicted.yes_no != "none":
        right = any(label.yes_no == predicted.yes_no for label in gold)
    else:
        right = any(same_spans(label.spans, predicted.spans) for label in gold)
    right = right and has_gold and predicted.has_short
    return Judged(has_gold, predicted.has_short, float(right), predicted.short_score)


def judge_passage(gold: Sequence[AnswerLabel], predicted: AnswerLabel, votes: int = VOTES) -> Judged:
    """Judges the passage of TyDi QA."""
    has_gold = sum(label.candidate is not None for label in gold) >= votes
    has_prediction = predicted.candidate is not None
    right = has_gold and has_prediction and any(label.candidate == predicted.candidate for label in gold)
    return Judged(has_gold, has_prediction, float(right), predicted.long_score)


def judge_minimal(gold: Sequence[AnswerLabel], predicted: AnswerLabel, votes: int = VOTES) -> Judged:
    """Judges the minimal answer of TyDi QA."""
    has_gold = sum(label.has_short for label in gold) >= votes
    credit = 0.0
    if has_gold and predicted.yes_no != "none":
        credit = float(any(label.yes_no == predicted.yes_no for label in gold))
    elif has_gold and predicted.spans:
        overlaps = (byte_overlap(place, predicted.spans[0]) for label in gold for place in label.spans)
        credit = max(overlaps, default=0.0)
    return Judged(has_gold, predicted.has_short, credit, predicted.short_score)


def measure(credit: float, predicted: int, gold: int) -> Measured:
    """Computes F1, precision and recall; 0 where the denominator is 0."""
    precision, recall = credit / predicted if predicted else 0.0, credit / gold if gold else 0.0
    both = precision + recall
    return Measured(2 * precision * recall / both if both else 0.0, precision, recall)


def curve(judgements: Iterable[Judged]) -> Curve:
    """Computes precision and recall at every distinct threshold."""
    ordered = sorted(judgements, key=lambda judged: judged.score, reverse=True)
    gold = sum(judged.has_gold for judged in ordered)
    credit, predicted = 0.0, 0
    best, threshold, point = Measured(0.0, 0.0, 0.0), 0.0, Measured(0.0, 0.0, 0.0)
    recall_at = [0.0] * len(PRECISIONS)
    for score, tied in groupby(ordered, key=lambda judged: judged.score):
        for judged in tied:
            credit += judged.credit
            predicted += judged.has_prediction
        point = measure(credit, predicted, gold)
        if point.f1 > best.f1:
            best, threshold = point, score
        for index, wanted in enumerate(PRECISIONS):
            if point.precision >= wanted:
                recall_at[index] = max(recall_at[index], point.recall)
    return Curve(best, threshold, tuple(recall_at), point)


def curve_scores(name: str, points: Curve) -> dict[str, float]:
    """Returns a curve's numbers as `{name}_f1`, …: percent, except the threshold; `f1_all` counts every prediction."""
    scores = {f"{name}_{field}": 100 * value for field, value in points.best._asdict().items()}
    scores[f"{name}_threshold"] = points.threshold
    for wanted, recall in zip(PRECISIONS, points.recall_at, strict=True):
        scores[f"{name}_recall_at_precision_{round(100 * wanted)}"] = 100 * recall
    return scores | {f"{name}_f1_all": 100 * points.everything.f1}


SCORES = (
    *(f"{answer}_{field}" for answer in ("long", "short", "passage", "minimal") for field in Measured._fields),
    *(f"{answer}_recall_at_precision_{round(100 * wanted)}" for answer in ("long", "short") for wanted in PRECISIONS),
    *("long_f1_all", "short_f1_all", "passage_f1_*", "minimal_f1_*"),
)
"""The scores by which models can be compared; `*` is a language of TyDi QA."""


def natural_questions_scores(
    gold: Sequence[Sequence[AnswerLabel]], predicted: Sequence[AnswerLabel]
) -> dict[str, float]:
    """Computes the metric of Natural Questions from the annotations of each question and its prediction.

    Returns:
        For `long` and `short` the scores of `curve_scores`.
    """
    pairs, votes = list(zip(gold, predicted, strict=True)), votes_needed(gold)
    long, short = (curve(judge(*pair, votes) for pair in pairs) for judge in (judge_long, judge_short))
    return curve_scores("long", long) | curve_scores("short", short)


def tydi_scores(
    gold: Sequence[Sequence[AnswerLabel]], predicted: Sequence[AnswerLabel], languages: Sequence[str | None]
) -> dict[str, float]:
    """Computes the metric of TyDi QA's primary tasks.

    Returns:
        `passage_f1`, `passage_precision`, `passage_recall` and the same for `minimal`, in percent: means over the
            languages except English (which counts if it is the only one); `passage_f1_korean` etc. for each language;
            `passage_threshold` and `minimal_threshold`, the best over all languages together.
    """
    rows, votes = list(zip(gold, predicted, languages, strict=True)), votes_needed(gold)
    names = sorted({str(language) for language in languages})
    scores: dict[str, float] = {}
    for task, judge in (("passage", judge_passage), ("minimal", judge_minimal)):
        by_language = {name: curve(judge(g, p, votes) for g, p, at in rows if str(at) == name).best for name in names}
        counted = [best for name, best in by_language.items() if name != LEFT_OUT] or list(by_language.values())
        for field in Measured._fields:
            scores[f"{task}_{field}"] = 100 * fmean(getattr(best, field) for best in counted)
        scores |= {f"{task}_f1_{name}": 100 * best.f1 for name, best in by_language.items()}
        scores[f"{task}_threshold"] = curve(judge(g, p, votes) for g, p, _ in rows).threshold
    return scores


def annotations_of(row: QuestionRow) -> list[AnswerLabel]:
    """Returns the annotations of a row, in the units of the published document."""
    return [
        AnswerLabel(
            candidate=annotation.candidate,
            long=row.long_place(annotation),
            short=row.short_places(annotation),
            yes_no=annotation.yes_no,
        )
        for annotation in row.annotations
    ]


def votes_needed(gold: Iterable[Sequence[AnswerLabel]]) -> int:
    """Returns the number of annotators that must have answered: two, or one if no question has two annotators."""
    return VOTES if any(len(labels) >= VOTES for labels in gold) else 1


def _units(place: Place) -> list[tuple[int, int] | None]:
    """Returns the bytes and the tokens of a place, `None` for unknown ones."""
    pairs = (place.start_byte, place.end_byte), (place.start_token, place.end_token)
    return [pair if min(pair) >= 0 else None for pair in pairs]
