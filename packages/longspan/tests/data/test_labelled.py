"""Labelled documents: files with columns, folders of texts, cleaning, parts by a hash; one sentence for mistakes."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longspan.data.fields import ROW_FIELDS
from longspan.data.labelled import (
    PARTS,
    clean,
    cleaning,
    is_in,
    percent_of,
    read_labelled,
    read_texts,
    synthetic_labelled,
)
from longspan.errors import InputError


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def imdb(folder: Path) -> Path:
    """A folder as IMDB's release has it: lists beside the texts, and texts without a label."""
    for split in ("train", "test"):
        for label in ("pos", "neg", *(["unsup"] if split == "train" else [])):
            place = folder / split / label
            place.mkdir(parents=True)
            for number in range(20):
                (place / f"{number}_7.txt").write_text(f"{split} {label} review {number}")
        (folder / split / "urls_pos.txt").write_text("http://www.imdb.com")
    (folder / "README").write_text("reviews")
    return folder


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_tables(name: str, separator: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f'id{separator}body{separator}topic\n7{separator}"two\nlines"{separator}3\n')
    (row,) = read_labelled(path)
    assert (row.id, row.text, row.label) == ("7", "two\nlines", "3")


def test_a_json_array_is_a_table_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a b", "label": 1}, {"id": "x", "text": "c", "label": 2}], indent=2))
    assert [(row.id, row.text, row.label) for row in read_labelled(path)] == [("a:1", "a b", "1"), ("x", "c", "2")]
    assert list(read_texts(path)) == [("element 1", "a b"), ("x", "c")]
    path.write_text(json.dumps([{"text": "a b", "label": 1}, {"text": " ", "label": 2}]))
    with pytest.raises(InputError, match=r"a\.json, element 2: the text is blank"):
        list(read_labelled(path))
    # JSON Lines under the same name.
    assert [row.label for row in read_labelled(write(path, {"text": "a", "label": 3}))] == ["3"]


def test_labels_in_words_and_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"text": "a b", "label": value} for value in (True, 2, 2.0, " spam ")))
    assert [row.label for row in read_labelled(path)] == ["true", "2", "2", "spam"]
    path = write(tmp_path / "b.jsonl", {"x": "words", "y": "ham", "text": "not these", "label": "nor this"})
    (row,) = read_labelled(path, text_field="x", label_field="y")
    assert (row.id, row.text, row.label) == ("b:1", "words", "ham")


def test_imdb(tmp_path: Path) -> None:
    folder = imdb(tmp_path / "aclImdb")
    train, validation, test = (list(read_labelled(folder, split)) for split in ("train", "dev", "test"))
    assert len(test) == 40
    assert len(train) + len(validation) == 40
    assert {row.label for row in train} == {"pos", "neg"}
    assert all(percent_of(row.text) < 10 for row in validation)
    assert test[0].id == "test/neg/0_7"
    # A split of its own is taken as it is.
    place = folder / "valid" / "pos"
    place.mkdir(parents=True)
    (place / "1.txt").write_text("words")
    assert [row.text for row in read_labelled(folder, "validation")] == ["words"]
    assert len(list(read_labelled(folder, "train"))) == 40


def test_folders_without_splits_are_divided(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(30):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}")
    parts = {name: [row.id for row in read_labelled(tmp_path, name)] for name in PARTS}
    assert sum(map(len, parts.values())) == len({name for names in parts.values() for name in names}) == 60
    assert len(parts["train"]) > 40


def test_a_hash_divides_files(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", *({"text": f"text {n % 250}", "label": n % 2} for n in range(500)))
    parts = {name: {row.text for row in read_labelled(path, name, by_hash=True)} for name in PARTS}
    assert sum(map(len, parts.values())) == 250  # equal texts are in one part
    assert 180 < len(parts["train"]) < 220
    assert all(is_in(text, name) for name, texts in parts.items() for text in texts)
    assert percent_of("a text") == 56  # on every machine and in every version
    assert len(list(read_labelled(path, "validation"))) == 500  # without it a file is read whatever the split


def test_hyperpartisan(data_folder: Path) -> None:
    for split, count, found in (("train", 516, 187), ("validation", 64, 26)):
        rows = list(read_labelled("hyperpartisan", split))
        assert len(rows) == count
        assert sum(row.label == "hyperpartisan" for row in rows) == found
        assert not {row.label for row in rows} - {"hyperpartisan", "mainstream"}


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("see https://a.b/c?d=1#e, and www.x.org now", "see and now"),
        ("(http://a.b/c) or “https://a.b”", "( ) or “ ”"),
        ("what?! no!!! . . . well -- so...", "what?! no! . well - so."),
        ("sooooo good, bookkeeper, aaa", "so good, bookkeeper, aaa"),
        ("10000 and 55555", "10000 and 55555"),
        (" one\n\n two\tthree ", "one two three"),
        ("", ""),
    ],
)
def test_cleaning(text: str, cleaned: str) -> None:
    assert cleaning().normalize_str(text) == cleaned
    assert clean(text) == cleaned
    assert clean(cleaned) == cleaned


