"""A document as tokens that know their characters and passages, and chunks of it, for all kinds of tokenizers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.questions.made_up import synthetic_questions
from longspan_documents.questions.rows import Annotation, Candidate, QuestionRow, Span, plain_row
from longspan_documents.questions.tokens import NOWHERE
from longspan_papers.natural_questions.document import tokenize_document, usable_candidates
from longspan_papers.natural_questions.features import ChunkFeatures, chunk_features
from longspan_papers.natural_questions.options import QuestionOptions, marker_tokens

CORPUS = [
    "The Zürich law of 1893 was, in its 2nd year, repealed by the King.\n\nA table: 東京 𝄞 and more\twords follow.",
    "What was repealed by whom?  Nothing was.\nநன்றி — “quoted” words, too; end.",
]
MARKERS = QuestionOptions(max_candidates=7)


def byte_level() -> PreTrainedTokenizerFast:
    return train_tokenizer(CORPUS, 300)


def unigram() -> PreTrainedTokenizerFast:
    """As SentencePiece makes them: white space is part of the word that follows."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()  # pyright: ignore[reportAttributeAccessIssue]
    backend.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def word_piece() -> Any:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "was",
        "repealed",
        "z",
        "##urich",
        "##s",
        "law",
        "to",
    ]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;:?—“”"
    pieces += [*letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizerFast(vocab={piece: place for place, piece in enumerate(pieces)}, do_lower_case=True)


TOKENIZERS = {"byte_level": byte_level, "unigram": unigram, "word_piece": word_piece}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    made = TOKENIZERS[request.param]()
    made.add_tokens(marker_tokens(MARKERS), special_tokens=True)
    return made


WORDS = ["The", "zürichs", "law", "was", "repealed", "1893,", "東京", "𝄞", "“to”", "</s>", "[Table=1]", "e\u0301té"]
GAPS = [" ", "  ", "\n", "\n\n", " \t "]


@st.composite
def rows(draw: st.DrawFn) -> QuestionRow:
    """A document of words and gaps whose passages, partly nested, lie at any characters; one annotation."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40))
    text = "".join(word + draw(st.sampled_from(GAPS)) for word in words)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    spans = [Span(*pair) for pair in zip(places[::2], places[1::2], strict=False)]
    kinds = st.sampled_from(["paragraph", "table", "list", "other"])
    candidates = [Candidate(span, draw(kinds), draw(st.booleans())) for span in spans]
    if spans and len(spans[0]) > 1:
        candidates.append(Candidate(Span(spans[0].start, spans[0].end - 1), "other", False))
    annotation = Annotation()
    if candidates:
        index = draw(st.integers(0, len(candidates) - 1))
        outer = candidates[index].span
        start = draw(st.integers(outer.start, outer.end))
        end = draw(st.integers(start, outer.end))
        annotation = Annotation(index, (Span(start, end),) if text[start:end].strip() else ())
    return QuestionRow(id="r", question="Was it?", text=text, candidates=tuple(candidates), annotations=(annotation,))


@st.composite
def options(draw: st.DrawFn) -> QuestionOptions:
    max_tokens = draw(st.integers(24, 60))
    return QuestionOptions(
        max_tokens=max_tokens,
        stride=draw(st.integers(1, max_tokens - 1)),
        max_question_tokens=5,
        max_candidates=draw(st.integers(1, 7)),
        markers=draw(st.booleans()),
        top_level_only=draw(st.booleans()),
        match_types=draw(st.booleans()),
        answer_types=draw(st.sampled_from([2, 5])),
    )


def document_part(chunk: ChunkFeatures, values: list[Any]) -> list[Any]:
    return values[chunk["question_tokens"] : -1]


@given(row=rows(), chosen=options())
def test_chunks_cover_the_document_exactly(tokenizer: Any, row: QuestionRow, chosen: QuestionOptions) -> None:
    stream = tokenize_document(row, tokenizer, chosen)
    chunks = chunk_features(row, tokenizer, chosen)
    size = chosen.max_tokens - chunks[0]["question_tokens"] - 1
    stride = min(chosen.stride, size)
    seen: set[int] = set()
    for number, chunk in enumerate(chunks):
        assert chunk["chunk"] == number
        assert len(chunk["input_ids"]) == len(chunk["paragraph_ids"]) == len(chunk["token_spans"]) <= chosen.max_tokens
        assert chunk["input_ids"][: chunk["question_tokens"]] == chunks[0]["input_ids"][: chunk["question_tokens"]]
        assert chunk["input_ids"][-1] == chunk["input_ids"][chunk["question_tokens"] - 1]
        inside = document_part(chunk, chunk["input_ids"])
        start = number * stride
        assert inside == stream.ids[start : start + size]
        assert document_part(chunk, chunk["token_spans"]) == stream.spans[start : start + size]
        seen |= set(range(start, start + len(inside)))
    assert seen == set(range(len(stream.ids)))
    assert len(chunks) == 1 or (len(chunks) - 2) * stride + size < len(stream.ids)
    plain = [id for id, marker in zip(stream.ids, stream.markers, strict=True) if not marker]
    found = tokenizer(row.text, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False)
    assert plain == found["input_ids"]


@given(row=rows(), chosen=options())
def test_characters_and_passages_of_tokens(tokenizer: Any, row: QuestionRow, chosen: QuestionOptions) -> None:
    stream = tokenize_document(row, tokenizer, chosen)
    covered: set[int] = set()
    for (start, end), marker in zip(stream.spans, stream.markers, strict=True):
        piece = row.text[start:end] if (start, end) != NOWHERE else ""
        assert (piece == piece.strip() != "") or (start, end) == NOWHERE
        assert not (marker and piece)
        covered |= set(range(start, end))
    assert all(row.text[place].isspace() for place in set(range(len(row.text))) - covered)
    kept = usable_candidates(row, chosen)
    ends = {index: (stream.tokens_of(row.candidates[index].span) or (0, 0))[1] for index in kept}
    # Of the passages around a token, the one that begins last is innermost; of two that begin together, the shorter.
    for (start, end), passage in zip(stream.spans, stream.passages, strict=True):
        around = [i for i in kept if row.candidates[i].span.start < end and row.candidates[i].span.end > start]
        inner = max(around, key=lambda i: (row.candidates[i].span.start, -ends[i], i), default=-1)
        assert passage == inner or (start, end) == NOWHERE
    for chunk in chunk_features(row, tokenizer, chosen):
        inside = chunk["paragraph_ids"]
        visible = {
            passage
            for passage, span in zip(inside, chunk["token_spans"], strict=True)
            if passage >= 0 and span != NOWHERE
        }
        assert visible == set(inside) - {-1} == set(range(len(chunk["candidates"])))
        assert set(inside[: chunk["question_tokens"]]) | {inside[-1]} == {-1}


@given(row=rows(), chosen=options())
def test_labels_follow_the_rules(tokenizer: Any, row: QuestionRow, chosen: QuestionOptions) -> None:
    stream = tokenize_document(row, tokenizer, chosen)
    (note,) = row.annotations
    for chunk in chunk_features(row, tokenizer, chosen):
        label = chunk.get("paragraph_labels")
        start, end, kind = (chunk.get(f"{name}") for name in ("start_positions", "end_positions", "answer_types"))
        assert start is not None
        assert end is not None
        if kind == 0:
            assert (start, end, label) == (0, 0, -100)
            if note.short and note.candidate in chunk["candidates"]:  # then some of the answer must be out of sight
                here, everywhere = (
                    sum(a < note.short[0].end and b > note.short[0].start for a, b in spans)
                    for spans in (chunk["token_spans"], stream.spans)
                )
                assert here < everywhere
            continue
        assert label is not None
        assert note.candidate == chunk["candidates"][label]
        assert note.candidate in usable_candidates(row, chosen)
        if start == 0:
            assert (end, kind) == (0, 4 if chosen.answer_types == 5 else 1)
            visible = chunk["paragraph_ids"].count(label)
            shown = len(chunk["input_ids"]) - chunk["question_tokens"] - 1
            assert 2 * visible >= min(stream.passages.count(note.candidate), shown)
            continue
        assert kind == (3 if chosen.answer_types == 5 else 1)
        span, spans = note.short[0], chunk["token_spans"]
        touched = {i for i, (a, b) in enumerate(spans) if a < span.end and b > span.start}
        assert (min(touched), max(touched)) == (start, end)
        assert spans[start][0] <= len(row.text[: span.end]) - len(row.text[span.start : span.end].lstrip())
        assert row.text[span.start : span.end].strip() in row.text[spans[start][0] : spans[end][1]]


def test_an_answer_keeps_the_marks_that_a_tokenizer_drops() -> None:
    """Uncased vocabularies drop accents and the vowel signs of Thai; composing ones lose the second character."""
    text = "a cafe\u0301 ที่ นี่"
    for make in (byte_level, unigram, word_piece):
        row = QuestionRow(id="r", question="what", text=text, candidates=(Candidate(Span(0, len(text))),))
        (chunk,) = chunk_features(row, make(), QuestionOptions(markers=False))
        covered = {place for span in chunk["token_spans"] if span != NOWHERE for place in range(*span)}
        assert covered == {place for place, character in enumerate(text) if character != " "}


def test_match_types_mark_the_words_of_the_question() -> None:
    row = plain_row("The Law's end: a lawyer, LAW zürich", "What is Zürich's law?")
    chosen = QuestionOptions(max_tokens=400, stride=90, match_types=True, max_candidates=7)
    for make in (byte_level, unigram, word_piece):
        tokenizer = make()
        tokenizer.add_tokens(marker_tokens(chosen), special_tokens=True)
        (chunk,) = chunk_features(row, tokenizer, chosen)
        types = chunk.get("token_type_ids")
        assert types is not None
        for kind, (start, end) in zip(types, chunk["token_spans"], strict=True):
            piece = row.text[start:end]
            matched = any(a < end and b > start for a, b in ((4, 7), (8, 9), (25, 28), (29, 35)))
            if (start, end) != NOWHERE:
                assert kind == (2 if matched else 1), piece
        assert set(types[: chunk["question_tokens"]]) | {types[-1]} == {0}
        assert types[chunk["question_tokens"]] == 0  # the first marker


def test_text_without_tokens_is_refused() -> None:
    tokenizer = word_piece()
    chosen = QuestionOptions(markers=False)
    with pytest.raises(InputError, match="the document of row 'document' has no tokens in this tokenizer"):
        chunk_features(plain_row("\u200b\x01", "was it"), tokenizer, chosen)
    with pytest.raises(InputError, match="the question of row 'document' has no tokens in this tokenizer"):
        chunk_features(plain_row("was it", "\x01"), tokenizer, chosen)


def test_every_made_up_answer_is_found_by_its_characters() -> None:
    tokenizer = byte_level()
    chosen = QuestionOptions(max_tokens=256, stride=100, max_candidates=7)
    tokenizer.add_tokens(marker_tokens(chosen), special_tokens=True)
    for row in synthetic_questions(12, seed=0):
        (note,) = row.annotations
        found = [chunk for chunk in chunk_features(row, tokenizer, chosen) if chunk.get("start_positions")]
        if note.candidate is None or note.candidate >= 7:
            assert not found
            continue
        assert found
        for chunk in found:
            start, end = (chunk["token_spans"][chunk.get(f"{name}_positions", 0)] for name in ("start", "end"))
            assert row.text[start[0] : end[1]] == row.answer(note.short[0])
