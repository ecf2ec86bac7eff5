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


MALFORMED = {
    "no annotations": (without("annotations"), "annotations"),
    "a candidate that is not there": (row(annotations=[answered((9, 17), 5)]), "candidate 5"),
    "a row of another task": ({"id": "1", "text": "A text.", "summary": "Text."}, "document_tokens"),
    "a list": ([1, 2], "list"),
    "half a line": ('{"question_text": "cut of', "not JSON"),
}
"""One of each kind; every sentence about a row stands in the tests of the readers."""


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


def test_a_question_longer_than_the_chunk(refused: Callable[..., str]) -> None:
    write("rows.jsonl", row(question_text="why " * 400))
    sentence = refused("train", "asked.yaml", "data.train=rows.jsonl")
    assert "max_tokens=64" in sentence
    assert main(["train", "asked.yaml", "data.train=rows.jsonl", "task.max_question_tokens=12"]) == 0


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
    quote = found["passages"][0]["quote"]
    assert (quote["text"], quote["start_byte"], quote["end_byte"]) == ("7", 0, 1)


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
