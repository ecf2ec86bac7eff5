"""Chunks of a question's document: worked out by hand, their labels, what is refused, and batches of them."""

import logging
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.errors import InputError
from longspan_documents.questions.rows import Annotation, Candidate, QuestionRow, Span
from longspan_documents.questions.tokens import NOWHERE
from longspan_papers.natural_questions.features import ChunkFeatures, chunk_features, collate
from longspan_papers.natural_questions.options import QuestionOptions, marker_tokens


def words_tokenizer(count: int = 60) -> PreTrainedTokenizerFast:
    """Every word "w0" … is one token, so that chunks can be worked out by hand: id 10 + its number."""
    special = {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3}
    vocabulary = special | {f"w{number}": 10 + number for number in range(count)} | {"q0": 4, "q1": 5, "q2": 6}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def by_hand(count: int, *passages: tuple[int, int], short: tuple[int, int] | None = None, gold: int = 0) -> QuestionRow:
    """Words w0 … of a document; passages and the short answer in words, ends exclusive."""
    words = [f"w{number}" for number in range(count)]
    starts = [len(" ".join([*words[:place], ""])) for place in range(count)]

    def span(first: int, end: int) -> Span:
        return Span(starts[first], starts[end - 1] + len(words[end - 1]))

    return QuestionRow(
        id="hand",
        question="q0 q1",
        text=" ".join(words),
        candidates=tuple(Candidate(span(*pair)) for pair in passages),
        annotations=(Annotation(gold, (span(*short),) if short else ()),),
    )


def labels(chunk: ChunkFeatures) -> tuple[Any, ...]:
    return tuple(chunk.get(name) for name in ("start_positions", "end_positions", "paragraph_labels", "answer_types"))


def test_chunks_by_hand() -> None:
    # <s> q0 q1 </s> take 4 of 11 tokens, the last </s> one: 6 words to a chunk, a new one every 4.
    row = by_hand(13, (0, 5), (5, 11), short=(6, 8), gold=1)
    chosen = QuestionOptions(max_tokens=11, stride=4, markers=False, answer_types=5)
    first, second, third = chunk_features(row, words_tokenizer(), chosen)
    assert first["input_ids"] == [0, 4, 5, 1, *range(10, 16), 1]
    assert first["paragraph_ids"] == [-1] * 4 + [0] * 5 + [1] + [-1]
    assert first["token_spans"] == [NOWHERE] * 4 + [(0, 2), (3, 5), (6, 8), (9, 11), (12, 14), (15, 17)] + [NOWHERE]
    assert first["candidates"] == [0, 1]
    assert labels(first) == (0, 0, -100, 0)  # one word of the passage, and not the answer
    assert second["input_ids"] == [0, 4, 5, 1, *range(14, 20), 1]
    assert second["candidates"] == [0, 1]
    assert labels(second) == (4 + 2, 4 + 3, 1, 3)  # words 4–9: the answer is words 6 and 7
    assert third["input_ids"] == [0, 4, 5, 1, *range(18, 23), 1]
    assert third["candidates"] == [1]
    assert labels(third) == (0, 0, 0, 4)  # words 8–12: three of the passage's six, but not the answer


def test_an_answer_on_a_border_counts_where_it_is_whole() -> None:
    chosen = QuestionOptions(max_tokens=11, stride=4, markers=False)
    row = by_hand(10, (0, 10), short=(5, 7))
    first, second = chunk_features(row, words_tokenizer(), chosen)  # words 0–5 and 4–9
    assert labels(first) == (0, 0, 0, 1)  # six of the passage's ten words, the answer cut: only the passage is right
    assert labels(second) == (4 + 1, 4 + 2, 0, 1)
    row = by_hand(12, (5, 12), short=(5, 7))
    first, *_ = chunk_features(row, words_tokenizer(), chosen)
    assert labels(first) == (0, 0, -100, 0)  # one of seven words
    row = by_hand(12, (0, 12))
    chunks = chunk_features(row, words_tokenizer(), chosen)
    assert [labels(chunk) for chunk in chunks] == [(0, 0, 0, 1)] * 3  # a passage longer than a chunk fills each


