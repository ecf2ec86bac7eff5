"""Slides that python-pptx writes: title, body and notes in order."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pptx
import pytest
from pptx.util import Cm

from longspan.errors import InputError
from longspan_documents.text.reading import read


def saved(path: Path) -> Any:
    show = pptx.Presentation()
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text = "The gate"
    body = first.placeholders[1].text_frame
    body.text = "It is opened in the morning."
    deeper = body.add_paragraph()
    deeper.text, deeper.level = "By the keeper.", 1
    first.notes_slide.notes_text_frame.text = "Say who the keeper is."
    second = show.slides.add_slide(show.slide_layouts[5])
    second.shapes.add_textbox(Cm(1), Cm(1), Cm(5), Cm(2)).text_frame.text = "A box of words."
    second.shapes.title.text = "Prices"
    table = second.shapes.add_table(2, 2, Cm(1), Cm(4), Cm(5), Cm(2)).table
    for place, words in enumerate(["Grain", "Price", "Rye", "4"]):
        table.cell(place // 2, place % 2).text = words
    hidden = show.slides.add_slide(show.slide_layouts[5])
    hidden.shapes.title.text = "Hidden"
    hidden._element.set("show", "0")
    show.save(str(path))
    return show


def test_title_body_and_notes_in_order(tmp_path: Path) -> None:
    saved(tmp_path / "a.pptx")
    document = read(tmp_path / "a.pptx")
    assert [(block.kind, block.level, block.text) for block in document.blocks] == [
        ("heading", 1, "The gate"),
        ("item", 1, "It is opened in the morning."),
        ("item", 2, "By the keeper."),
        ("note", 0, "Say who the keeper is."),
        ("heading", 1, "Prices"),
        ("paragraph", 0, "A box of words."),
        ("table", 0, "| Grain | Price |\n| Rye | 4 |"),
    ]
    assert document.title == "The gate"


def test_the_order_is_that_of_the_presentation(tmp_path: Path) -> None:
    show = saved(tmp_path / "a.pptx")
    slides = show.slides._sldIdLst
    slides.append(slides[0])
    show.save(str(tmp_path / "b.pptx"))
    headings = [block.text for block in read(tmp_path / "b.pptx").blocks if block.kind == "heading"]
    assert headings == ["Prices", "The gate"]


def test_damaged_slides(tmp_path: Path) -> None:
    saved(tmp_path / "a.pptx")
    data = (tmp_path / "a.pptx").read_bytes()
    (tmp_path / "b.pptx").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"b\.pptx is damaged"):
        read(tmp_path / "b.pptx")
    (tmp_path / "c.pptx").write_text("Words.")
    with pytest.raises(InputError, match="is not a PowerPoint presentation, despite its name"):
        read(tmp_path / "c.pptx")
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            after.writestr(name, b"<p" if name == "ppt/slides/slide1.xml" else before.read(name))
    (tmp_path / "d.pptx").write_bytes(changed.getvalue())
    with pytest.raises(InputError, match=r"d\.pptx is damaged"):
        read(tmp_path / "d.pptx")
