"""ROUGE against hand-computed numbers and against rouge_score itself; scripts, flavours, intervals, speed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import lines_run
from longspan.errors import InputError
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan.tasks.metrics.rouge import MEASURES, Rouge, UnicodeTokenizer

rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="needs the 'train' extra")

# Few words, so that ties between common subsequences are frequent.
LINES = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "runs", "running", "3"]), max_size=8).map(" ".join), max_size=4
)


def test_hand_computed_scores() -> None:
    scores = Rouge().score("the cat sat\non the mat", "the cat lay\nthe mat sat on")
    # Unigrams: the (2), cat, sat, on, mat = 6 of 6 and 7; bigrams: "the cat", "sat on", "the mat" of 5, 6.
    assert scores["rouge1"] == pytest.approx((6 / 6, 6 / 7, 12 / 13))
    assert scores["rouge2"] == pytest.approx((3 / 5, 3 / 6, 6 / 11))
    # Longest: "the cat the mat", 4. By lines: "the cat" (2), then "the sat" ∪ "the mat" (3).
    assert scores["rougeL"] == pytest.approx((4 / 6, 4 / 7, 8 / 13))
    assert scores["rougeLsum"] == pytest.approx((5 / 6, 5 / 7, 10 / 13))


def test_whole_text_and_by_sentence_differ_as_defined() -> None:
    scores = Rouge().score("c d\na b", "a b\nc d")
    assert scores["rougeL"].fmeasure == pytest.approx(0.5)
    assert scores["rougeLsum"].fmeasure == pytest.approx(1.0)


@settings(max_examples=200, deadline=None)
@given(LINES, LINES, st.booleans())
def test_every_score_equals_rouge_score_exactly(prediction: list[str], reference: list[str], stemmer: bool) -> None:
    ours = Rouge(stemmer=stemmer).score("\n".join(prediction), "\n".join(reference))
    theirs = rouge_scorer.RougeScorer(list(MEASURES), use_stemmer=stemmer).score(
        "\n".join(reference), "\n".join(prediction)
    )
    assert {name: tuple(score) for name, score in ours.items()} == {
        name: tuple(score) for name, score in theirs.items()
    }


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=80))
def test_unicode_tokens_of_ascii_text_are_those_of_rouge_score(text: str) -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    for stemming in (False, True):
        default = DefaultTokenizer(use_stemmer=stemming)
        assert UnicodeTokenizer(default if stemming else None).tokenize(text) == default.tokenize(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_against_itself_is_perfect_or_empty(text: str) -> None:
    for measure, score in Rouge(tokens="unicode").score(text, text).items():
        assert score in ((0, 0, 0), (1, 1, 1)), measure


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("今天ABC天气。", ["今", "天", "abc", "天", "气"]),
        ("カタカナと漢字", list("カタカナと漢字")),
        ("안녕하세요, 세계!", ["안녕하세요", "세계"]),
        ("مَرْحَبًا بالعـالم؟", ["مَرْحَبًا", "بالعالم"]),
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया"]),
        ("Größe naïve_Привет", ["größe", "naïve", "привет"]),
    ],
)
def test_tokens_of_other_scripts(text: str, tokens: list[str]) -> None:
    assert UnicodeTokenizer().tokenize(text) == tokens


def test_other_scripts_are_scored_and_english_stays_as_published() -> None:
    assert Rouge().score("今天天气好", "今天天气很好")["rouge1"] == pytest.approx((1.0, 5 / 6, 10 / 11))
    assert Rouge(tokens="rouge_score").score("今天天气好", "今天天气很好")["rouge1"].fmeasure == 0
    # A few letters outside ASCII do not change the published tokens.
    assert Rouge().score("na ve", "A naïve text")["rouge1"].recall == pytest.approx(2 / 4)


def test_several_references_by_maximum_or_mean() -> None:
    references = ["a b c d", "a x"]
    best = Rouge().score("a b", references)
    assert best["rouge1"] == pytest.approx((1.0, 0.5, 2 / 3))
    theirs = rouge_scorer.RougeScorer(list(MEASURES)).score_multi(references, "a b")
    assert {name: tuple(score) for name, score in best.items()} == {
        name: tuple(score) for name, score in theirs.items()
    }
    mean = Rouge(references="mean").score("a b", references)
    assert mean["rouge1"] == pytest.approx((0.75, 0.5, (2 / 3 + 0.5) / 2))


def test_rows_and_mean_are_in_percent() -> None:
    rouge = Rouge()
    assert rouge.rows(["a b", ""], ["a b", ["x", "y"]])["rouge1"] == [100.0, 0.0]
    assert rouge.mean(["a b", ""], ["a b", "x"]) == {"rouge1": 50, "rouge2": 50, "rougeL": 50, "rougeLsum": 50}
    assert rouge.mean([], [])["rouge1"] == 0
    assert "no stemmer" in rouge.flavour
    assert "max over references" in rouge.flavour


def test_bad_choices_are_one_clear_sentence() -> None:
    with pytest.raises(InputError, match="references is 'min'; choose 'max' or 'mean'"):
        Rouge(references="min")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="tokens is 'words'; choose"):
        Rouge(tokens="words")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="references is empty"):
        Rouge().score("a", [])
    with pytest.raises(InputError, match="2 predictions for 1 rows"):
        Rouge().mean(["a", "b"], ["a"])


def test_the_table_of_a_subsequence_is_no_loop_in_python() -> None:
    """Two texts of 300 words have 90,000 pairs of words, and a table of them is filled twice, in two lines at least."""
    rng = random.Random(0)
    words = [f"w{index}" for index in range(400)]
    texts = ["\n".join(" ".join(rng.choices(words, k=25)) for _ in range(12)) for _ in range(10)]
    Rouge().rows(texts[:1], texts[1:2])  # imports
    assert lines_run(Rouge().rows, texts[:5], texts[5:]) < 5 * 90_000


def test_bootstrap_interval() -> None:
    values = [float(value) for value in range(100)]
    interval = bootstrap(values, seed=3)
    assert interval == bootstrap(values, seed=3) != bootstrap(values, seed=4)
    assert interval.mean == pytest.approx(49.5)
    # The mean's standard error is 2.89, so the interval is about ± 5.66.
    assert interval.low == pytest.approx(43.8, abs=0.6)
    assert interval.high == pytest.approx(55.2, abs=0.6)
    assert bootstrap([7.0]) == (7.0, 7.0, 7.0)
    wider, narrower = bootstrap(values, confidence=0.99), bootstrap(values, confidence=0.5)
    assert wider.low < narrower.low < narrower.high < wider.high


def test_paired_difference_is_narrower_than_the_systems() -> None:
    rng = random.Random(1)
    baseline = [rng.uniform(0, 100) for _ in range(50)]
    better = [value + 1 + rng.uniform(-1, 1) for value in baseline]
    difference = bootstrap_difference(better, baseline)
    assert 0 < difference.low < difference.mean < difference.high < 2
    with pytest.raises(InputError, match="values has 50 rows and baseline 3"):
        bootstrap_difference(better, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("options", [{"values": []}, {"samples": 0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_bootstrap_refuses_what_has_no_answer(options: dict) -> None:
    with pytest.raises(InputError):
        bootstrap(**({"values": [1.0]} | options))