def test_yes_no_and_several_short_spans() -> None:
    chosen = QuestionOptions(max_tokens=30, stride=8, markers=False, answer_types=5)
    row = by_hand(12, (2, 11), short=(3, 4))
    whole = Annotation(0, (row.annotations[0].short[0], Span(24, 26)))  # words 3 and 8
    for note, wanted in (
        (whole, (7, 12, 0, 3)),
        (Annotation(0, (), "yes"), (0, 0, 0, 1)),
        (Annotation(0, (), "no"), (0, 0, 0, 2)),
        (Annotation(None, (), "yes"), (0, 0, -100, 0)),
    ):
        changed = QuestionRow(
            id="r", question="q0 q1", text=row.text, candidates=row.candidates, annotations=(Annotation(), note)
        )
        (chunk,) = chunk_features(changed, words_tokenizer(), chosen)
        assert labels(chunk) == wanted
    unlabelled = QuestionRow(id="r", question="q0 q1", text=row.text, candidates=row.candidates)
    (chunk,) = chunk_features(unlabelled, words_tokenizer(), chosen)
    assert labels(chunk) == (None,) * 4


def test_the_first_annotation_with_short_answers_is_trained_on() -> None:
    row = by_hand(20, (0, 5), (5, 10), (10, 15), (15, 20))

    def gold(*notes: Annotation, **options: Any) -> tuple[Any, ...]:
        chosen = QuestionOptions(max_tokens=40, stride=8, markers=False, **options)
        changed = QuestionRow(id="r", question="q0", text=row.text, candidates=row.candidates, annotations=notes)
        (chunk,) = chunk_features(changed, words_tokenizer(), chosen)
        return labels(chunk)[:3]

    second, third = (
        Annotation(i, (Span(row.candidates[i].span.start, row.candidates[i].span.start + 2),)) for i in (1, 2)
    )
    assert gold(Annotation(), third, Annotation(0), second) == (3 + 5, 3 + 5, 1)
    assert gold(Annotation(3), Annotation(2), Annotation()) == (0, 0, 2)
    assert gold(third, max_candidates=2) == (0, 0, -100)  # only two passages can be chosen
    assert gold(third, Annotation(1), max_candidates=2) == (0, 0, 1)


def test_markers_stand_before_passages_and_are_numbered() -> None:
    row = by_hand(9, (1, 3), (3, 5), (6, 8), short=(4, 5), gold=1)
    kinds = ("table", "paragraph", "table")
    candidates = tuple(Candidate(c.span, kind) for c, kind in zip(row.candidates, kinds, strict=True))
    row = QuestionRow(id="r", question="q0", text=row.text, candidates=candidates, annotations=row.annotations)
    tokenizer = words_tokenizer()
    chosen = QuestionOptions(max_tokens=30, stride=20, max_candidates=2)
    tokenizer.add_tokens(marker_tokens(chosen), special_tokens=True)
    (chunk,) = chunk_features(row, tokenizer, chosen)
    passages = "[Candidate=1] [Table=1] w1 w2 [Candidate=2] [Paragraph=1] w3 w4"
    wanted = f"<s> q0 </s> w0 {passages} w5 w6 w7 w8 </s>".split(" ")
    assert tokenizer.convert_ids_to_tokens(chunk["input_ids"]) == wanted
    assert chunk["paragraph_ids"] == [-1] * 4 + [0] * 4 + [1] * 4 + [-1] * 5
    assert [chunk["token_spans"][place] for place in (4, 5, 8, 9)] == [NOWHERE] * 4
    assert labels(chunk) == (11, 11, 1, 1)
    everything = QuestionOptions(max_tokens=30, stride=20, max_candidates=0)
    tokenizer.add_tokens(marker_tokens(everything), special_tokens=True)
    (chunk,) = chunk_features(row, tokenizer, everything)
    assert tokenizer.convert_ids_to_tokens(chunk["input_ids"])[13:17] == ["[Candidate=3]", "[Table=2]", "w6", "w7"]


