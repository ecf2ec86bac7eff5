"""Notebooks: Markdown is text, code is code, outputs are nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longspan import answer, summarize
from longspan.errors import InputError
from longspan_documents.text.kinds import notebook
from longspan_documents.text.reading import read

CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# Weirs\n", "\n", "A **weir** raises the level."]},
    {"cell_type": "code", "outputs": [{"data": {"text/plain": "OUTPUT"}}], "source": "x = 1\nprint(x)\n"},
    {"cell_type": "raw", "source": "RAW"},
    {"cell_type": "markdown", "source": "- one\n- two"},
]
BLOCKS = [
    ("heading", "Weirs"),
    ("paragraph", "A weir raises the level."),
    ("code", "x = 1\nprint(x)"),
    ("item", "one"),
    ("item", "two"),
]


def blocks(path: Path, given: Any) -> list[tuple[str, str]]:
    path.write_text(json.dumps(given), encoding="utf-8")
    document = read(path)
    for block in document.blocks:
        assert block.text.split()[0] in document.text[block.body.start : block.body.end]
    return [(block.kind, block.text) for block in document.blocks]


@pytest.mark.parametrize("name", ["a.ipynb", "a", "a.json"])
def test_cells_in_order(tmp_path: Path, name: str) -> None:
    assert blocks(tmp_path / name, {"cells": CELLS, "nbformat": 4}) == BLOCKS
    assert read(tmp_path / name).title == "Weirs"


def test_the_older_format(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Weirs"]},
        {"cell_type": "code", "input": ["x = 1"], "language": "python"},
        {"cell_type": "markdown", "source": "It is one."},
    ]
    given = {"worksheets": [{"cells": cells}], "nbformat": 3}
    assert blocks(tmp_path / "a.ipynb", given) == [("heading", "Weirs"), ("code", "x = 1"), ("paragraph", "It is one.")]


@pytest.mark.parametrize(
    "text", ['{"cells": [', '{"nbformat": 4}', "[]", "[" * 100_000, "no JSON", '{"cells": [1, null]}']
)
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(InputError, match=r"a\.ipynb (is damaged|holds no cells)"):
        read(tmp_path / "a.ipynb")


def test_more_values_than_bearable_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_VALUES", 100)
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": CELLS, "outputs": list(range(200))}))
    with pytest.raises(InputError, match=r"more than 100 values.*clear its outputs"):
        read(tmp_path / "a.ipynb")


def test_a_notebook_of_code_alone_holds_no_sentences(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "code.ipynb"
    source = 'def weigh(snail):\n    """Return its weight. It is small."""\n    return snail.weight\n'
    cells = [{"cell_type": "code", "source": source, "outputs": []}, {"cell_type": "code", "source": "weigh(1)"}]
    assert blocks(path, {"cells": cells, "nbformat": 4}) == [("code", source.rstrip()), ("code", "weigh(1)")]
    assert caplog.messages == [f"note: {path}: it holds code, which is no prose: no sentences are found in it"]
    assert not summarize(path).sentences
    assert "weight" in answer(path, "the weight of a snail").passages[0].text


def test_a_title_above_code_makes_no_sentence(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": "# Weights"}, {"cell_type": "code", "source": "x = 1"}]
    assert blocks(tmp_path / "a.ipynb", {"cells": cells}) == [("heading", "Weights"), ("code", "x = 1")]
