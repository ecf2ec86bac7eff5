"""Natural Questions: both formats of one record agree, offsets are exact, and malformed records say what is wrong."""

import html
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan_documents.questions.rows import Annotation, Place, QuestionRow, Span
from longspan_papers.natural_questions.formats import natural_question
from longspan_papers.natural_questions.reading import read_questions
from spoilt import changed

PAGE = (
    '<html><body>\n<H1>Zürich &amp; Co</H1><P class="x">Zürich is <b>schön</b> — and 東京 𝄞 too.</P>\n'
    '<Table><Tr><Td colspan="2">Élan</Td><Td>7</Td></Tr></Table><P></P><Ul><Li>One</Li></Ul></body></html>'
)
KEPT = {"h1", "p", "table", "tr", "td", "ul", "li"}
"""Tags that become tokens; the published data too leaves out those within lines, such as `<b>`."""


def original_record(page: str) -> dict[str, Any]:
    """A record of the original format: tags and words with their byte offsets in the page."""
    tokens = []
    for match in re.finditer(r"<[^>]*>|&\w+;|\w+|[^\w\s<]", page):
        word = match.group()
        tag = re.match(r"</?(\w+)", word) if word[0] == "<" else None
        if tag and tag.group(1).lower() not in KEPT:
            continue
        start, end = (len(page[:place].encode()) for place in match.span())
        token = word if tag else html.unescape(word)
        tokens.append({"token": token, "html_token": bool(tag), "start_byte": start, "end_byte": end})
    return {
        "example_id": -5,
        "question_text": "what is zürich",
        "question_tokens": ["what", "is", "zürich"],
        "document_title": "Zürich & Co",
        "document_html": page,
        "document_tokens": tokens,
        "long_answer_candidates": [],
        "annotations": [annotation()],
    }


def annotation(candidate: int = -1, long: tuple[int, int] = (-1, -1), *short: tuple[int, int], **more: Any) -> dict:
    return {
        "annotation_id": 1,
        "long_answer": {"start_token": long[0], "end_token": long[1], "candidate_index": candidate},
        "short_answers": [{"start_token": start, "end_token": end} for start, end in short],
        "yes_no_answer": "NONE",
        **more,
    }


def place_of(record: dict[str, Any], *tokens: str) -> int:
    names = [entry["token"] for entry in record["document_tokens"]]
    return next(i for i in range(len(names)) if names[i : i + len(tokens)] == list(tokens))


def page_record() -> dict[str, Any]:
    """Candidates: the paragraph, the table, its row, an empty paragraph, the list."""
    record = original_record(PAGE)
    tokens = record["document_tokens"]
    spans = []
    for opening, closing, top in (("<P", "</P>", True), ("<Table", "</Table>", True), ("<Tr", "</Tr>", False)):
        start = next(i for i, entry in enumerate(tokens) if entry["token"].startswith(opening))
        end = next(i for i in range(start, len(tokens)) if tokens[i]["token"] == closing) + 1
        spans.append((start, end, top))
    empty = place_of(record, "<P>", "</P>")
    spans += [(empty, empty + 2, True), (place_of(record, "<Ul>"), place_of(record, "</Ul>") + 1, True)]
    record["long_answer_candidates"] = [
        {
            "start_token": start,
            "end_token": end,
            "start_byte": tokens[start]["start_byte"],
            "end_byte": tokens[end - 1]["end_byte"],
            "top_level": top,
        }
        for start, end, top in spans
    ]
    short = place_of(record, "is", "schön")
    record["annotations"] = [
        annotation(0, spans[0][:2], (short, short + 2), (short + 4, short + 7)),
        annotation(2, spans[2][:2], yes_no_answer="YES"),
        annotation(),
    ]
    return record


def simplified(record: dict[str, Any]) -> dict[str, Any]:
    """The simplified format of a record: as published, spaces within tokens are underscores, bytes are gone."""

    def without_bytes(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_bytes(inner) for key, inner in value.items() if not key.endswith("_byte")}
        return [without_bytes(inner) for inner in value] if isinstance(value, list) else value

    kept = ("example_id", "question_text", "long_answer_candidates", "annotations")
    text = " ".join(entry["token"].replace(" ", "_") for entry in record["document_tokens"])
    return {"document_text": text, "document_url": "", **{name: without_bytes(record[name]) for name in kept}}