def test_a_passage_of_which_only_markers_are_visible_is_not_there() -> None:
    row = by_hand(8, (4, 8))
    tokenizer = words_tokenizer()
    chosen = QuestionOptions(max_tokens=11, stride=6, max_candidates=1)
    tokenizer.add_tokens(marker_tokens(chosen), special_tokens=True)
    first, second = chunk_features(row, tokenizer, chosen)
    assert tokenizer.convert_ids_to_tokens(first["input_ids"])[-3:] == ["[Candidate=1]", "[Paragraph=1]", "</s>"]
    assert (first["candidates"], set(first["paragraph_ids"])) == ([], {-1})
    assert labels(first) == (0, 0, -100, 0)
    assert second["candidates"] == [0]


def test_negatives_are_drawn_from_seed_row_and_chunk_alone() -> None:
    tokenizer = words_tokenizer()
    chosen = QuestionOptions(max_tokens=11, stride=4, markers=False, keep_negatives=0.5)
    row = by_hand(40, (0, 3), (3, 40), short=(1, 2))
    parts = {"question": "q0 q1", "text": row.text, "candidates": row.candidates, "annotations": row.annotations}
    rows = [QuestionRow(id=f"r{number}", **parts) for number in range(60)]

    def kept(seed: int, rows: list[QuestionRow], chosen: QuestionOptions = chosen) -> list[tuple[str, int]]:
        found = (
            (row.id, chunk)
            for row in rows
            for chunk in chunk_features(row, tokenizer, chosen, training=True, seed=seed)
        )
        return [(name, chunk["chunk"]) for name, chunk in found]

    every = {(row.id, chunk["chunk"]) for row in rows for chunk in chunk_features(row, tokenizer, chosen)}
    negatives = len(every) - len(rows)
    seen = kept(0, rows)
    assert {(row.id, 0) for row in rows} <= set(seen) < every
    assert abs(len(seen) - len(rows) - negatives / 2) < 3 * (negatives / 4) ** 0.5
    assert set(kept(0, rows[::-1])) == set(seen)
    assert set(kept(0, rows[7:9])) == {pair for pair in seen if pair[0] in {"r7", "r8"}}
    assert kept(1, rows) != seen
    none = QuestionOptions(max_tokens=11, stride=4, markers=False, keep_negatives=0)
    assert kept(0, rows, none) == [(row.id, 0) for row in rows]
    every_one = QuestionOptions(max_tokens=11, stride=4, markers=False, keep_negatives=1)
    assert set(kept(0, rows, every_one)) == every


def test_training_leaves_out_chunks_without_passages() -> None:
    chosen = QuestionOptions(max_tokens=11, stride=6, markers=False, keep_negatives=1)
    row = by_hand(20, (0, 3))
    assert len(chunk_features(row, words_tokenizer(), chosen)) == 4
    (only,) = chunk_features(row, words_tokenizer(), chosen, training=True)
    assert only["candidates"] == [0]


def test_a_document_of_one_token() -> None:
    (chunk,) = chunk_features(by_hand(1, (0, 1), short=(0, 1)), words_tokenizer(), QuestionOptions(markers=False))
    assert chunk["input_ids"] == [0, 4, 5, 1, 10, 1]
    assert labels(chunk) == (4, 4, 0, 1)


def question_row(question: str, text: str = "w1 w2") -> QuestionRow:
    return QuestionRow(id="7", question=question, text=text, candidates=(Candidate(Span(0, len(text))),))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question_row("  "), "the question of row '7' is empty"),
        (question_row("q0 " * 40), r"the question of row '7' has 40 tokens, which leaves 0 of max_tokens=40"),
        (question_row("q0 " * 33), r"has 33 tokens, which leaves 4 of max_tokens=40 .*raise max_tokens"),
        (question_row("q0", " \n"), "the document of row '7' is empty"),
        (question_row("q0", "a \ud800"), "the document of row '7' has half a character"),
    ],
)
def test_rows_that_make_no_chunk(row: QuestionRow, message: str) -> None:
    chosen = QuestionOptions(max_tokens=40, stride=5, markers=False)
    with pytest.raises(InputError, match=message):
        chunk_features(row, words_tokenizer(), chosen)


