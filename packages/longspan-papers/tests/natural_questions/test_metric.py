"""The official metrics of Natural Questions and TyDi QA, on cases worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan_documents.questions.rows import Annotation, Candidate, Place, QuestionRow, Span, plain_row
from longspan_papers.natural_questions.metric import (
    AnswerLabel,
    Judged,
    annotations_of,
    byte_overlap,
    curve,
    judge_long,
    judge_minimal,
    judge_passage,
    judge_short,
    lies_somewhere,
    natural_questions_scores,
    same_place,
    same_spans,
    tydi_scores,
    votes_needed,
)


def tokens(start: int, end: int) -> Place:
    return Place(start_token=start, end_token=end)


def by_bytes(start: int, end: int) -> Place:
    return Place(start_byte=start, end_byte=end)


def long(start: int, end: int, score: float = 0.0) -> AnswerLabel:
    return AnswerLabel(long=tokens(start, end), long_score=score)


def short(*spans: tuple[int, int], score: float = 0.0) -> AnswerLabel:
    return AnswerLabel(short=tuple(tokens(*span) for span in spans), short_score=score)


SILENT = AnswerLabel()
A, B, C = (10, 90), (200, 260), (300, 333)


class TestPlaces:
    def test_null(self):
        assert not lies_somewhere(Place())
        assert not lies_somewhere(Place(start_token=3))  # half a place is none
        assert lies_somewhere(tokens(0, 1))
        assert lies_somewhere(by_bytes(0, 1))

    def test_equal(self):
        assert same_place(tokens(3, 5), tokens(3, 5))
        assert not same_place(tokens(3, 5), tokens(3, 6))
        assert not same_place(tokens(3, 5), by_bytes(3, 5))  # nothing to compare
        assert not same_place(Place(), Place())
        # The same bytes, or the same tokens: either is enough, whatever the other says …
        assert same_place(Place(3, 5, 70, 90), Place(4, 6, 70, 90))
        assert same_place(Place(3, 5, 70, 90), Place(3, 5, 70, 91))
        assert not same_place(Place(3, 5, 70, 90), Place(3, 6, 70, 91))
        # … also where only one has bytes.
        assert same_place(Place(3, 5, 70, 90), tokens(3, 5))
        assert not same_place(Place(-1, 5, -1, 90), Place(-1, 5, -1, 90))  # half a place is none

    def test_sets_of_spans(self):
        one, two = tokens(3, 5), tokens(8, 9)
        assert same_spans([one, two], [two, one])
        assert same_spans([one, one], [one])
        assert not same_spans([one], [one, two])
        assert not same_spans([one, two], [one])
        assert same_spans([], [])


class TestLong:
    def test_two_of_five_decide(self):
        gold = [long(*A), long(*B), SILENT, SILENT, SILENT]
        assert judge_long(gold, long(*A, 7.0)) == Judged(True, True, 1, 7.0)
        assert judge_long(gold, long(*B)) == Judged(True, True, 1, 0)  # any annotator's, not the majority's
        assert judge_long(gold, long(*C)) == Judged(True, True, 0, 0)
        assert judge_long(gold, SILENT) == Judged(True, False, 0, 0)

    def test_one_of_five_is_none(self):
        gold = [long(*A), SILENT, SILENT, SILENT, SILENT]
        assert judge_long(gold, long(*A)) == Judged(False, True, 0, 0)  # right for one, still wrong
        assert judge_long(gold, SILENT) == Judged(False, False, 0, 0)

    def test_fewer_annotators(self):
        assert judge_long([long(*A)], long(*A)) == Judged(False, True, 0, 0)
        assert judge_long([long(*A)], long(*A), votes=1) == Judged(True, True, 1, 0)
        assert judge_long([SILENT], long(*A), votes=1) == Judged(False, True, 0, 0)
        assert judge_long([long(*A), SILENT], long(*A)) == Judged(False, True, 0, 0)  # of two, both
        assert judge_long([], long(*A), votes=1) == Judged(False, True, 0, 0)

    def test_a_lone_annotator_decides_only_where_all_are_alone(self):
        alone, two = [long(*A)], [long(*B), long(*B)]
        assert votes_needed([alone, alone, []]) == 1
        assert natural_questions_scores([alone], [long(*A)])["long_f1"] == 100
        # Beside a question with two annotators the published rule holds: the first question has no gold answer.
        assert votes_needed([alone, two]) == 2
        scores = natural_questions_scores([alone, two], [long(*A), long(*B)])
        assert (scores["long_precision"], scores["long_recall"]) == (50, 100)


class TestShort:
    GOLD = (short((3, 5)), short((3, 5), (8, 9)), SILENT, SILENT, SILENT)

    def test_sets_must_be_equal(self):
        assert judge_short(self.GOLD, short((8, 9), (3, 5), score=2.0)) == Judged(True, True, 1, 2.0)
        assert judge_short(self.GOLD, short((3, 5))).credit == 1
        assert judge_short(self.GOLD, short((8, 9))).credit == 0  # a part of a set is not the set
        assert judge_short(self.GOLD, short((3, 6))).credit == 0
        assert judge_short(self.GOLD, SILENT) == Judged(True, False, 0, 0)  # silence matches no silent annotator

    def test_null_spans_do_not_count(self):
        empty = AnswerLabel(short=(Place(), Place()))
        assert judge_short(self.GOLD, empty) == Judged(True, False, 0, 0)
        assert judge_short(self.GOLD, AnswerLabel(short=(Place(), tokens(3, 5)))).credit == 1
        assert judge_short([empty, empty], short((3, 5))) == Judged(False, True, 0, 0)

    def test_yes_and_no(self):
        yes, no = AnswerLabel(yes_no="yes"), AnswerLabel(yes_no="no")
        gold = [yes, short((3, 5)), SILENT, SILENT, SILENT]  # one yes and one span: two answers
        assert judge_short(gold, yes) == Judged(True, True, 1, 0)
        assert judge_short(gold, no) == Judged(True, True, 0, 0)
        assert judge_short(gold, short((3, 5))).credit == 1
        assert judge_short([yes, SILENT, SILENT], yes) == Judged(False, True, 0, 0)
        with pytest.raises(InputError, match="'maybe'"):
            AnswerLabel(yes_no="maybe")


class TestCurve:
    def test_worked_by_hand(self):
        # Five questions, four with a gold answer. By falling score:
        #   9  right               credit 1 of 1 predicted: P 1    R 1/4   F 2/5
        #   7  wrong               1 of 2                   P 1/2  R 1/4   F 1/3
        #   5  right               2 of 3                   P 2/3  R 1/2   F 4/7   ← best
        #   2  wrong, no gold      2 of 4                   P 1/2  R 1/2   F 1/2
        #   1  says nothing        2 of 4                   as before
        found = curve(
            [
                Judged(True, True, 0, 7.0),
                Judged(True, True, 1, 9.0),
                Judged(True, False, 0, 1.0),
                Judged(False, True, 0, 2.0),
                Judged(True, True, 1, 5.0),
            ]
        )
        assert found.best == pytest.approx((4 / 7, 2 / 3, 1 / 2))
        assert found.threshold == 5.0
        assert found.recall_at == (0.5, 0.25, 0.25)  # precision ≥ 0.5 at the end; ≥ 0.75 and 0.9 after the first
        assert found.everything == pytest.approx((1 / 2, 1 / 2, 1 / 2))

    def test_equal_scores_come_together(self):
        # Taken one by one, the right one first would give P 1, R 1/2; together they give P 1/2, R 1/2, F 1/2.
        found = curve([Judged(True, True, 1, 3.0), Judged(True, True, 0, 3.0)])
        assert found.best == pytest.approx((0.5, 0.5, 0.5))
        assert found.recall_at == (0.5, 0, 0)

    def test_of_equal_f1_the_highest_threshold(self):
        # P 1, R 1/3: F 1/2; then P 2/5, R 2/3: F 1/2 again.
        judged = [Judged(True, True, 1, 4.0)] + [Judged(False, True, 0, 3.0)] * 3 + [Judged(True, True, 1, 3.0)]
        found = curve([*judged, Judged(True, False, 0, 3.0)])
        assert found.best == pytest.approx((0.5, 1, 1 / 3))
        assert found.threshold == 4.0
        assert found.everything == pytest.approx((0.5, 0.4, 2 / 3))

    @pytest.mark.parametrize(
        "judged",
        [
            [],
            [Judged(False, False, 0, 0.0)] * 3,  # all null on both sides
            [Judged(True, False, 0, 1.0), Judged(True, False, 0, 0.0)],  # no predictions
            [Judged(False, True, 0, 1.0), Judged(False, True, 0, 0.5)],  # no gold
            [Judged(True, True, 0, 8.0)],  # wrong
        ],
    )
    def test_nothing_right(self, judged):
        found = curve(judged)
        assert found.best == found.everything == (0, 0, 0)
        assert found.threshold == 0
        assert found.recall_at == (0, 0, 0)

    @given(
        st.lists(
            st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(-3, 3)).map(
                lambda t: Judged(t[0], t[1], float(t[0] and t[1] and t[2]), float(t[3]))
            ),
            max_size=12,
        )
    )
    def test_equals_every_threshold_tried(self, judged):
        best, recalls = 0.0, [0.0, 0.0, 0.0]
        for threshold in {one.score for one in judged}:
            kept = [one for one in judged if one.score >= threshold and one.has_prediction]
            right, gold = sum(one.credit for one in kept), sum(one.has_gold for one in judged)
            precision, recall = right / len(kept) if kept else 0, right / gold if gold else 0
            best = max(best, 2 * precision * recall / (precision + recall) if right else 0)
            recalls = [max(r, recall if precision >= p else 0) for r, p in zip(recalls, (0.5, 0.75, 0.9), strict=True)]
        assert curve(judged).best.f1 == pytest.approx(best)
        assert list(curve(judged).recall_at) == pytest.approx(recalls)


def test_long_and_short_have_their_own_thresholds():
    gold = [
        [AnswerLabel(long=tokens(*A), short=(tokens(12, 14),))],
        [AnswerLabel(long=tokens(*B))],  # long answer only
        [SILENT],
    ]
    predicted = [
        AnswerLabel(long=tokens(*A), short=(tokens(12, 14),), long_score=3, short_score=1),
        AnswerLabel(long=tokens(*B), short=(tokens(201, 202),), long_score=2, short_score=5),
        AnswerLabel(long=tokens(*C), short=(tokens(301, 302),), long_score=1, short_score=0),
    ]
    scores = natural_questions_scores(gold, predicted)
    # Long: both right before the wrong one. P 1, R 1, F 1 at score 2; all three: P 2/3, R 1, F 4/5.
    assert (scores["long_f1"], scores["long_precision"], scores["long_recall"]) == (100, 100, 100)
    assert scores["long_threshold"] == 2
    assert scores["long_f1_all"] == pytest.approx(80)
    # Short: the wrong one first. One gold answer: P 1/2, R 1, F 2/3 at score 1; all three: P 1/3, R 1, F 1/2.
    assert scores["short_f1"] == pytest.approx(200 / 3)
    assert (scores["short_precision"], scores["short_recall"], scores["short_threshold"]) == (50, 100, 1)
    assert scores["short_recall_at_precision_50"] == 100
    assert scores["short_recall_at_precision_75"] == scores["short_recall_at_precision_90"] == 0
    assert scores["short_f1_all"] == pytest.approx(50)
    assert natural_questions_scores([], [])["long_f1"] == 0
    with pytest.raises(ValueError, match="zip"):
        natural_questions_scores(gold, predicted[:2])


class TestTydi:
    def test_overlap_of_bytes(self):
        gold = by_bytes(10, 20)
        assert byte_overlap(gold, by_bytes(10, 20)) == 1
        assert byte_overlap(gold, by_bytes(15, 35)) == pytest.approx(2 * 5 / 30)  # P 5/20, R 5/10: F 1/3
        assert byte_overlap(gold, by_bytes(12, 16)) == pytest.approx(2 * 4 / 14)  # P 1, R 2/5: F 4/7
        assert byte_overlap(gold, by_bytes(5, 25)) == pytest.approx(2 / 3)  # P 1/2, R 1
        assert byte_overlap(gold, by_bytes(20, 30)) == 0  # side by side
        assert byte_overlap(gold, by_bytes(15, 15)) == 0  # empty
        assert byte_overlap(by_bytes(15, 15), by_bytes(15, 15)) == 0

    def test_passage(self):
        gold = [AnswerLabel(candidate=0), AnswerLabel(candidate=4), SILENT]
        assert judge_passage(gold, AnswerLabel(candidate=0, long_score=2.5)) == Judged(True, True, 1, 2.5)
        assert judge_passage(gold, AnswerLabel(candidate=4)).credit == 1
        assert judge_passage(gold, AnswerLabel(candidate=1)).credit == 0
        assert judge_passage(gold, SILENT) == Judged(True, False, 0, 0)
        assert judge_passage([AnswerLabel(candidate=0), SILENT, SILENT], AnswerLabel(candidate=0)) == Judged(
            False, True, 0, 0
        )

    def test_minimal(self):
        gold = [
            AnswerLabel(short=(by_bytes(10, 20),)),
            AnswerLabel(short=(by_bytes(12, 30),)),
            AnswerLabel(yes_no="no"),
        ]
        # Against the first 2·2/(10+10), against the second 2·10/(18+10): the better one.
        found = judge_minimal(gold, AnswerLabel(short=(by_bytes(18, 28),), short_score=3))
        assert found == Judged(True, True, pytest.approx(20 / 28), 3)
        assert judge_minimal(gold, AnswerLabel(yes_no="no")).credit == 1
        assert judge_minimal(gold, AnswerLabel(yes_no="yes")).credit == 0
        assert judge_minimal(gold, SILENT) == Judged(True, False, 0, 0)
        alone = [AnswerLabel(short=(by_bytes(10, 20),)), SILENT, SILENT]
        assert judge_minimal(alone, AnswerLabel(short=(by_bytes(10, 20),))) == Judged(False, True, 0, 0)
        yes = [AnswerLabel(yes_no="yes"), AnswerLabel(yes_no="yes"), SILENT]
        assert judge_minimal(yes, AnswerLabel(short=(by_bytes(1, 2),))) == Judged(True, True, 0, 0)

    def test_mean_over_languages_without_english(self):
        def gold(candidate: int, span: tuple[int, int]) -> list[AnswerLabel]:
            return [AnswerLabel(candidate=candidate, short=(by_bytes(*span),))] * 2 + [SILENT]

        golds = [gold(0, (0, 10)), gold(1, (0, 10)), gold(2, (0, 10)), gold(3, (0, 10))]
        predicted = [
            AnswerLabel(candidate=0, short=(by_bytes(0, 10),), long_score=1, short_score=9),  # thai: right, right
            AnswerLabel(candidate=0, short=(by_bytes(5, 15),), long_score=5, short_score=1),  # thai: wrong, F 1/2
            AnswerLabel(candidate=2, short=(by_bytes(20, 30),), long_score=0, short_score=0),  # korean: right, wrong
            AnswerLabel(candidate=3, short=(by_bytes(0, 10),), long_score=7, short_score=7),  # english: right, right
        ]
        scores = tydi_scores(golds, predicted, ["thai", "thai", "korean", "english"])
        # Thai passages: score 5 wrong, then both: P 1/2, R 1/2, F 1/2. Korean F 1. Mean 3/4.
        assert (scores["passage_f1_thai"], scores["passage_f1_korean"], scores["passage_f1_english"]) == (50, 100, 100)
        assert (scores["passage_f1"], scores["passage_precision"], scores["passage_recall"]) == (75, 75, 75)
        # Thai minimal: at 9 credit 1: P 1, R 1/2, F 2/3; at 1 credit 3/2: P 3/4, R 3/4, F 3/4. Korean 0. Mean 3/8.
        assert scores["minimal_f1_thai"] == pytest.approx(75)
        assert (scores["minimal_f1_korean"], scores["minimal_f1_english"]) == (0, 100)
        assert scores["minimal_f1"] == pytest.approx(37.5)
        # One threshold for use: passages 7 right, 5 wrong, 1 right, 0 right: 3/4 at 0 is the best.
        assert scores["passage_threshold"] == 0
        # Minimal 9 right, 7 right: P 1, R 1/2, F 2/3; at 1 credit 5/2 of 3 and of 4: F 5/7; at 0: 5/8.
        assert scores["minimal_threshold"] == 1

    def test_english_alone_counts(self):
        scores = tydi_scores([[AnswerLabel(candidate=0)] * 3], [AnswerLabel(candidate=0)], ["english"])
        assert scores["passage_f1_english"] == 100
        assert scores["passage_f1"] == 100


def test_annotations_in_published_units():
    text = "Zürich hat Trams.\n\nBern auch."
    row = plain_row(text, "Wo?")
    said = Annotation(candidate=1, short=(Span(19, 23),))
    row = QuestionRow(
        id="1", question="Wo?", text=text, candidates=row.candidates, annotations=(said, Annotation(yes_no="yes"))
    )
    # "ü" has two bytes: the second paragraph begins at character 19 and byte 20.
    first, second = annotations_of(row)
    assert first == AnswerLabel(candidate=1, long=by_bytes(20, 30), short=(by_bytes(20, 24),))
    assert second == AnswerLabel(yes_no="yes")


def test_a_candidate_has_its_own_place():
    candidate = Candidate(Span(0, 4), place=Place(5, 9, 50, 90))
    row = QuestionRow(
        id="1", question="?", text="Bern", candidates=(candidate,), annotations=(Annotation(candidate=0),)
    )
    assert annotations_of(row)[0].long == candidate.place


def published_rules(gold: list[dict], predicted: dict) -> dict[str, tuple[bool, bool, bool]]:
    """The rules of the published evaluation on its own records: has gold, has prediction, is right. Written apart."""

    def none(span: dict) -> bool:
        return all(value < 0 for value in span.values())

    def equal(one: dict, other: dict) -> bool:
        kinds = [("start_byte", "end_byte"), ("start_token", "end_token")]
        return any(all(one[key] == other[key] >= 0 for key in kind) for kind in kinds)

    def real(record: dict) -> list[dict]:
        return [span for span in record["short_answers"] if not none(span)]

    def equal_sets(one: list[dict], other: list[dict]) -> bool:
        table = [[equal(x, y) for y in other] for x in one]
        return all(map(any, table)) and all(any(row[j] for row in table) for j in range(len(other)))

    def has_short(record: dict) -> bool:
        return bool(real(record)) or record["yes_no_answer"] != "NONE"

    long_gold = sum(not none(record["long_answer"]) for record in gold) >= 2
    long_said = not none(predicted["long_answer"])
    long_right = any(equal(record["long_answer"], predicted["long_answer"]) for record in gold)
    short_gold, short_said = sum(map(has_short, gold)) >= 2, has_short(predicted)
    if predicted["yes_no_answer"] != "NONE":
        short_right = any(record["yes_no_answer"] == predicted["yes_no_answer"] for record in gold)
    else:
        short_right = any(equal_sets(real(record), real(predicted)) for record in gold)
    return {
        "long": (long_gold, long_said, long_gold and long_said and long_right),
        "short": (short_gold, short_said, short_gold and short_said and short_right),
    }


# Few values, so that bytes and tokens agree, disagree and are missing in all combinations.
BORDERS = st.sampled_from([(-1, -1), (2, 5), (2, 6), (9, 11)])
SPANS = st.tuples(BORDERS, BORDERS).map(
    lambda both: dict(zip(("start_token", "end_token", "start_byte", "end_byte"), (*both[0], *both[1]), strict=True))
)


@st.composite
def records(draw: st.DrawFn) -> dict:
    yes_no = draw(st.sampled_from(["NONE", "NONE", "NONE", "YES", "NO"]))
    short = draw(st.lists(SPANS, max_size=3)) if yes_no == "NONE" else []
    return {"long_answer": draw(SPANS), "short_answers": short, "yes_no_answer": yes_no}


@pytest.mark.slow
@settings(max_examples=600)
@given(st.lists(records(), min_size=1, max_size=5), records())
def test_judgements_are_those_of_the_published_rules(gold: list[dict], predicted: dict) -> None:
    def said(record: dict) -> AnswerLabel:
        spans = tuple(Place(**span) for span in record["short_answers"])
        return AnswerLabel(long=Place(**record["long_answer"]), short=spans, yes_no=record["yes_no_answer"].lower())

    expected = published_rules(gold, predicted)
    for name, judge in (("long", judge_long), ("short", judge_short)):
        found = judge([said(record) for record in gold], said(predicted))
        assert (found.has_gold, found.has_prediction, found.credit == 1) == expected[name], name
