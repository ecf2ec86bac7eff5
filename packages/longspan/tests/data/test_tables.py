"""CSV, TSV and Parquet tables as records, and data sets read from them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from longspan.data.corpus.sources import Corpus
from longspan.data.summaries.readers import read_rows
from longspan.data.tables import read_records
from longspan.errors import InputError

ROWS = [
    {"id": "a", "document": 'Line one,\nline "two"; über 200 000 characters. ' + "x" * 200_000, "summary": "Short."},
    {"id": "b", "document": "Tabs\tand, commas.", "summary": "First.\nSecond."},
]


def _write(path: Path, delimiter: str) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.csv.gz", "rows.parquet", "rows.jsonl"])
def test_every_format_holds_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(ROWS), path)
    elif name.endswith(".jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    else:
        _write(path, "\t" if ".tsv" in name else ",")
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    assert [record for _, record in read_records(path)] == ROWS
    rows = list(read_rows(path))
    assert [row.id for row in rows] == ["a", "b"]
    assert [row.references for row in rows] == [("Short.",), ("First.\nSecond.",)]
    assert list(Corpus(source=str(path)).texts()) == [row["document"] for row in ROWS]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "must name the columns"),
        (b"source,source\na,b\n", "'source' twice"),
        (b"source,target\na,b,c\n", "line 2: 3 cells for the 2 columns"),
        (b"source,target\na\n", "line 2: 1 cells"),
        (b'source,target\n"a,b\n', "not CSV"),
        (b'source,target\n"a"b,c\n', "line 2: not CSV"),
        (b"source,target\n\xff,b\n", "is not UTF-8"),
        (b"\x1f\x8b\x08\x00broken", "damaged"),
    ],
)
def test_a_damaged_table_is_one_sentence(text: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(text)
    with pytest.raises(InputError, match=words) as caught:
        list(read_rows(tmp_path / "rows.csv"))
    assert "\n" not in str(caught.value)


def test_wrong_rows_are_skipped_with_their_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rows.csv").write_text('source,target\n"two\nlines",a\nb\nc,d\n')
    assert [row.reference for row in read_rows(tmp_path / "rows.csv", on_error="skip")] == ["a", "d"]
    assert "line 4: 1 cells for the 2 columns" in caplog.text


def test_damaged_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        list(read_rows(tmp_path / "rows.parquet"))
