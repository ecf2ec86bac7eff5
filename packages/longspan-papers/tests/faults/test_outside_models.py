"""Recipes, data and folders as somebody from outside broke them: what each case fell into is beside it."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import main
from longspan.cli.terminal import LONGEST
from longspan.data.summaries.readers import read_rows
from longspan.data.tables import read_records
from longspan.errors import InputError

TRAIN = ["train", "recipe.yaml", "--output", "run"]
TASKS: dict[str, dict[str, Any]] = {
    "extraction": {"task": {"name": "extraction", "max_source_tokens": 64}, "generation": None},
    "masked_lm": {"task": {"name": "masked_lm", "max_tokens": 64}, "generation": None},
    "natural_questions": {
        "task": {"name": "natural_questions", "max_tokens": 128, "stride": 64},
        "generation": None,
    },
}
ROW = '{"source": "A first sentence stands here. A second one follows it.", "target": "A first sentence."}\n'

# Values of a new model that transformers itself reads: a traceback, 20 s and 4 GB, or an error after the first step.
NEW_MODEL: dict[str, list[Any]] = {
    "id2label": [[1], {"a": "b"}, {"0": 3}],
    "num_labels": [0, -1, 10**9],
    "problem_type": ["nonsense"],
    "eos_token_id": [[1, 2]],
    "dtype": ["float99", "int8"],
    "return_dict": ["x"],
    "output_hidden_states": ["yes"],
    "chunk_size_feed_forward": [-1],
    "is_decoder": ["no"],
    "architectures": [3],
}


def pipe(name: str) -> Callable[[Path], object]:
    return lambda folder: os.mkfifo(folder / name)


def table(name: str, **columns: Any) -> Callable[[Path], None]:
    """A Parquet file with these columns."""

    def prepare(folder: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), folder / name)

    return prepare


def broken_texts(*parts: bytes) -> Any:
    """A column of texts whose bytes are not UTF-8, as other programs write it."""
    import pyarrow

    ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
    offsets = pyarrow.array(ends, pyarrow.int32()).buffers()[1]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(parts), [None, offsets, pyarrow.py_buffer(b"".join(parts))])


def data_recipe(task: str, source: str) -> dict[str, Any]:
    return {**TASKS[task], "data.train": source, "data.train_rows": None}


def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, values in NEW_MODEL.items():
        for value in values:
            found[f"model.new.{key}={value!r}"] = {"recipe": {f"model.new.{key}": value}, "run": TRAIN, "says": key}
    for task in TASKS:
        # Endless, or waiting for somebody to write: both ran until they were killed, the first with all memory.
        for name in ("z.jsonl", "z.csv", "z.parquet", "z.txt"):
            found[f"{task}: a device as {name}"] = {
                "recipe": data_recipe(task, name),
                "links": {name: "/dev/zero"},
                "run": TRAIN,
                "says": "is a device",
            }
        for name in ("p.jsonl", "p.csv", "p.parquet"):
            found[f"{task}: a pipe as {name}"] = {
                "recipe": data_recipe(task, name),
                "prepare": pipe(name),
                "run": TRAIN,
                "says": "is a pipe",
            }
        found[f"{task}: a folder without data"] = {
            "recipe": data_recipe(task, "d"),
            "files": {"d/notes.bin": "x"},
            "run": TRAIN,
            "says": "d has no",
        }
    for name in ("z.jsonl", "z.parquet", "z.txt"):
        found[f"tokenizer: a device as {name}"] = {
            "links": {name: "/dev/zero"},
            "run": ["tokenizer", name, "--output", "out"],
            "says": "is a device",
        }
    for name in ("z.jsonl", "z.csv", "z.parquet"):
        found[f"evaluate: a device as {name}"] = {
            "checkpoint": "scorer",
            "links": {name: "/dev/zero"},
            "run": ["evaluate", "model", "--data", name],
            "says": "is a device",
        }
    # Counting every name among all of them took minutes.
    names = ",".join(f"c{number}" for number in range(60_000))
    found["csv: 60 000 columns"] = {
        "recipe": data_recipe("extraction", "many.csv"),
        "files": {"many.csv": f"{names}\n1\n"},
        "run": TRAIN,
        "says": "1 cells for the 60000 columns",
    }
    found["csv: 60 000 columns, one twice"] = {
        "recipe": data_recipe("extraction", "many.csv"),
        "files": {"many.csv": f"{names},c7\n1\n"},
        "run": TRAIN,
        "says": "the column 'c7' twice",
    }
    found["parquet: not UTF-8"] = {
        "recipe": data_recipe("extraction", "d.parquet"),
        "prepare": lambda folder: table("d.parquet", source=broken_texts(b"a b.", b"\xff\xfe"), target=["x", "y"])(
            folder
        ),
        "run": TRAIN,
        "says": ["d.parquet, line 2: not UTF-8", "save"],
    }
    found["parquet: half a character"] = {
        "recipe": data_recipe("extraction", "d.parquet"),
        "prepare": lambda folder: table("d.parquet", source=broken_texts(b"\xed\xa0\x80"), target=["x"])(folder),
        "run": TRAIN,
        "says": "d.parquet, line 1: not UTF-8",
    }
    found["masked_lm: a link to itself"] = {
        "recipe": data_recipe("masked_lm", "l.jsonl"),
        "links": {"l.jsonl": "l.jsonl"},
        "run": TRAIN,
        "says": "l.jsonl",
    }
    found["a name of 6 000 characters"] = {
        "run": ["tokenizer", "a.txt", "--output", "/".join(["d"] * 3000)],
        "files": {"a.txt": ROW},
        "says": "give another place",
    }
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    line = check_fault(**case)
    assert len(line) < LONGEST + 20


def test_a_broken_row_of_parquet_is_passed_over_alone(tmp_path: Path) -> None:
    table("d.parquet", source=broken_texts(b"One. Two.", b"\xff", b"Three. Four."), target=["x", "y", "z"])(tmp_path)
    assert [row.source for row in read_rows(tmp_path / "d.parquet", on_error="skip")] == ["One. Two.", "Three. Four."]


def test_a_time_without_a_date_is_one_row_of_parquet(tmp_path: Path) -> None:
    import pyarrow

    when = pyarrow.array([0, 2**62], pyarrow.timestamp("us"))
    table("d.parquet", source=["One.", "Two."], when=when)(tmp_path)
    with pytest.raises(InputError, match="line 2: a value that cannot be read"):
        list(read_records(tmp_path / "d.parquet"))
    skipped: list[int] = []
    rows = list(read_records(tmp_path / "d.parquet", lambda number, _: skipped.append(number)))
    assert [number for number, _ in rows] == [1]
    assert skipped == [2]


@pytest.mark.parametrize("change", ["generation.length_penalty=-2", "generation.length_penalty=2"])
def test_a_length_penalty_of_one_beam_does_not_keep_the_model_from_being_saved(
    change: str, tmp_path: Path, made_recipe: Callable[..., str]
) -> None:
    # transformers refuses to write greedy decoding with it: training ended in a traceback at its first checkpoint.
    (tmp_path / "recipe.yaml").write_text(made_recipe({}))
    assert main(["train", str(tmp_path / "recipe.yaml"), change, "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/model.safetensors").is_file()


def test_a_compressed_file_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(ROW.encode()))
    assert [row.reference for row in read_rows(tmp_path / "d.jsonl.gz")] == ["A first sentence."]


def test_what_the_system_refuses_leaves_no_run(
    check_fault: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The root of a system holds folders that nobody may look into; the walk ended in an error without a remedy.
    def refused(self: Path, pattern: str) -> Any:
        raise PermissionError(13, "Permission denied", str(self / "closed"))

    walk = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: (refused if self.name == "d" else walk)(self, pattern))
    check_fault(
        run=TRAIN,
        recipe=data_recipe("masked_lm", "d"),
        files={"d/train.txt": "words"},
        says=["d cannot be searched", "permission denied", "name the folder"],
    )