def test_long_questions_are_cut_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    row = question_row("q0 q1 " * 9)
    tokenizer = words_tokenizer()
    (whole,) = chunk_features(row, tokenizer, QuestionOptions(max_tokens=40, stride=5, markers=False))
    assert whole["question_tokens"] == 2 + 18
    chosen = QuestionOptions(max_tokens=40, stride=5, markers=False, max_question_tokens=3)
    with caplog.at_level(logging.WARNING, "longspan"):
        (cut,) = chunk_features(row, tokenizer, chosen)
    assert cut["input_ids"] == [0, 4, 5, 4, 1, 11, 12, 1]
    assert "max_question_tokens=3" in caplog.text


def test_tokenizers_that_cannot_serve_are_refused() -> None:
    chosen = QuestionOptions(markers=False)
    tokenizer = words_tokenizer()
    with pytest.raises(InputError, match=r"lacks 240 marker tokens"):
        chunk_features(question_row("q0"), tokenizer, QuestionOptions())
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="the tokenizer lacks a cls_token or bos_token"):
        chunk_features(question_row("q0"), tokenizer, chosen)

    class Slow:
        is_fast = False
        cls_token_id = sep_token_id = bos_token_id = eos_token_id = 0

    with pytest.raises(InputError, match="the tokenizer Slow gives no character offsets; use a fast tokenizer"):
        chunk_features(question_row("q0"), Slow(), chosen)


def test_collator_pads_and_makes_question_tokens_global() -> None:
    tokenizer = words_tokenizer()
    chosen = QuestionOptions(max_tokens=11, stride=4, markers=False, match_types=True)
    long, short = by_hand(6, (0, 6), short=(1, 2)), by_hand(2, (0, 2))
    short = QuestionRow(
        id="s", question="q0", text=short.text, candidates=short.candidates, annotations=(Annotation(),)
    )
    chunks = [*chunk_features(long, tokenizer, chosen), *chunk_features(short, tokenizer, chosen)]
    batch = collate(chunks, padding=2)
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        **dict.fromkeys(("input_ids", "attention_mask", "global_attention_mask", "paragraph_ids"), (2, 11)),
        "token_type_ids": (2, 11),
        **dict.fromkeys(("start_positions", "end_positions", "paragraph_labels", "answer_types"), (2,)),
    }
    assert batch["input_ids"][1].tolist() == [0, 4, 1, 10, 11, 1, 2, 2, 2, 2, 2]
    assert batch["attention_mask"][1].tolist() == [True] * 6 + [False] * 5
    assert batch["global_attention_mask"].tolist() == [[True] * 4 + [False] * 7, [True] * 3 + [False] * 8]
    assert batch["paragraph_ids"][1].tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, -1, -1, -1]
    assert batch["token_type_ids"][1].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert batch["start_positions"].tolist() == [5, 0]
    assert batch["paragraph_labels"].tolist() == [0, -100]
    assert batch["answer_types"].tolist() == [1, 0]
    assert batch["attention_mask"].dtype == batch["global_attention_mask"].dtype == torch.bool
    wide = collate(chunks, padding=2, multiple=8)
    assert wide["input_ids"].shape == (2, 16)
    assert torch.equal(wide["paragraph_ids"][:, :11], batch["paragraph_ids"])
    assert not (wide["global_attention_mask"] & ~wide["attention_mask"]).any()


def test_passage_types_reach_the_batch() -> None:
    tokenizer = words_tokenizer()
    chosen = QuestionOptions(max_tokens=11, stride=4, markers=False, match_types=True, passage_types=True)
    (chunk,) = chunk_features(by_hand(4, (1, 3)), tokenizer, chosen)
    types = collate([chunk], padding=2, passage_types=True)["token_type_ids"]
    before = chunk["question_tokens"]
    outside, inside = [1, 3, 15], [1, 4, 20]  # no passage; the first passage, brief with its two words
    assert types.shape == (1, len(chunk["input_ids"]), 3)
    assert types[0].tolist() == [*[[0, 3, 15]] * before, outside, inside, inside, outside, [0, 3, 15]]


def test_collator_without_labels() -> None:
    row = question_row("q0")
    (chunk,) = chunk_features(row, words_tokenizer(), QuestionOptions(markers=False))
    batch = collate([chunk], padding=2)
    assert set(batch) == {"input_ids", "attention_mask", "global_attention_mask", "paragraph_ids"}
