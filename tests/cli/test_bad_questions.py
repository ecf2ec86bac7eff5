"""Questions over documents that cannot be read, asked or answered: one sentence each, through the command line."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import main

RECIPE = """
name: asked
task: {name: natural_questions, max_tokens: 64, stride: 24, markers: false}
data: {train: good.jsonl, validation: good.jsonl}
model:
  new: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, intermediate_size: 64}
  attention: {mechanism: poolingformer, left_tokens: 8, right_tokens: 8}
  max_tokens: 64
tokenizer: {train: 400}
optimisation: {steps: 1, batch_size: 2, log_every: 1, evaluate_every: 1}
"""
TEXT = "<P> The river Aare flows through Bern . </P> <P> Its length is 295 km . </P>"
NOTHING = {
    "long_answer": {"start_token": -1, "end_token": -1, "candidate_index": -1},
    "short_answers": [],
    "yes_no_answer": "NONE",
}


def row(**changes: Any) -> dict[str, Any]:
    """A question of the simplified format, answered in its second paragraph (tokens 9 to 16) by "295 km"."""
    return {
        "example_id": 7,
        "question_text": "how long is the aare",
        "document_text": TEXT,
        "long_answer_candidates": [
            {"start_token": 0, "end_token": 9, "top_level": True},
            {"start_token": 9, "end_token": 17, "top_level": True},
        ],
        "annotations": [answered((9, 17), 1, (13, 15))],
    } | changes


def answered(long: tuple[int, int], candidate: int, *short: tuple[int, int]) -> dict[str, Any]:
    return {
        "long_answer": {"start_token": long[0], "end_token": long[1], "candidate_index": candidate},
        "short_answers": [{"start_token": start, "end_token": end} for start, end in short],
        "yes_no_answer": "NONE",
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in row().items() if key != name}


def candidate_beyond() -> dict[str, Any]:
    return row(long_answer_candidates=[{"start_token": 0, "end_token": 99, "top_level": True}])


MALFORMED = {
    "no annotations": (without("annotations"), "annotations"),
    "empty annotations": (row(annotations=[]), "annotations"),
    "a candidate beyond the document": (candidate_beyond(), "0–99"),
    "a candidate that is not there": (row(annotations=[answered((9, 17), 5)]), "candidate 5"),
    "a short answer beyond the document": (row(annotations=[answered((9, 17), 1, (13, 200))]), "13–200"),
    "a short answer outside the long one": (row(annotations=[answered((9, 17), 1, (1, 3))]), "1–3"),
    "a long answer that is no number": (row(annotations=[NOTHING | {"long_answer": {}}]), "candidate_index"),
    "another yes or no": (row(annotations=[NOTHING | {"yes_no_answer": "MAYBE"}]), "MAYBE"),
    "HTML only": (
        row(document_text="<P> </P>", long_answer_candidates=[], annotations=[NOTHING]),
        "only HTML",
    ),
    "an empty document": (row(document_text=" "), "document_text"),
    "an empty question": (row(question_text="  "), "question_text"),
    "a question that is null": (row(question_text=None), "question_text"),
    "no document": ({"question_text": "why"}, "document_tokens"),
    "a row of another task": ({"id": "1", "text": "A text.", "summary": "Text."}, "document_tokens"),
    "a list": ([1, 2], "list"),
    "half a line": ('{"question_text": "cut of', "not JSON"),
}


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.yaml").write_text(RECIPE)
    write("good.jsonl", row(), row())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one step that answers questions."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "asked.yaml").write_text(RECIPE)
        write("good.jsonl", row(), row())
        assert main(["train", "asked.yaml"]) == 0
    return folder / "runs" / "asked"


def write(name: str, *rows: Any) -> None:
    """Rows as JSON Lines; text as it is."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
    Path(name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_row_is_named_with_its_line(case: str, model: Path, refused: Callable[..., str]) -> None:
    wrong, words = MALFORMED[case]
    write("rows.jsonl", row(), row(), wrong, row())
    for command in (["train", "asked.yaml", "data.train=rows.jsonl"], ["evaluate", model, "--data", "rows.jsonl"]):
        sentence = refused(*command)
        assert "rows.jsonl, line 3" in sentence
        assert words in sentence


def test_one_corrupt_row_in_a_big_compressed_file(refused: Callable[..., str]) -> None:
    lines = [json.dumps(row())] * 3000
    lines[1499] = json.dumps(without("question_text"))
    with gzip.open("rows.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    sentence = refused("train", "asked.yaml", "data.train=rows.jsonl.gz")
    assert "rows.jsonl.gz, line 1500: the record has no field 'question_text'" in sentence
    assert "on_error: skip" in sentence


def test_a_compressed_file_that_was_cut(refused: Callable[..., str]) -> None:
    whole = gzip.compress("\n".join([json.dumps(row())] * 300).encode())
    Path("rows.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    for more in ([], ["data.on_error=skip"]):
        assert "rows.jsonl.gz is damaged" in refused("train", "asked.yaml", "data.train=rows.jsonl.gz", *more)


def test_malformed_rows_are_skipped_only_when_asked_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write("rows.jsonl", row(), *(wrong for wrong, _ in MALFORMED.values()), row())
    with caplog.at_level(logging.WARNING):
        assert main(["train", "asked.yaml", "data.train=rows.jsonl", "data.on_error=skip"]) == 0
    assert f"rows.jsonl: {len(MALFORMED)} corrupt records were skipped" in caplog.text
    assert "rows.jsonl, line 2" in caplog.text
    assert (tmp_path / "runs" / "asked" / "config.json").is_file()


def test_nothing_but_malformed_rows(capfd: pytest.CaptureFixture[str]) -> None:
    write("rows.jsonl", without("annotations"), row(question_text=""))
    assert main(["train", "asked.yaml", "data.train=rows.jsonl", "data.on_error=skip"]) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error
    assert "error: " in error


def test_another_word_for_on_error(refused: Callable[..., str]) -> None:
    assert "on_error" in refused("train", "asked.yaml", "data.on_error=ignore")


def test_a_question_longer_than_the_chunk(model: Path, refused: Callable[..., str]) -> None:
    write("rows.jsonl", row(question_text="why " * 400))
    sentence = refused("train", "asked.yaml", "data.train=rows.jsonl")
    assert "max_tokens=64" in sentence
    Path("text.txt").write_text("The river Aare flows through Bern.")
    sentence = refused("answer", "text.txt", "why " * 400, "--model", model)
    assert "shorten" in sentence
    assert main(["train", "asked.yaml", "data.train=rows.jsonl", "task.max_question_tokens=12"]) == 0


def test_questions_that_cannot_be_asked(model: Path, refused: Callable[..., str]) -> None:
    Path("text.txt").write_text("The river Aare flows through Bern.")
    Path("empty.txt").write_text("")
    assert "question=''" in refused("answer", "text.txt", "", "--model", model)
    assert "question=' '" in refused("answer", "text.txt", "how long?", " ", "--model", model)
    assert "QUESTION" in refused("answer", "text.txt")
    assert "empty.txt" in refused("answer", "empty.txt", "why?", "--model", model)
    assert "missing.txt" in refused("answer", "missing.txt", "why?", "--model", model)
    assert "nowhere" in refused("answer", "text.txt", "why?", "--model", "./nowhere")
    assert "threshold=7" in refused("answer", "text.txt", "why?", "--model", model, "--threshold", "7")
    assert "p.docx" in refused("answer", "text.txt", "why?", "--model", model, "--picture", "p.docx")


def test_a_document_of_one_token(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = row(
        document_text="Bern",
        long_answer_candidates=[{"start_token": 0, "end_token": 1, "top_level": True}],
        annotations=[answered((0, 1), 0, (0, 1))],
    )
    write("rows.jsonl", one, one)
    assert main(["train", "asked.yaml", "data.train=rows.jsonl", "data.validation=rows.jsonl"]) == 0
    assert main(["evaluate", str(model), "--data", "rows.jsonl"]) == 0
    Path("text.txt").write_text("7")
    capfd.readouterr()
    assert main(["answer", "text.txt", "how many?", "--model", str(model), "--threshold", "0", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)[0]
    assert found["passage"]["text"] == "7"
    assert (found["passage"]["start_byte"], found["passage"]["end_byte"]) == (0, 1)


def test_an_answer_that_every_chunk_border_cuts(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A short answer of 90 words does not fit into chunks of 64 tokens: the passage is still there to be learnt."""
    words = ["<P>", *(f"word{number}" for number in range(90)), "</P>"]
    whole = row(
        document_text=" ".join(words),
        long_answer_candidates=[{"start_token": 0, "end_token": 92, "top_level": True}],
        annotations=[answered((0, 92), 0, (1, 91))],
    )
    write("rows.jsonl", whole, whole)
    assert main(["train", "asked.yaml", "data.train=rows.jsonl", "data.validation=rows.jsonl"]) == 0
    assert main(["evaluate", str(model), "--data", "rows.jsonl"]) == 0
    assert "Traceback" not in capfd.readouterr().err


def test_relative_positions_narrower_than_the_window(refused: Callable[..., str]) -> None:
    change = "model.attention={mechanism: fusion, left_tokens: 16, right_tokens: 8, relative_span: 9}"
    sentence = refused("train", "asked.yaml", change)
    assert "left_tokens=16" in sentence
    assert "relative_span=9" in sentence
