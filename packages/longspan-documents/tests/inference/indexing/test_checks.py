"""Index folders with right checksums and wrong contents: a right answer, or one sentence that names file and field."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan import DocumentIndex
from longspan.cli import main
from longspan_documents.inference.indexing import documents as indexing
from longspan_documents.inference.indexing.checks import documents_of
from longspan_documents.inference.indexing.store import COPY, MANIFEST, _checksum_of, checksum_of
from longspan_documents.text.passages import passages_of
from longspan_documents.text.reading import document_of
from spoilt import outcome, spoilt, spoilt_tensors

QUESTION = "who planted the roses"


@pytest.fixture
def folder(model: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of three documents in two shards; its model is read from the disk once."""
    opened = cache(indexing.open_model)
    # A tokenizer keeps what it was last asked to do; the model does not change.
    monkeypatch.setattr(indexing, "open_model", lambda *given: (opened(*given)[0], copy.deepcopy(opened(*given)[1])))
    place = tmp_path / "index"
    indexing.index([library / "garden.md", library / "house.md"], place, model)
    indexing.index(library / "trees.md", place)
    return place


def write_list(folder: Path, body: Any) -> None:
    if isinstance(body, dict):
        body = {"checksum": _checksum_of(body), **body}
    text = json.dumps(body, ensure_ascii=True)
    for name in (MANIFEST, COPY):
        (folder / name).write_text(text, encoding="utf-8")


def read_list(folder: Path) -> dict[str, Any]:
    body = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    del body["checksum"]
    return body


def write_shard(folder: Path, tensors: dict[str, Tensor]) -> None:
    """The first shard anew, and the list so that it agrees."""
    body = read_list(folder)
    file = folder / body["shards"][0]["file"]
    save_file(tensors, file)
    body["shards"][0] |= {"bytes": file.stat().st_size, "checksum": checksum_of(file)}
    write_list(folder, body)


def check(folder: Path, model: Path, name: str, failed: list[str]) -> None:
    wrong = outcome(lambda: DocumentIndex(folder, model), QUESTION, folder)
    if wrong is not None:
        failed.append(f"{name}: {wrong[:300]}")


def test_every_field_of_the_list(folder: Path, model: Path) -> None:
    failed: list[str] = []
    cases = list(spoilt(read_list(folder)))
    assert len(cases) > 250
    for name, body in cases:
        write_list(folder, body)
        check(folder, model, name, failed)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_every_field_of_the_documents(folder: Path, model: Path) -> None:
    body = read_list(folder)
    right = load_file(folder / body["shards"][0]["file"])
    plain = json.loads(bytes(right["documents"].numpy()))
    failed: list[str] = []
    cases = [(name, json.dumps(one).encode()) for name, one in spoilt(plain)]
    assert len(cases) > 400
    texts = (b"", b"[", b"\xff\xfe\x00", b"nothing", b"[" * 100_000, b"[1e999]", b'[{"name": NaN}]', b"{}")
    for name, text in [*cases, *((f"all is {text[:9]!r}", text) for text in texts)]:
        write_shard(folder, {**right, "documents": torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)})
        check(folder, model, name, failed)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_every_tensor(folder: Path, model: Path) -> None:
    body = read_list(folder)
    right = load_file(folder / body["shards"][0]["file"])
    failed: list[str] = []
    for name, tensors in spoilt_shards(right):
        write_shard(folder, {key: value.contiguous() for key, value in tensors.items()})
        check(folder, model, name, failed)
    assert not failed, "\n".join(failed)


def spoilt_shards(right: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    yield from spoilt_tensors(right)
    for value in (-(2**31), -2, -1, 0, 1, 10**6, 2**31 - 1):
        for column in (0, 1, slice(None)):
            for row in (0, 5, slice(None)):
                spans = right["spans"].clone()
                spans[row, column] = value
                yield f"spans[{row}, {column}] is {value}", {**right, "spans": spans}
    for value in (-(2**62), -1, 0, 1, 10**6, 2**62):
        for place in (0, 1, -1):
            firsts = right["firsts"].clone()
            firsts[place] = value
            yield f"firsts[{place}] is {value}", {**right, "firsts": firsts}
    for kind in (torch.float16, torch.float32, torch.bfloat16):
        for value in (math.nan, math.inf, -math.inf, torch.finfo(kind).max, 1e-30):
            for row in (0, slice(None)):
                states = right["states"].to(kind)
                states[row] = value
                yield f"states[{row}] is {value} in {kind}", {**right, "states": states}


@pytest.mark.parametrize("file", ["../..", "../other/shard-000001.safetensors", "/etc/passwd", ".", ""])
def test_a_shard_lies_in_the_folder(
    file: str, folder: Path, model: Path, capfd: pytest.CaptureFixture[str], library: Path
) -> None:
    body = read_list(folder)
    body["shards"][0]["file"] = file
    write_list(folder, body)
    for command in (["answer", "--index", folder, QUESTION], ["index", library / "garden.md", "--output", folder]):
        assert main([str(word) for word in (*command, "--model", model)]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith(f"error: '{folder / MANIFEST}' is not as Longspan writes it (the list.shards[0].file is ")
        assert err.endswith("make the index again with `longspan index`\n")


def test_a_shard_with_wrong_contents_is_left_out_and_mended(folder: Path, model: Path, library: Path) -> None:
    right = load_file(folder / "shard-000001.safetensors")
    write_shard(folder, {**right, "spans": right["spans"] + 1000})
    found = DocumentIndex(folder, model)
    assert [document.name for document in found.documents] == [str(library / "trees.md")]
    assert "shard-000001.safetensors' is not as Longspan writes it (spans[" in found.notes[0]
    assert "index these again" in found.notes[0]
    found.add([library / "garden.md", library / "house.md"])
    assert found.notes == []
    assert len(DocumentIndex(folder, model).documents) == 3


@pytest.mark.slow
@pytest.mark.parametrize("data", ["squality", "qmsum", "permissive"])
def test_what_real_documents_are_cut_into_passes(data: str, data_folder: Path) -> None:
    """The rules are those of what Longspan writes: passages rise, sentences lie in the text."""
    from longspan.data.summaries.readers import read_rows

    for row in read_rows(data, "validation", limit=20):
        document = document_of(row.source)
        passages = [asdict(one) | {"by_lines": sorted(one.by_lines), "pieces": 1} for one in passages_of(document)]
        about = {"name": document.name, "title": document.title, "pages": document.pages, "text": document.text}
        plain = json.loads(json.dumps([about | {"passages": passages}]))
        assert documents_of(plain, len(passages))[0][0].text == document.text
