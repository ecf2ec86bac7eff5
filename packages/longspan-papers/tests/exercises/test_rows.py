"""Stories in the format of bAbI: facts before a question, new stories, folders of tasks, lines that are wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan.tasks.exercises.rows import read_stories

STORIES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel? \thallway\t4
1 Sandra took the apple.
2 What is Sandra carrying?\tapple,football\t1 2
"""


def test_a_question_is_asked_about_the_facts_of_its_story_before_it(tmp_path: Path) -> None:
    file = tmp_path / "qa1_single-supporting-fact_test.txt"
    file.write_text(STORIES, encoding="utf-8")
    first, second, third = read_stories(str(file), "test")
    assert first.text == "Mary moved to the bathroom. John went to the hallway. Where is Mary?"
    assert (first.answer, first.group, first.id) == ("bathroom", "qa1", "qa1:3")
    assert second.text == (
        "Mary moved to the bathroom. John went to the hallway. Daniel went back to the hallway. Where is Daniel?"
    )
    assert (third.text, third.answer) == ("Sandra took the apple. What is Sandra carrying?", "apple,football")


def test_a_folder_gives_the_files_of_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "babi" / "en"
    folder.mkdir(parents=True)
    for task in (1, 2, 10):
        for split in ("train", "test"):
            (folder / f"qa{task}_facts_{split}.txt").write_text(STORIES, encoding="utf-8")
    (folder / "qa3_facts_train.txt.gz").write_bytes(gzip.compress(STORIES.encode()))
    assert [row.group for row in read_stories(str(folder), "train")][::3] == ["qa10", "qa1", "qa2", "qa3"]
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    assert len(list(read_stories("babi/en", "test", 7))) == 7
    with pytest.raises(
        InputError, match=r"has no file of split='validation', which is named …_validation\.txt; it has"
    ):
        read_stories(str(folder), "validation")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Mary moved.", "line 2: a number and a sentence are missing"),
        ("2 Where is Mary?\t", "line 2: the question has no answer after its tab"),
        ("3 Mary moved.", "line 2: its number is 3 instead of 2, or 1 for a new story"),
    ],
)
def test_a_line_that_is_wrong_is_named_or_passed_over(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "stories.txt"
    file.write_text(f"1 Mary moved.\n{line}\n2 Where is Mary?\tbathroom\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(read_stories(str(file), "train"))
    assert [row.text for row in read_stories(str(file), "train", on_error="skip")] == ["Mary moved. Where is Mary?"]


def test_other_bytes_and_missing_files_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "stories.txt"
    file.write_bytes(b"1 Mary \xff moved.\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        list(read_stories(str(file), "train"))
    with pytest.raises(InputError, match="is no file, directory or pattern"):
        read_stories(str(tmp_path / "nothing.txt"), "train")


def test_made_up_stories_say_where_somebody_went_last() -> None:
    rows = list(read_stories("synthetic", "train", 50))
    assert rows == list(read_stories("synthetic", "train", 50))
    assert rows != list(read_stories("synthetic", "test", 50))
    for row in rows:
        *facts, question = row.text.split(". ")
        who = question.removeprefix("Where is ").removesuffix("?")
        assert [fact.split()[-1] for fact in facts if fact.startswith(who)][-1] == row.answer