PIECES = (
    *("http://a.b/c", "HTTPS://Z.q)", "www.x.org", "wwww.y", "aaaa", "soooo", "1111"),
    *("<", "”", "!", "?", ".", "_", "²", "\u0301", " ", "\n", "\x1f", "\u3000"),
)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES) | st.characters()).map("".join))
def test_a_tokenizer_cleans_as_python_does(text: str) -> None:
    assume("Cn" not in map(unicodedata.category, text))
    assert cleaning().normalize_str(text) == clean(text)


def test_synthetic_rows_repeat() -> None:
    rows = synthetic_labelled(4, seed=3)
    assert rows == synthetic_labelled(4, seed=3) != synthetic_labelled(4, seed=4)
    assert [row.label for row in rows] == ["good", "bad"] * 2


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"label": "a"}, "no column text, document"),
        ({"text": "words"}, "name the one of the labels in task.label_field"),
        ({"text": "  ", "label": "a"}, "the text is blank"),
        ({"text": {"a": "words"}, "label": "a"}, "the text is a dict"),
        ({"text": ["words", 3], "label": "a"}, "the text holds an int; it must be a text or a list of texts"),
        ({"text": "words", "label": None}, "the label is null"),
        ({"text": "words", "label": ""}, "the label is blank"),
        ({"text": "words", "label": 0.5}, "the label is a float"),
        ({"text": "words", "label": ["a", "b"]}, "the label is a list"),
        ({"text": "half \ud800", "label": "a"}, "surrogate"),
    ],
)
def test_bad_records_say_where_and_what(record: object, words: str, tmp_path: Path, caplog) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "fine", "label": "a"}, record)
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: ") as caught:
        list(read_labelled(path))
    assert words in str(caught.value)
    assert [row.text for row in read_labelled(path, on_error="skip")] == ["fine"]
    assert "1 corrupt record was skipped" in caplog.text


def test_bad_files(tmp_path: Path) -> None:
    named = tmp_path / "named.csv"
    named.write_text("words,kind\na,b\n")
    with pytest.raises(InputError, match=r"no column 'body'; there is kind, words; name .* task\.text_field"):
        list(read_labelled(named, text_field="body"))
    latin = tmp_path / "latin.csv"
    latin.write_bytes("text,label\ncafé,a\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        list(read_labelled(latin))
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(InputError, match="is empty"):
        list(read_labelled(empty))
    with pytest.raises(InputError, match="split='extra' is none that a hash divides into"):
        read_labelled(named, "extra", by_hash=True)


def test_bad_folders(tmp_path: Path) -> None:
    folder = imdb(tmp_path / "aclImdb")
    with pytest.raises(InputError, match=r"has no split='extra'; it has train, test, validation"):
        list(read_labelled(folder, "extra"))
    (folder / "test" / "neg" / "0_7.txt").write_bytes(b"caf\xe9")
    (folder / "test" / "pos" / "0_7.txt").write_text(" \n")
    with pytest.raises(InputError, match=r"0_7\.txt is not UTF-8 .* skip passes over"):
        list(read_labelled(folder, "test"))
    assert len(list(read_labelled(folder, "test", on_error="skip"))) == 38


@pytest.mark.parametrize("name", ROW_FIELDS)
def test_every_known_name_of_a_text_is_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [{name: "one text", "label": 1, "origin": "x"}, {name: ["two", ["parts"]], "label": 2, "origin": "x"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row.text for row in read_labelled(file)] == ["one text", "two\nparts"]
    assert [text for _, text in read_texts(file)] == ["one text", "two\nparts"]
