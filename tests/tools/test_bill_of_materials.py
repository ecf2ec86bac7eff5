"""Everything that is bundled beside the code has a licence and an origin, in the wheels and on a page."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

tool = pytest.importorskip("bill_of_materials", reason="runs in a checkout, not from an installed package")

ROOT = Path(__file__).parents[2]
OURS = ["docs/css", "docs/js", "docs/img", "docs/fonts"]
PACKAGES = ("longspan", "longspan-documents", "longspan-papers")


def test_every_bundled_file_belongs_to_one_part() -> None:
    listed = [file for part in tool.PARTS for file in tool.files_of(part)]
    assert len(set(listed)) == len(listed)
    assert set(tool.tracked(*(f"packages/{name}/src" for name in PACKAGES), *OURS)) <= set(listed)
    assert all(tool.files_of(part) for part in tool.PARTS)


def test_bills_and_page_are_up_to_date() -> None:
    remedy = "run `python tools/bill_of_materials.py`"
    for path, text in tool.written().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: {remedy}"


def test_a_bill_names_files_as_the_wheel_has_them_with_checksums_of_weights() -> None:
    bill = json.loads((ROOT / "packages/longspan-documents/longspan-documents.cdx.json").read_text(encoding="utf-8"))
    parts = {part["name"]: part for part in bill["components"]}
    weights = {file["name"]: file for file in parts["encoder of passages"]["components"]}
    name = "longspan_documents/bundled/passages/model.safetensors"
    content = (ROOT / "packages/longspan-documents/src" / name).read_bytes()
    assert weights[name]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    ancestor = parts["encoder of passages"]["pedigree"]["ancestors"][0]
    assert (ancestor["name"], ancestor["licenses"][0]["license"]["id"]) == ("all-MiniLM-L6-v2", "Apache-2.0")
    assert all(part["licenses"] for part in bill["components"])