def plain(fragment: bytes) -> list[str]:
    """Words of a piece of HTML, by other means than the reader's."""
    return re.findall(r"\w+|[^\w\s]", html.unescape(re.sub(r"<[^>]*>", " ", fragment.decode())))


def test_a_page_by_hand() -> None:
    row = natural_question(page_record())
    assert row.text == "Zürich & Co Zürich is schön — and 東京 𝄞 too . Élan 7 One"
    assert (row.id, row.question, row.title, row.source) == ("-5", "what is zürich", "Zürich & Co", "nq")
    texts = [row.answer(candidate.span) for candidate in row.candidates]
    assert texts == ["Zürich is schön — and 東京 𝄞 too .", "Élan 7", "Élan 7", "", "One"]
    assert [c.kind for c in row.candidates] == ["paragraph", "table", "other", "paragraph", "list"]
    assert [c.top_level for c in row.candidates] == [True, True, False, True, True]
    first, second, third = row.annotations
    assert [row.answer(span) for span in first.short] == ["is schön", "東京 𝄞 too"]
    assert (first.candidate, first.yes_no) == (0, "none")
    assert second == Annotation(2, (), "yes")
    assert third == Annotation(None, (), "none")


def test_offsets_are_those_of_the_record_and_cut_the_html() -> None:
    record = page_record()
    row = natural_question(record)
    page = record["document_html"].encode()
    for candidate, entry in zip(row.candidates, record["long_answer_candidates"], strict=True):
        found = row.original(candidate)
        assert found == {name: entry[name] for name in ("start_token", "end_token", "start_byte", "end_byte")}
        fragment = page[found["start_byte"] : found["end_byte"]]
        assert fragment.startswith(b"<")
        assert plain(fragment) == row.answer(candidate.span).split()
    short = row.annotations[0].short
    found = row.original(short[0])
    assert {name: found[name] for name in ("start_token", "end_token")} == record["annotations"][0]["short_answers"][0]
    assert page[found["start_byte"] : found["end_byte"]].decode() == "is <b>schön"
    found = row.original(short[1])
    assert page[found["start_byte"] : found["end_byte"]].decode() == row.answer(short[1]) == "東京 𝄞 too"


def test_annotations_keep_the_places_that_were_published() -> None:
    record = page_record()
    tokens = record["document_tokens"]
    start, end = record["long_answer_candidates"][0]["start_token"], record["long_answer_candidates"][0]["end_token"]
    entries = [(start, start + 2), (end - 3, end), (start, start + 1), (start + 1, start + 3)]
    record["annotations"] = [annotation(0, (start, end), *entries)]
    row = natural_question(record)
    (said,) = row.annotations
    # As labels without tags: "<P>" at the edge goes, one of nothing but "<P>" goes whole.
    assert [row.answer(span) for span in said.short] == ["Zürich", "too .", "Zürich is"]
    # As the metric sees them, with the bytes of the tokens at their edges.
    places = row.short_places(said)
    assert [(place.start_token, place.end_token) for place in places] == entries
    assert [(place.start_byte, place.end_byte) for place in places] == [
        (tokens[first]["start_byte"], tokens[last - 1]["end_byte"]) for first, last in entries
    ]
    # A record that names bytes itself is taken at its word.
    record["annotations"][0]["short_answers"][0] |= {"start_byte": 7, "end_byte": 9}
    record["annotations"][0]["long_answer"] |= {"start_byte": 5, "end_byte": 80}
    row = natural_question(record)
    assert row.short_places(row.annotations[0])[0] == Place(start, start + 2, 7, 9)
    assert row.long_place(row.annotations[0]) == Place(start, end, 5, 80)
    # Where nothing differs, nothing is kept twice.
    plain_places = natural_question(page_record()).annotations[0]
    assert plain_places.long_place is plain_places.short_places is None


