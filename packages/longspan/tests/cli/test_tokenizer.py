"""`longspan tokenizer`: a vocabulary from a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.data.summaries.rows import synthetic_rows
from longspan.training.tokenizers import train_tokenizer


def test_it_is_the_one_a_recipe_would_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [row.source for row in synthetic_rows(4, seed=0)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    output = tmp_path / "words"
    assert main(["tokenizer", str(tmp_path / "*.txt"), "--size", "300", "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"300 entries: {output}\n"
    found, expected = load_tokenizer(output), train_tokenizer(texts, 300)
    assert found.get_vocab() == expected.get_vocab()
    assert found(texts[0])["input_ids"] == expected(texts[0])["input_ids"]
    assert found.mask_token_id is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.txt", "--output", "OUT"], "'nowhere.txt' is no file, directory or pattern"),
        (["EMPTY", "--output", "OUT"], "there is no text to train a tokenizer on"),
        (  # the second form is of typer before 0.29
            ["TEXT", "--output", "OUT", "--size", "100"],
            "--size='100' must be at least 2|'--size': 100 is not in the range 261<=x",
        ),
        (["TEXT", "--output", "FULL"], "exists already and is not empty; give another place"),
        (["TEXT"], "Missing option '--output'"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FULL").mkdir()
    for name, content in (("EMPTY", " \n"), ("TEXT", "some text"), ("FULL/file", "mine")):
        (tmp_path / name).write_text(content)
    assert main(["tokenizer", *arguments]) == 2
    said = capsys.readouterr().err
    assert any(form in said for form in words.split("|"))
    assert not (tmp_path / "OUT").exists()
