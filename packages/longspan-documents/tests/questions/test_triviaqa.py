"""TriviaQA: the release's layout as folder, archive and file; where answers stand; what is malformed."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.questions.spans import read_spans
from longspan_documents.questions.triviaqa import first_words, normalized_alias, occurrences

QUESTION = {
    "QuestionId": "tc_1",
    "Question": "Who dug?",
    "Answer": {"Value": "Karl", "NormalizedAliases": ["karl", "karl digger"]},
    "EntityPages": [{"Filename": "Pond.txt"}, {"Filename": "Rose.txt"}],
}
PAGES = {"Pond.txt": b"Karl dug it: Karl, the Digger.", "Rose.txt": b"Anna grew one."}


def release(folder: Path, *questions: object, name: str = "wikipedia-train.json", pages: dict = PAGES) -> Path:
    (folder / "qa").mkdir(parents=True, exist_ok=True)
    (folder / "evidence/wikipedia").mkdir(parents=True, exist_ok=True)
    (folder / "qa" / name).write_text(json.dumps({"Data": list(questions), "Split": "train"}), encoding="utf-8")
    for page, content in pages.items():
        (folder / "evidence/wikipedia" / page).write_bytes(content)
    return folder


def packed(folder: Path, file: Path) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder, arcname="./triviaqa-rc")
    return file


def test_folder_archive_and_file_give_the_same(tmp_path: Path) -> None:
    folder = release(tmp_path / "rc", QUESTION)
    release(folder, {**QUESTION, "QuestionId": "tc_2"}, name="wikipedia-dev.json")
    first, second = read_spans(folder, "train")
    assert (first.id, first.question, first.accepted) == ("tc_1", "Who dug?", ("karl", "karl digger"))
    assert first.answers == ((0, "Karl"), (13, "Karl"), (13, "Karl, the Digger"))
    assert (second.id, second.context, second.answers) == ("tc_1", "Anna grew one.", ())
    assert list(read_spans(packed(folder, tmp_path / "rc.tar.gz"), "train")) == [first, second]
    assert list(read_spans(folder / "qa/wikipedia-train.json")) == [first, second]
    assert [row.id for row in read_spans(folder, "validation")] == ["tc_2", "tc_2"]
    assert [row.answers for row in read_spans(folder, "train", max_words=3)] == [((0, "Karl"),), ()]


@pytest.mark.usefixtures("data_folder")
def test_the_sample_is_read_as_published() -> None:
    rows = list(read_spans("triviaqa-sample", "train", max_words=4096))
    assert [row.id for row in rows] == ["tc_3", "tc_3", "tc_8", "tc_8", "tc_8", "tc_9", "tc_10"]
    assert all(len(row.context.split()) <= 4096 for row in rows)
    assert all(row.context[start : start + len(words)] == words for row in rows for start, words in row.answers)
    assert rows[-1].answers == ((100, "Chicago Bears"), (3341, "Chicago Bears"))
    assert [row.id for row in read_spans("triviaqa-sample", "validation")] == ["tc_33", "tc_40", "tc_40"]


@pytest.mark.parametrize(
    ("text", "accepted", "found"),
    [
        ("The Beatles and a beatle.", ("beatles",), [(4, "Beatles")]),
        ("O'Brien, obrien; O’BRIEN", ("o brien",), [(0, "O'Brien"), (17, "O’BRIEN")]),
        ("Paris, Paris_Texas.", ("paris texas", "paris"), [(0, "Paris"), (7, "Paris"), (7, "Paris_Texas")]),
        ("party art", ("art",), [(6, "art")]),
        ("Lord of the Rings", ("lord of rings",), [(0, "Lord of the Rings")]),
        ("nothing here", ("",), []),
    ],
)
def test_answers_are_found_word_by_word(text: str, accepted: tuple[str, ...], found: list[tuple[int, str]]) -> None:
    assert occurrences(text, accepted) == found


def test_aliases_are_normalised_as_in_the_official_evaluation() -> None:
    assert normalized_alias("The_Beatles’ “Help!”  an  L.P.") == "beatles “help ” l p"
    assert normalized_alias("A–Z") == "–z"  # an article stands beside any mark, ASCII or not
    assert first_words("one  two\nthree four", 3) == "one  two\nthree"
    assert first_words("one", 3) == "one"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Question": " "}, "question 1: the question"),
        ({"Question": None}, "question 1: the question .* is null"),
        ({"EntityPages": []}, "field 'EntityPages' is empty, so that there is no page"),
        ({"EntityPages": "a"}, "field 'EntityPages' of the record holds a str instead of a list"),
        ({"EntityPages": [{"Title": "x"}]}, "an entity page has no field 'Filename'"),
        ({"EntityPages": [{"Filename": "../../secret.txt"}]}, "is no name of a file below evidence/wikipedia"),
        ({"EntityPages": [{"Filename": "None.txt"}]}, "None.txt does not exist"),
        ({"EntityPages": [{"Filename": "Latin.txt"}]}, "the page 'Latin.txt' is not UTF-8 at byte 3"),
        ({"EntityPages": [{"Filename": "Empty.txt"}]}, "the page 'Empty.txt' is empty"),
        ({"Answer": {}}, "field 'Answer' has no field 'NormalizedAliases'"),
        ({"Answer": {"NormalizedAliases": ["!"]}}, "has no name with a letter or digit"),
        ({"Answer": {"NormalizedAliases": [3]}}, "an alias is 3; give texts"),
    ],
)
def test_bad_questions_are_named_or_passed_over(change: dict, message: str, tmp_path: Path) -> None:
    pages = {**PAGES, "Latin.txt": b"caf\xe9", "Empty.txt": b"\n"}
    folder = release(tmp_path / "rc", QUESTION | change, QUESTION, pages=pages)
    with pytest.raises(InputError, match=message):
        list(read_spans(folder))
    assert len(list(read_spans(folder, on_error="skip"))) == 2


def test_bad_releases_are_named(tmp_path: Path) -> None:
    folder = release(tmp_path / "rc", QUESTION)
    with pytest.raises(InputError, match=r"split='test' is not in .*, whose qa/ has wikipedia-train.json"):
        list(read_spans(folder, "test"))
    release(folder, {key: value for key, value in QUESTION.items() if key != "Answer"}, name="wikipedia-dev.json")
    with pytest.raises(InputError, match="question 1: the record has no field 'Answer'"):
        list(read_spans(folder, "dev"))
    (folder / "qa/wikipedia-dev.json").rename(folder / "qa/wikipedia-test-without-answers.json")
    assert [row.accepted for row in read_spans(folder, "test")] == [(), ()]
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    whole = packed(folder, tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    for name in ("a", "b"):
        with pytest.raises(InputError, match="damaged"):
            list(read_spans(tmp_path / f"{name}.tar.gz"))
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("qa/wikipedia-train.json"), io.BytesIO())
    with pytest.raises(InputError, match=r"qa/wikipedia-train.json is not JSON"):
        list(read_spans(tmp_path / "c.tar"))
