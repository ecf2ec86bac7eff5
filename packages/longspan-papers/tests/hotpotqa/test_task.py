"""HotpotQA's sequence, its labels, its decoding, and what the second stage reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMultiHop
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.hotpotqa.features import MARKS, hop_features, word_types
from longspan_papers.hotpotqa.head import LABELS
from longspan_papers.hotpotqa.reading import hop_row, read_multi_hop, record_of
from longspan_papers.hotpotqa.rows import HopRow, Occurrence, Paragraph
from longspan_papers.hotpotqa.task import HopAnswer, MultiHop, decode, reduced, selected_paragraphs

ROW = HopRow(
    id="a",
    question="Who rowed?",
    paragraphs=(
        Paragraph("Boats", ("Boats float.", " Ada rowed, and Adam slept.", "")),
        Paragraph("Pond", ("Ada swam.",)),
        Paragraph("Ada", ("Ada is old.",)),
    ),
    answer="Ada",
    facts=(("Boats", 1), ("Ada", 0)),
)
TASK = MultiHop(max_tokens=200)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = train_tokenizer(TASK.corpus([ROW]), 300)
    made.add_tokens(list(MARKS), special_tokens=True)
    return made


def at(features: dict[str, Any], token: int) -> tuple[int, int, str]:
    """Paragraph, sentence and words of a token."""
    paragraph, sentence = features["owners"][features["parts"][token]]
    start, end = features["spans"][token]
    return paragraph, sentence, ROW.text(Occurrence(paragraph, sentence, start, end))


def test_the_sequence_is_that_of_the_paper(tokenizer: Any) -> None:
    features = hop_features(ROW, tokenizer, TASK)
    assert tokenizer.decode(features["input_ids"]).replace(" ", "") == (
        "<s>[q]Whorowed?[/q]<t>Boats</t>Boatsfloat.[s]Adarowed,andAdamslept.[s][s]"
        "<t>Pond</t>Adaswam.[s]<t>Ada</t>Adaisold.[s]"
    )
    marks = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    question = features["input_ids"].index(marks["[/q]"]) + 1
    wanted = [i < question or token in (marks["<t>"], marks["[s]"]) for i, token in enumerate(features["input_ids"])]
    assert features["is_global"] == wanted
    small = hop_features(ROW, tokenizer, replace(TASK, global_on="question", match_steps=1))
    assert small["is_global"] == [i < question for i in range(len(wanted))]
    matched = [at(features, i)[2] for i, kind in enumerate(small["token_type_ids"]) if kind == 2]
    assert "".join(matched) == "rowed"
    words = [at(features, i)[2] for i, part in enumerate(features["parts"]) if part >= 0]
    whole = "".join(one.title + "".join(one.sentences) for one in ROW.paragraphs)
    assert "".join(words) == whole.replace(" ", "")


def test_labels_are_on_titles_and_marks_and_every_occurrence(tokenizer: Any) -> None:
    features = hop_features(ROW, tokenizer, TASK)
    assert [features["relevance_labels"][token] for token, _ in features["titles"]] == [1, 0, 1]
    assert [features["evidence_labels"][token] for token, *_ in features["marks"]] == [0, 1, 0, 0, 1]
    assert sum(label >= 0 for label in features["relevance_labels"]) == 3
    assert sum(label >= 0 for label in features["evidence_labels"]) == 5
    found = zip(features["start_positions"], features["end_positions"], strict=True)
    assert [(at(features, first)[:2], at(features, last)[2][-1]) for first, last in found] == [
        ((0, 1), "a"),
        ((2, -1), "a"),
        ((2, 0), "a"),
    ]
    assert features["answer_types"] == 0
    for said, kind in (("yes", 1), ("No", 2)):
        other = hop_features(replace(ROW, answer=said), tokenizer, TASK)
        assert (other["answer_types"], other["start_positions"]) == (kind, [-100])


def test_what_is_too_long_is_cut_and_its_labels_with_it(tokenizer: Any) -> None:
    whole = hop_features(ROW, tokenizer, TASK)
    most = whole["titles"][1][0] + 1
    cut = hop_features(ROW, tokenizer, replace(TASK, max_tokens=most))
    for name in ("input_ids", "is_global", "relevance_labels", "evidence_labels"):
        assert cut[name] == whole[name][:most]
    assert (len(cut["titles"]), len(cut["marks"]), len(cut["start_positions"])) == (2, 3, 1)
    with pytest.raises(InputError, match="leaves less than half of max_tokens=16"):
        hop_features(replace(ROW, question="who rowed " * 9), tokenizer, replace(TASK, max_tokens=16))
    with pytest.raises(InputError, match=r"lacks \[q\], \[/q\], <t>, </t>, \[s\]"):
        hop_features(ROW, train_tokenizer(TASK.corpus([ROW]), 300), TASK)


def answered(
    tokenizer: Any, kind: int, evidence: dict[tuple[int, int], float], starts: dict[Any, float], ends: dict[Any, float]
) -> HopAnswer:
    """What is decoded where relevance is 1, −2, 2 and the rest is low; words by paragraph, sentence and place."""
    features = hop_features(ROW, tokenizer, TASK)
    relevance, sentences, start, end = torch.full((4, 1, len(features["input_ids"])), -5.0)
    for (token, _), value in zip(features["titles"], (1.0, -2.0, 2.0), strict=True):
        relevance[0, token] = value
    for token, number, index in features["marks"]:
        sentences[0, token] = evidence.get((number, index), -4.0)
    for token, (part, (first, last)) in enumerate(zip(features["parts"], features["spans"], strict=True)):
        if part >= 0:
            start[0, token] = starts.get((*features["owners"][part], first), -5.0)
            end[0, token] = ends.get((*features["owners"][part], last), -5.0)
    output = SimpleNamespace(
        relevance_logits=relevance,
        evidence_logits=sentences,
        start_logits=start,
        end_logits=end,
        type_logits=torch.nn.functional.one_hot(torch.tensor([kind]), 3).float(),
    )
    return decode(output, [features], [ROW], 30)[0]


def test_evidence_is_of_exactly_the_two_best_paragraphs(tokenizer: Any) -> None:
    found = answered(tokenizer, 1, {(0, 0): 0.5, (0, 1): 2.0, (1, 0): 9.0, (2, 0): -1.0}, {}, {})
    assert found.answer == "yes"
    assert found.relevance == (1.0, -2.0, 2.0)
    assert found.facts == (("Ada", 0), ("Boats", 0), ("Boats", 1))
    alone = answered(tokenizer, 2, {(0, 2): -0.5}, {}, {})
    assert (alone.answer, alone.facts) == ("no", (("Ada", 0), ("Boats", 2)))


def test_words_are_the_best_of_these_paragraphs_inside_one_sentence(tokenizer: Any) -> None:
    # The best words of all are in "Pond", which is not chosen; "Boats … slept" would go over a sentence's end.
    starts = {(1, 0, 4): 99.0, (0, 0, 0): 6.0, (0, 1, 5): 5.0}
    ends = {(1, 0, 8): 99.0, (0, 1, 20): 6.0, (0, 1, 26): 7.0, (0, 0, 11): 2.0}
    found = answered(tokenizer, 0, {}, starts, ends)
    assert (found.answer, found.place) == ("rowed, and Adam slept", Occurrence(0, 1, 5, 26))


def test_a_second_stage_reads_two_to_five_paragraphs() -> None:
    relevance = (0.5, -4.0, 3.0, -2.9, -9.0, 1.0, -1.0, -3.0, 0.0)
    assert selected_paragraphs(relevance, most=5, threshold=-3.0) == [0, 2, 5, 6, 8]
    assert selected_paragraphs(relevance, most=9, threshold=-3.0) == [0, 2, 3, 5, 6, 8]
    assert selected_paragraphs((-9.0, -5.0, -7.0), most=5, threshold=-3.0) == [1, 2]
    assert selected_paragraphs((-9.0,), most=5, threshold=-3.0) == [0]
    assert selected_paragraphs((1.0, float("-inf"), 0.0), most=5, threshold=-3.0) == [0, 2]
    assert [selected_paragraphs((-9.0, -2.0, -7.0), most=5, threshold=-3.0, least=n) for n in range(4)] == [
        [1],
        [1],
        [1, 2],
        [0, 1, 2],
    ]
    assert selected_paragraphs(relevance, most=5, threshold=-3.0, least=0) == [0, 2, 5, 6, 8]
    assert selected_paragraphs(relevance, most=9, threshold=-3.0, least=0) == [0, 2, 3, 5, 6, 8]
    assert selected_paragraphs((-3.0, -3.1), most=5, threshold=-3.0, least=0) == []
    row = reduced(ROW, HopAnswer(answer="", facts=(), relevance=(-4.0, 1.0, 2.0)), most=5, threshold=-3.0)
    assert [paragraph.title for paragraph in row.paragraphs] == ["Pond", "Ada"]
    assert (row.answer, row.facts) == (ROW.answer, ROW.facts)


def test_as_published_nothing_below_the_threshold_is_kept_and_the_question_is_still_asked(
    tokenizer: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LongspanForMultiHop(LongspanConfig(vocab_size=len(tokenizer), intermediate_size=16, **sizes)).eval()
    published = MultiHop(max_tokens=200, least_paragraphs=0, relevance_above=100.0)
    outcome = published.evaluate(model, tokenizer, [ROW], batch_size=1)
    assert outcome.files["kept.json"][0]["context"] == []
    assert outcome.scores["paragraphs_found"] == 0
    (tmp_path / "kept.json").write_text(json.dumps(outcome.files["kept.json"]), encoding="utf-8")
    (left,) = read_multi_hop(tmp_path / "kept.json")
    assert left == replace(ROW, paragraphs=())
    second = published.evaluate(model, tokenizer, [left, ROW], batch_size=2)
    assert second.lines[0]["evidence"] == ()
    assert (
        second.scores["evidence_f1"] == TASK.evaluate(model, tokenizer, [ROW], batch_size=1).scores["evidence_f1"] / 2
    )
    batch = published.collator(tokenizer)(
        [published.dataset([left], tokenizer, training=True, seed=0, folder=tmp_path)[0]]
    )
    assert model(**batch).loss.isfinite()
    with pytest.raises(InputError, match="least_paragraphs=6 is more than kept_paragraphs=5"):
        MultiHop(least_paragraphs=6)
    with pytest.raises(InputError, match="has no paragraph with a sentence"):
        hop_row({**record_of(ROW), "context": [["Boats", []]]})


def test_evaluation_writes_the_official_file_and_what_the_second_stage_reads(tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LongspanForMultiHop(LongspanConfig(vocab_size=len(tokenizer), intermediate_size=16, **sizes))
    rows = [ROW, replace(ROW, id="b", answer="yes", paragraphs=ROW.paragraphs[:2])]
    outcome = TASK.evaluate(model, tokenizer, rows, batch_size=2)
    one = [TASK.evaluate(model, tokenizer, [row], batch_size=1).lines[0] for row in rows]
    assert outcome.lines == one
    assert set(outcome.scores) == set(TASK.metrics.names)
    official = json.loads(json.dumps(outcome.files["predictions-hotpotqa.json"]))
    assert official.keys() == {"answer", "sp"}
    assert [*official["answer"]] == [*official["sp"]] == ["a", "b"]
    for facts in official["sp"].values():
        assert len({title for title, _ in facts}) == 2
    (tmp_path / "kept.json").write_text(json.dumps(outcome.files["kept.json"]), encoding="utf-8")
    kept = list(read_multi_hop(tmp_path / "kept.json"))
    assert [(row.id, row.answer, row.facts) for row in kept] == [(row.id, row.answer, row.facts) for row in rows]
    assert all(2 <= len(row.paragraphs) <= 5 for row in kept)
    silent = replace(ROW, id="c", answer=None, facts=())  # as in the official test file
    assert TASK.evaluate(model, tokenizer, [*rows, silent], batch_size=1).scores == outcome.scores
    unknown = TASK.evaluate(model, tokenizer, [silent], batch_size=1)
    assert (unknown.scores, [*unknown.files["predictions-hotpotqa.json"]["answer"]]) == ({}, ["c"])
    (tmp_path / "test.json").write_text(json.dumps([record_of(silent)]), encoding="utf-8")
    assert TASK.read(str(tmp_path / "test.json"), "test", None) == [silent]
    with pytest.raises(InputError, match="row 'c' has no answer to learn or to validate by"):
        TASK.dataset([silent], tokenizer, training=False, seed=0, folder=tmp_path)


def test_a_label_that_is_missing_is_named() -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LongspanForMultiHop(LongspanConfig(vocab_size=40, intermediate_size=16, **sizes))
    with pytest.raises(InputError, match=f"relevance_labels is missing; give all of {', '.join(LABELS)}, or none"):
        model(torch.tensor([[3, 4]]), answer_types=torch.tensor([0]))


def test_words_beside_those_of_the_question_lead_on(tokenizer: Any) -> None:
    paragraphs = [["Boats", "Ada rowed to Kiel."], ["Pond", "Ada swam in June."], ["Kiel", "Kiel lies in the north."]]
    # "the" and "in" are asked for too, but "in" stands in two paragraphs of three and leads on only where that is rare.
    assert word_types("Who rowed?", paragraphs, 1) == {"who": 2, "rowed": 2}
    assert word_types("Who rowed?", paragraphs, 2) == {"who": 2, "rowed": 2, "ada": 3, "to": 3, "kiel": 3}
    often = [*paragraphs, ["Lake", "Ada rowed."], ["Sea", "Ada sank."]]
    assert word_types("Who was Ada?", often, 2) == {"who": 2, "was": 2, "ada": 2}
    whole = hop_features(ROW, tokenizer, replace(TASK, match_steps=2))
    beside = {at(whole, i)[:2] for i, kind in enumerate(whole["token_type_ids"]) if kind == 3}
    assert (0, 1) in beside
    # What is cut off leads nowhere: the sentence with "rowed" has lost its mark.
    cut = hop_features(ROW, tokenizer, replace(TASK, match_steps=2, max_tokens=whole["marks"][1][0]))
    assert 3 not in cut["token_type_ids"]
