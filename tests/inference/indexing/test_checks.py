"""Index folders with right checksums and wrong contents: a right answer, or one sentence that names file and field."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan import DocumentIndex, InputError
from longspan.cli import main
from longspan.data.text.passages import passages_of
from longspan.data.text.reading import document_of
from longspan.inference.indexing import documents as indexing
from longspan.inference.indexing.checks import documents_of
from longspan.inference.indexing.store import COPY, MANIFEST, _checksum_of, checksum_of

QUESTION = "who planted the roses"
GONE = object()
"""In place of a value: its key is taken away."""
WRONG: tuple[Any, ...] = (
    *(GONE, None, True, -1, 0, 7, 10**30, 0.5, "", "x", "../..", "a\0b", "\ud800", "é" * 5000),
    *([], [0], [-5, 3], {}, [{}]),
)
Change = Callable[[Any], Any]


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


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data; of lists the first entry."""
    if path:
        yield path
    for key in list(plain) if isinstance(plain, dict) else [0] if isinstance(plain, list) and plain else []:
        yield from places(plain[key], (*path, key))


def spoilt(plain: Any) -> Iterator[tuple[str, Any]]:
    """Copies with one thing wrong, and what it is: each value in turn, keys too many, lists longer, shorter, turned."""
    for path in [(), *places(plain)]:
        changes: list[tuple[str, Change]] = []
        if path:
            changes += [(f"is {str(value)[:12]!r}", lambda _, value=value: value) for value in WRONG]
        found = plain
        for key in path:
            found = found[key]
        if isinstance(found, dict):
            changes.append(("has a key too many", lambda old: {**old, "more": 1}))
        if isinstance(found, list):
            changes += [("is turned", lambda old: old[::-1]), ("is twice", lambda old: old + old)]
            changes += [("is shorter", lambda old: old[:-1])]
        if isinstance(found, int):
            changes += [("is one more", lambda old: old + 1), ("is one less", lambda old: old - 1)]
        for what, change in changes:
            yield f"{path} {what}", replaced(plain, path, change)


def replaced(plain: Any, path: tuple[Any, ...], change: Change) -> Any:
    if not path:
        return change(plain)
    made = copy.deepcopy(plain)
    place = made
    for key in path[:-1]:
        place = place[key]
    value = change(place[path[-1]])
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


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


def outcome(folder: Path, model: Path) -> str | None:
    """What is wrong with the answer of an index: nothing, where it is a right one or one sentence with a remedy."""
    try:
        index = DocumentIndex(folder, model)
        found = index.answer(QUESTION)
        texts = {document.name: document.text for document in index.documents}
        quotes = [(one.file, one.quote) for one in found.passages] + [
            (one.file, one.sentence) for one in found.passages
        ]
        if found.short is not None:
            quotes.append((index.documents[found.short.document].name, found.short.quote))
        numbers = [found.probability, *(one.probability for one in found.passages)]
        numbers += [] if found.short is None else [found.short.probability]
        if not all(math.isfinite(number) and 0 <= number <= 1 for number in numbers):
            return f"probabilities {numbers}"
        wrong = [quote for name, quote in quotes if texts[name][quote.start : quote.end] != quote.text]
        return f"no quotes: {wrong}" if wrong or "nan" in str(found) else None
    except InputError as error:
        said = str(error)
        if "\n" in said or not any(place in said for place in (str(folder), "the index")):
            return f"an unclear sentence: {said}"
        return None if any(words in said for words in ("longspan index", "index these again", "--model")) else said
    except Exception as error:  # noqa: BLE001 - any is a fault, to be listed with its case
        return repr(error)


def check(folder: Path, model: Path, name: str, failed: list[str]) -> None:
    wrong = outcome(folder, model)
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
    for name, tensors in spoilt_tensors(right):
        write_shard(folder, {key: value.contiguous() for key, value in tensors.items()})
        check(folder, model, name, failed)
    assert not failed, "\n".join(failed)


def spoilt_tensors(right: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for key, tensor in right.items():
        yield f"{key} is missing", {name: value for name, value in right.items() if name != key}
        for kind in (torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32):
            yield f"{key} is {kind}", {**right, key: tensor.to(kind)}
        for what, made in {
            "no dimensions": torch.zeros((), dtype=tensor.dtype),
            "nothing": tensor[:0],
            "one more dimension": tensor[None],
            "shorter": tensor[:-1],
            "longer": torch.cat([tensor, tensor]),
            "turned": tensor.flip(0),
            "narrower": tensor[..., :-1],
            "zeros": torch.zeros_like(tensor),
        }.items():
            yield f"{key} is {what}", {**right, key: made}
    yield "one tensor too many", {**right, "more": torch.zeros(3)}
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
