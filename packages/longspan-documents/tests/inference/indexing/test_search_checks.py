"""Folders of indexes without a model whose files say something wrong: a right answer, or one sentence with a remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import longspan
from longspan import InputError
from longspan.cli import main
from longspan_documents.inference.indexing.growing import LIST
from longspan_documents.inference.indexing.search import SearchIndex
from spoilt import outcome, spoilt, spoilt_tensors

QUESTION = "who planted the roses"


@pytest.fixture
def folder(library: Path, tmp_path: Path) -> Path:
    """An index of three documents in two parts."""
    place = tmp_path / "index"
    longspan.index([library / "garden.md", library / "house.md"], place)
    longspan.index(library / "trees.md", place)
    return place


def write_list(folder: Path, body: Any) -> None:
    (folder / LIST).write_text(json.dumps(body, ensure_ascii=True), encoding="utf-8")


def read_list(folder: Path) -> dict[str, Any]:
    return json.loads((folder / LIST).read_text(encoding="utf-8"))


def write_part(folder: Path, tensors: dict[str, Tensor]) -> None:
    """The first part anew, and the list so that it agrees."""
    body = read_list(folder)
    file = folder / body["parts"][0]["file"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    body["parts"][0]["bytes"] = file.stat().st_size
    write_list(folder, body)


def faults(folder: Path, cases: Iterator[tuple[str, Any]], write: Any) -> list[str]:
    """What is wrong with the answers of an index that `write` spoils, case by case."""
    failed = []
    for number, (name, spoiled) in enumerate(cases):
        write(folder, spoiled)
        wrong = outcome(lambda: SearchIndex(folder), QUESTION, folder)
        failed += [f"{number}: {name}: {wrong[:300]}"] if wrong else []
    return failed


def test_every_field_of_the_list(folder: Path) -> None:
    cases = list(spoilt(read_list(folder)))
    assert len(cases) > 250
    assert faults(folder, iter(cases), write_list) == []


@pytest.mark.slow
def test_every_field_of_the_documents(folder: Path) -> None:
    right = load_file(folder / read_list(folder)["parts"][0]["file"])
    end = int(right["places"][1])
    first, others = (bytes(part.numpy()) for part in right["documents"].split([end, len(right["documents"]) - end]))

    def write(folder: Path, text: bytes) -> None:
        places = right["places"] + (len(text) - end) * (right["places"] > 0)
        documents = torch.frombuffer(bytearray(text + others), dtype=torch.uint8)
        write_part(folder, {**right, "documents": documents, "places": places})

    cases = [(name, json.dumps(one).encode()) for name, one in spoilt(json.loads(first))]
    assert len(cases) > 250
    texts = (b"", b"[", b"\xff\xfe\x00", b"nothing", b"[" * 100_000, b"[1e999]", b'{"name": NaN}', b"[]")
    cases += [(f"all is {text[:9]!r}", text) for text in texts]
    assert faults(folder, iter(cases), write) == []


@pytest.mark.slow
def test_every_tensor(folder: Path) -> None:
    right = load_file(folder / read_list(folder)["parts"][0]["file"])
    assert faults(folder, spoilt_parts(right), write_part) == []


def spoilt_parts(right: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    yield from spoilt_tensors(right)
    for name, values in {
        "owners": (-(2**31), -1, 1, 7, 2**31 - 1),
        "places": (-(2**62), -1, 1, 10**6, 2**62),
        "firsts": (-(2**62), -1, 1, 10**6, 2**62),
        "rows": (-(2**31), -1, 1, 10**6, 2**31 - 1),
        "lengths": (-(2**31), -1, 0, 2**31 - 1),
        "counts": (-(2**31), -1, 0, 2**31 - 1),
        "vectors": (math.nan, math.inf, -math.inf, 65504.0),
    }.items():
        for value in values:
            for place in (0, 1, -1, slice(None)):
                changed = right[name].clone()
                changed[place] = value
                yield f"{name}[{place}] is {value}", {**right, name: changed}


@pytest.mark.parametrize("file", ["../..", "../other/part-000001.safetensors", "/etc/passwd", ".", ""])
def test_a_part_lies_in_the_folder(file: str, folder: Path, capfd: pytest.CaptureFixture[str], library: Path) -> None:
    body = read_list(folder)
    body["parts"][0]["file"] = file
    write_list(folder, body)
    for command in (["answer", "--index", folder, QUESTION], ["index", library / "garden.md", "--output", folder]):
        assert main([str(word) for word in command]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith(f"error: '{folder / LIST}' is not as Longspan writes it (parts[0].file is ")
        assert err.endswith("make the index again with `longspan index`\n")


def test_another_width_is_another_encoder(folder: Path) -> None:
    """As where an index is asked by an encoder that it was not made by."""
    body = read_list(folder)
    body["width"] = 3
    for part in body["parts"]:
        tensors = load_file(folder / part["file"])
        save_file({**tensors, "vectors": tensors["vectors"][:, :3].contiguous()}, folder / part["file"])
        part["bytes"] = (folder / part["file"]).stat().st_size
    write_list(folder, body)
    with pytest.raises(InputError, match=r"holds vectors of 3 numbers, and the encoder gives 384; give the encoder"):
        SearchIndex(folder).answer(QUESTION)