@given(st.data())
def test_tokens_and_characters_map_both_ways(data: st.DataObject) -> None:
    record = page_record()
    row = natural_question(record)
    tokens = record["document_tokens"]
    assert row.tokens is not None
    start = data.draw(st.sampled_from([i for i, entry in enumerate(tokens) if not entry["html_token"]]))
    end = data.draw(st.sampled_from([i for i in range(start, len(tokens)) if not tokens[i]["html_token"]])) + 1
    span = row.tokens.span(start, end)
    words = [entry["token"] for entry in tokens[start:end] if not entry["html_token"]]
    assert row.answer(span) == " ".join(words)
    found = row.original(span)
    assert (found["start_token"], found["end_token"]) == (start, end)
    fragment = record["document_html"].encode()[found["start_byte"] : found["end_byte"]]
    assert plain(fragment) == words


def test_both_formats_give_the_same_row() -> None:
    record = page_record()
    del record["document_title"]  # the simplified format takes it from the heading
    for entry in [*record["document_tokens"], *record["long_answer_candidates"]]:
        entry["start_byte"] = entry["end_byte"] = -1
    assert natural_question(record) == natural_question(simplified(record))
    assert natural_question(record).title == "Zürich & Co"
    with_bytes, without = natural_question(page_record()), natural_question(simplified(page_record()))
    assert (with_bytes.text, with_bytes.annotations) == (without.text, without.annotations)
    assert without.original(without.candidates[0])["start_byte"] == -1
    assert without.original(without.annotations[0].short[0])["end_byte"] == -1


@given(st.lists(st.sampled_from(["<P>", "</P>", '<Td_colspan="2">', "<", ">", "<dig", "a", "é", "\xa0", "", "b_c"])))
def test_simplified_text_splits_into_the_tokens_that_made_it(words: list[str]) -> None:
    record = simplified(page_record()) | {"long_answer_candidates": [], "annotations": [annotation()]}
    words = [*words, "end"]
    row = natural_question(record | {"document_text": " ".join(words)})
    tags = {"<P>", "</P>", '<Td_colspan="2">'}
    real = [place for place, word in enumerate(words) if word not in tags and word.strip()]
    assert row.text == " ".join(words[place] for place in real)
    assert row.tokens is not None
    assert list(row.tokens.tokens) == real
    for place in real:
        span = row.tokens.span(place, place + 1)
        assert row.answer(span) == words[place]
        assert row.original(span)["start_token"] == place


