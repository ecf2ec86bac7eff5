"""Inputs of another machine: an S3 server that moto plays, read by every engine as the same files here."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="tables are read and written with pyarrow, of the 'map' extra")

import pyarrow
from pyarrow import parquet

from longspan import InputError, map_documents

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of boto3, moto and Ray

DOCUMENTS = {
    "bees.txt": "Bees live in hives. They dance to tell where flowers are.",
    "trees.md": "# Trees\n\nThe oak is three hundred years old. Its trunk measures five metres.\n",
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], tmp_path: Path) -> Iterator[Path]:
    """A folder, whose files the bucket `papers` has too."""
    pytest.importorskip("flask_cors", reason="moto serves S3 with it")
    server = pytest.importorskip("moto.server", reason="moto plays S3")
    boto3 = pytest.importorskip("boto3", reason="moto is filled by boto3, which comes with it")
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name, value in {**dict.fromkeys(names, "test"), "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    machine = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    machine.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*machine.get_host_and_port()))
    table = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    files = {f"documents/{name}": text.encode() for name, text in DOCUMENTS.items()}
    files |= {"lines/rows.jsonl": lines.encode(), "tables/rows.parquet": table.getvalue()}
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket="papers")
    for name, data in files.items():
        client.put_object(Bucket="papers", Key=name, Body=data)
        (tmp_path / "papers" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "papers" / name).write_bytes(data)
    yield tmp_path / "papers"
    machine.stop()


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of an output, whose files are called by their last names."""
    tables = [parquet.read_table(file).to_pylist() for file in sorted(folder.glob("part-*"))]
    return [{**row, "file": Path(row.get("file", "")).name} for table in tables for row in table]


@pytest.mark.parametrize("engine", ["this process", "local", "ray"])
def test_what_s3_has_is_read_as_what_lies_here(engine: str, bucket: Path, tmp_path: Path) -> None:
    """One folder of each kind; each process takes seconds to start, so that one kind goes through the engines."""
    if engine == "ray":
        pytest.importorskip("ray.data", reason="needs Ray Data, of the 'ray' extra")
    options = {"this process": {"workers": 0}, "local": {"workers": 1}, "ray": {"workers": 1, "engine": "ray"}}[engine]
    for kind in ("documents", "lines", "tables") if engine == "this process" else ("documents",):
        map_documents("embed", bucket / kind, tmp_path / kind, workers=0)
        mapped = map_documents("embed", f"s3://papers/{kind}", tmp_path / f"{kind} of s3", **options)  # pyright: ignore[reportArgumentType]
        assert mapped.errors == 0
        assert read(tmp_path / f"{kind} of s3") == read(tmp_path / kind)


def test_an_address_of_nothing(bucket: Path, tmp_path: Path) -> None:
    for address in ("s3://papers/none", "s3://no-such-bucket/documents"):
        with pytest.raises(InputError, match=f"input '{address}' does not exist; check the address"):
            map_documents("embed", address, tmp_path / "out", workers=0)
