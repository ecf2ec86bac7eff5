"""`longspan classify`, from a recipe with made-up rows to labels of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import longspan
from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.errors import InputError

TINY = """
name: tiny
task: {name: classification, max_tokens: 64, clean: true}
data: {train: synthetic, validation: synthetic, train_rows: 24, validation_rows: 6}
model:
  new: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, init_std: 0.2}
  attention: {mechanism: longformer, left_tokens: 8, right_tokens: 8}
  max_tokens: 64
tokenizer: {train: 400}
optimisation: {steps: 4, batch_size: 8, micro_batch_size: 8, learning_rate: 1e-2, log_every: 1, evaluate_every: 2,
  best_by: accuracy, report_to: none}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classify")
    (folder / "tiny.yaml").write_text(TINY)
    assert main(["train", str(folder / "tiny.yaml"), "--output", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "a.txt").write_text("All in all it is splendid. " * 40)
    (tmp_path / "b.html").write_text("<html><body><p>It is tiresome.</p></body></html>")
    return [tmp_path / "a.txt", tmp_path / "b.html"]


def test_a_line_for_each_file(trained: Path, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["classify", *map(str, files), "--model", str(trained)]) == 0
    captured = capsys.readouterr()
    for line, file in zip(captured.out.splitlines(), files, strict=True):
        label, probability, name = line.split()
        assert label in ("good", "bad")
        assert 0.5 <= float(probability) <= 1
        assert name == str(file)
    assert f"note: {files[0]}: the model read the first 64 of" in captured.err
    assert captured.err.count("note:") == 1


def test_json_and_the_function_say_the_same(
    trained: Path, files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["classify", str(files[0].parent), "--model", str(trained), "--json", "--raw"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["file"] for record in records] == [str(file) for file in files]
    for record, file in zip(records, files, strict=True):
        found = longspan.classify(file, trained)
        assert (record["label"], str(found)) == (found.label, record["label"])
        assert record["probability"] == pytest.approx(found.probability, abs=1e-6)
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert record["tokens"] <= 64
    assert records[0]["of_tokens"] > 64
    # Cleaned as in training: what is repeated for effect changes nothing.
    plain, loud = (
        longspan.classify(text, trained).probabilities for text in ("so good!", "soooo   good!!! http://a.b")
    )
    assert plain == loud


def test_every_row_of_a_table(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["It is superb .", "It is\ntiresome .", "All in all it is useless ."]
    records = [{"id": "first", "body": texts[0]}, {"body": texts[1]}, {"id": 3, "body": texts[2]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "b.csv").write_text(f'text,stars\n"{texts[1]}",4\n{texts[2]},1\n')
    (tmp_path / "c.txt").write_text(texts[0])
    names = ["a.jsonl", "b.csv", "c.txt"]
    files = [str(tmp_path / name) for name in names]
    capsys.readouterr()
    assert main(["classify", *files, "--model", str(trained), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(Path(one["file"]).name, one["row"]) for one in found] == [
        *(("a.jsonl", row) for row in ("first", "line 2", "3")),
        *(("b.csv", row) for row in ("line 2", "line 4")),
        ("c.txt", None),
    ]
    # A row is labelled as the same text alone.
    wanted = [longspan.classify(texts[number], trained) for number in (0, 1, 2, 1, 2, 0)]
    for one, alone in zip(found, wanted, strict=True):
        assert one["probabilities"] == {label: round(value, 6) for label, value in alone.probabilities.items()}
    assert main(["classify", files[0], "--model", str(trained), "--text-field", "body"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.split(maxsplit=2) == [wanted[0].label, f"{wanted[0].probability:.2f}", f"{files[0]}, first"]
    # --raw reads a table as one document.
    assert main(["classify", *files[:2], "--model", str(trained), "--json", "--raw"]) == 0
    assert [one["row"] for one in json.loads(capsys.readouterr().out)] == [None, None]


def test_mistakes_in_tables(trained: Path, tmp_path: Path, refused) -> None:
    table = tmp_path / "a.csv"

    def said(text: str, *options: object) -> str:
        table.write_text(text)
        return refused("classify", table, "--model", trained, *options)

    assert "a.csv, line 2: no column text, document" in said("x,y\n1,2\n")
    assert "there is x, y; name the one of the texts in text_field" in said("x,y\n1,2\n")
    assert "no column 'z'; there is x, y" in said("x,y\n1,2\n", "--text-field", "z")
    assert "a.csv, line 3: the text is blank" in said("text\na\n' '\n".replace("'", ""))
    assert "a.csv has no rows" in said("text\n")
    assert "a.csv is a table, which is UTF-8" in said("text\na\n", "--encoding", "latin-1")
    (tmp_path / "b.txt").write_text("words")
    assert "no file is a table" in refused("classify", tmp_path / "b.txt", "--model", trained, "--text-field", "z")
    assert "does not exist" in refused("classify", tmp_path / "none.csv", "--model", trained)


def test_evaluate_scores_it(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "mails.csv"
    data.write_text("text,label\nIt is superb .,good\nIt is useless .,bad\n")
    arguments = ["evaluate", str(trained), "--data", str(data), "--output", str(tmp_path / "scores")]
    assert main(arguments) == 0
    report = json.loads((tmp_path / "scores" / "mails-validation.json").read_text())
    assert set(report["scores"]) >= {"accuracy", "macro_f1", "calibration_error", "brier", "f1_good"}
    data.write_text("text,label\nIt is superb .,so-so\n")
    capsys.readouterr()
    assert main(arguments) == 2
    assert "has the label 'so-so', which was not seen in training" in capsys.readouterr().err


def test_mistakes_are_one_sentence(trained: Path, files: list[Path], tmp_path: Path, refused) -> None:
    assert "no-model" in refused("classify", files[0], "--model", "no-model")
    config = longspan.LongspanConfig.from_pretrained(trained)
    longspan.LongspanForMaskedLM(config).save_pretrained(tmp_path / "other")
    load_tokenizer(trained).save_pretrained(tmp_path / "other")
    assert "MaskedLM, which does not classify; it is an encoder: give it to `longspan answer --encoder`" in refused(
        "classify", files[0], "--model", tmp_path / "other"
    )
    (tmp_path / "empty.txt").write_text("")
    assert "is empty" in refused("classify", tmp_path / "empty.txt", "--model", trained)
    assert "--model" in refused("classify", files[0])
    with pytest.raises(InputError, match="document is 3, of type int; give a text, a Path or a Document"):
        longspan.classify(3, trained)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="document is blank"):
        longspan.classify(" ", trained)