def test_question_tokens_serve_where_the_text_is_missing() -> None:
    record = page_record()
    del record["question_text"], record["example_id"]
    row = natural_question(record, "file:3")
    assert (row.question, row.id) == ("what is zürich", "file:3")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("annotations", ..., "the record has no field 'annotations'; it has .*question_text"),
        ("annotations", [], "field 'annotations' is empty"),
        ("annotations", None, "field 'annotations' of the record holds null instead of a list"),
        ("annotations.0", 3, r"annotations\[0\] is an int instead of an object"),
        ("annotations.0.long_answer", ..., r"annotations\[0\] has no field 'long_answer'"),
        (
            "annotations.0.long_answer.candidate_index",
            5,
            r"annotations\[0\].long_answer names candidate 5, but .* 5 can",
        ),
        ("annotations.0.long_answer.candidate_index", -2, "names candidate -2"),
        ("annotations.0.long_answer.candidate_index", True, "holds a bool instead of a whole number"),
        ("annotations.0.long_answer.candidate_index", 1, "but its candidate 1 is tokens"),
        ("annotations.0.long_answer.candidate_index", -1, "but its candidate -1 is tokens -1–-1"),
        ("annotations.0.short_answers", ..., r"annotations\[0\] has no field 'short_answers'"),
        ("annotations.0.short_answers.0.end_token", 900, r"short_answers\[0\] is tokens \d+–900 of a document with"),
        ("annotations.0.short_answers.0.start_token", 1, r"is tokens 1–\d+, outside its long answer \(tokens 5–"),
        ("annotations.2.short_answers", [{"start_token": 7, "end_token": 8}], r"outside its long answer \(none\)"),
        ("annotations.0.yes_no_answer", "MAYBE", r"'yes_no_answer' of annotations\[0\] is 'MAYBE'"),
        ("long_answer_candidates", ..., "no field 'long_answer_candidates'"),
        ("long_answer_candidates", {}, "holds a dict instead of a list"),
        ("long_answer_candidates.1", None, r"long_answer_candidates\[1\] is null instead of an object"),
        ("long_answer_candidates.1.end_token", 99, r"long_answer_candidates\[1\] is tokens \d+–99 of a document with"),
        ("long_answer_candidates.1.end_token", 2, r"is tokens \d+–2 of a document"),
        ("long_answer_candidates.1.start_token", "3", "holds a str instead of a whole number"),
        ("long_answer_candidates.1.top_level", 1, "holds an int instead of true or false"),
        ("long_answer_candidates.1.start_byte", 1.5, "holds a float instead of a whole number"),
        ("question_text", "  ", r"the question \(field 'question_text'\) is empty"),
        ("question_text", 7, "is an int instead of a text"),
        ("document_tokens", [], "only HTML tokens and no text"),
        ("document_tokens", "text", "holds a str instead of a list"),
        ("document_tokens.3.token", ..., "entries without 'token' and 'html_token'"),
        ("document_tokens.3", "word", "entries without 'token' and 'html_token'"),
        ("document_tokens.3.token", None, "has null as token instead of a str"),
        ("document_tokens.3.html_token", 0, "has an int as html_token instead of a bool"),
        ("document_tokens.3.start_byte", 2**70, "a byte offset that no document has"),
        ("document_tokens.3.token", "\ud800", "half a character"),
    ],
)
def test_malformed_records_are_refused_in_one_sentence(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        natural_question(changed(page_record(), path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("document_text", "<P> </P> <Ul> </Ul>", "only HTML tokens and no text"),
        ("document_text", "", r"the document \(field 'document_text'\) is empty"),
        ("document_text", None, "is null instead of a text"),
        ("question_text", ..., "no field 'question_text'"),
    ],
)
def test_malformed_simplified_records(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        natural_question(changed(simplified(page_record()), path, value))


def test_the_published_rows_agree_in_both_formats(data_folder: Path) -> None:
    rows = list(read_questions(data_folder / "natural_questions/simplified_sample.jsonl.gz"))
    assert rows == list(read_questions(data_folder / "natural_questions/original_format_converted.jsonl.gz"))
    champions, second = rows
    assert champions.title == "List of WWE champions"
    assert [len(row.candidates) for row in rows] == [236, 37]
    assert champions.annotations == (Annotation(),)
    (note,) = second.annotations
    assert note.candidate == 15
    assert second.original(second.candidates[15]) == {
        "start_token": 212,
        "end_token": 310,
        "start_byte": -1,
        "end_byte": -1,
    }
    found = second.original(note.short[0])
    assert (found["start_token"], found["end_token"]) == (213, 215)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "rows"), [("train", 88), ("validation", 16)])
def test_every_derived_row_is_read_and_goes_back(data_folder: Path, split: str, rows: int) -> None:
    count = 0
    for row in read_questions(data_folder / "natural_questions", split):
        count += 1
        check_goes_back(row)
    assert count == rows


def check_goes_back(row: QuestionRow) -> None:
    assert row.tokens is not None
    for candidate in row.candidates[:: max(1, len(row.candidates) // 50)]:
        found = row.original(candidate)
        assert row.tokens.span(found["start_token"], found["end_token"]) == candidate.span
    for note in row.annotations:
        for span in note.short:
            assert note.candidate is not None
            outer = row.candidates[note.candidate].span
            assert outer.start <= span.start < span.end <= outer.end
            found = row.original(span)
            assert row.tokens.span(found["start_token"], found["end_token"]) == span
    starts = list(row.tokens.starts[:500])
    assert all(row.text[right - 1] == " " for _, right in pairwise(starts))
    assert Span(0, len(row.text)) == row.tokens.span(0, 10**9)
