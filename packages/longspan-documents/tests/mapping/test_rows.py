"""Reading tables in parts: every row once, in any order of the parts, whatever the file is like."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from longspan import InputError
from longspan.data.fields import ROW_FIELDS
from longspan_documents.mapping.inputs import find_inputs
from longspan_documents.mapping.job import STRIDE, Job, rows_of_part
from longspan_documents.mapping.rows import RowReader, plan_tables, schema_text, text_column


def job_of(*paths: Path | str, part_rows: int) -> Job:
    files, documents, _ = find_inputs(paths)
    inputs, schema, as_json = plan_tables(files)
    job = Job(version="", verb="", options={}, inputs=inputs, documents=documents, part_rows=part_rows)
    return replace(job, schema=schema_text(schema), as_json=as_json, text="text")


def rows_of(job: Job, order: random.Random | None = None) -> list[dict[str, Any]]:
    """All rows of a job in the order of its parts, which are read in another order where one is given."""
    parts = job.parts()
    if order is not None:
        order.shuffle(parts)
    read: dict[int, list[dict[str, Any]]] = {}
    with closing(RowReader(job)) as reader:
        for part in parts:
            read[part.number] = [row for batch in reader.read(part) for row in batch.columns.to_pylist()]
            assert len(read[part.number]) == part.rows
    return [row for number in sorted(read) for row in read[number]]


@pytest.mark.parametrize("count", [1, 7, 8, 101])
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz", "a.jsonl.xz", "one.parquet", "groups.parquet"])
def test_every_row_is_read_once(name: str, count: int, tmp_path: Path) -> None:
    rows = [{"text": f"Row {number}. " * (number % 5), "id": number} for number in range(count)]
    path = tmp_path / name
    if name.endswith(".parquet"):
        schema = pa.schema([("text", pa.string()), ("id", pa.int64())])
        size = 13 if name.startswith("groups") else 1000
        parquet.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=size)
    else:
        lines = "".join("\n" * (number % 3) + json.dumps(row) + "\n" for number, row in enumerate(rows)) or "\n"
        pack: Callable[[bytes], bytes] = {"l": bytes, "z": gzip.compress}.get(name[-1], bytes)
        data = lzma.compress(lines.encode()) if name.endswith("xz") else pack(lines.encode())
        path.write_bytes(b"\xef\xbb\xbf" + data if name == "a.jsonl" else data)
    for part_rows in (1, 5, STRIDE, 200):
        job = job_of(path, part_rows=part_rows)
        assert rows_of(job) == rows
        assert rows_of(job, random.Random(count)) == rows


def test_an_address_is_read_as_a_file(tmp_path: Path) -> None:
    rows = [{"text": f"Row {number}"} for number in range(20)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("\n".join(map(json.dumps, rows[:9])))
    (tmp_path / "in/b.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows[9:15])).encode()))
    parquet.write_table(pa.Table.from_pylist(rows[15:]), tmp_path / "in/c.parquet")
    (tmp_path / "in/README").write_text("not read")
    address = f"file://{tmp_path}/in"
    job = job_of(address, part_rows=4)
    assert [one.path for one in job.inputs] == [f"{address}/{name}" for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    assert rows_of(job, random.Random(0)) == rows
    with pytest.raises(InputError, match="nowhere' does not exist"):
        find_inputs([f"{address}/nowhere"])
    with pytest.raises(InputError, match="cannot be opened"):
        find_inputs(["no-such-scheme://there"])


def test_columns_of_several_tables_go_together(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a"], "year": pa.array([1999], pa.int32())}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(
        '{"text": "b", "year": 2000.5, "more": {"x": 1}, "any": 1}\n{"text": "c", "any": "one", "empty": {}}\n'
        '{"text": "half \\ud800 of it", "any": [1], "more": {"y": [2]}, "never": null}\n'
    )
    job = job_of(tmp_path / "a.parquet", tmp_path / "b.jsonl", part_rows=8)
    first, *rest = rows_of(job)
    assert first == {"text": "a", "year": 1999, "more": None, "any": None, "empty": None, "never": None}
    assert [row["year"] for row in rest] == [2000.5, None, None]
    assert [row["any"] for row in rest] == ["1", '"one"', "[1]"]
    assert [row["more"] for row in rest] == [{"x": 1, "y": None}, None, {"x": None, "y": [2]}]
    assert rest[1]["empty"] == "{}"
    assert rest[2]["text"] == "half \ufffd of it"
    parquet.write_table(pa.table({"text": [["a"]]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet' has the column 'text' as list"):
        job_of(tmp_path / "a.parquet", tmp_path / "c.parquet", part_rows=8)


def test_a_text_that_is_not_utf8_is_found_out_by_its_row_alone(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff\xfe"]).buffers()[1:]])
    parquet.write_table(pa.table({"text": pa.chunked_array([["good"], broken])}), tmp_path / "a.parquet")
    (batch,) = RowReader(job := job_of(tmp_path / "a.parquet", part_rows=8)).read(job.parts()[0])
    assert batch.columns["text"][0].as_py() == "good"
    with pytest.raises(UnicodeDecodeError):
        batch.columns["text"][1].as_py()


def test_a_file_that_became_shorter_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 5)
    job = job_of(path, part_rows=8)
    path.write_text('{"text": "a"}\n' * 4)
    with pytest.raises(InputError, match="has changed while it was read"):
        rows_of(job)
    path.write_text(" \n\n")
    with pytest.raises(InputError, match="has no columns"):
        job_of(path, part_rows=5)


def test_a_row_group_of_a_whole_file_is_never_in_memory(tmp_path: Path) -> None:
    """32 MB in one row group, of which the first rows are read; only its pages are read whole."""
    texts = [random.Random(number).randbytes(16_000).hex() for number in range(1000)]
    options = {"compression": "none", "use_dictionary": False, "write_batch_size": 16}
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", **options)
    job, pool = job_of(tmp_path / "a.parquet", part_rows=100), pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    with closing(RowReader(job)) as reader:
        for part in job.parts()[:2]:
            row = part.first
            for batch in reader.read(part):
                most = max(most, pool.bytes_allocated() - before)
                assert batch.columns["text"][0].as_py() == texts[row]
                row += batch.columns.num_rows
    assert most < 6_000_000


def test_the_column_of_texts() -> None:
    schema = pa.schema([("body", pa.string()), ("text", pa.large_string()), ("id", pa.int64())])
    assert text_column(schema, None, ("text", "body")) == "text"
    assert text_column(schema, "body", ("text",)) == "body"
    with pytest.raises(InputError, match="no column content or article in the inputs; there is body, text, id"):
        text_column(schema, None, ("content", "article"))


def test_the_column_may_hold_lists_of_texts() -> None:
    """As the papers of Cohan et al. 2018 do, whose article_text is a list of sentences."""
    sentences = pa.list_(pa.string())
    schema = pa.schema([("text", pa.int64()), ("article_text", sentences), ("parts", pa.large_list(sentences))])
    assert text_column(schema, None, ROW_FIELDS) == "article_text"  # the first that holds texts
    assert text_column(schema, "parts", ROW_FIELDS) == "parts"
    with pytest.raises(InputError, match="text_field 'text' holds int64 and no texts"):
        text_column(schema, "text", ROW_FIELDS)
    with pytest.raises(InputError, match=r"text_field 'text' holds list<.*int64> and no texts"):
        text_column(pa.schema([("text", pa.list_(pa.int64()))]), None, ROW_FIELDS)


@pytest.mark.parametrize(("total", "rows"), [(0, 8), (300, 8), (2049, 16), (100_000, 392), (10**7, 512)])
def test_parts_are_a_256th(total: int, rows: int) -> None:
    assert rows_of_part(total) == rows
    assert rows % STRIDE == 0
