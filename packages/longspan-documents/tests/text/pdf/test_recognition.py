"""Pages that are pictures, read by text recognition: the words, their order, what is said, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from longspan.errors import InputError
from longspan_documents.text.pdf import recognition
from longspan_documents.text.pdf.reader import document_from_pdf
from longspan_documents.text.pdf.recognition import lines_of_boxes
from longspan_documents.text.reading import read

LINES = ["The keeper opens the gate at noon.", "In spring the water rises by 40 percent."]


def page(lines: list[str], size: tuple[int, int] = (1240, 900)) -> Image.Image:
    """A page as a scanner sees it, letters of a height of 20 points in a width of 595."""
    image = Image.new("L", size, 255)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((100, 100 + 70 * number), line, 0, ImageFont.load_default(42))
    return image


def saved(images: list[Image.Image], form: str) -> bytes:
    data = io.BytesIO()
    images[0].save(data, form, save_all=len(images) > 1, append_images=images[1:])
    return data.getvalue()


def test_scans_are_read_and_told() -> None:
    document = document_from_pdf(saved([page(LINES), page(LINES[1:])], "PDF"), "x.pdf", ocr=True)
    assert " ".join(" ".join(block.text for block in document.blocks).split()) == " ".join([*LINES, LINES[1]])
    assert (document.pictures, document.recognised) == ((1, 2), (1, 2))
    assert document.note == "pages 1 and 2 of 2 are pictures, which were read by text recognition (OCR)"
    assert document.page(document.text.rindex("spring")) == 2


def test_images_are_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    for form, pages in (("PNG", 1), ("TIFF", 2)):
        path.write_bytes(saved([page(LINES), page(LINES[:1])][:pages], form))
        with pytest.raises(
            InputError, match=r"a\.dat is an image; read it by text recognition, with --ocr or ocr=True"
        ):
            read(path)
        document = read(path, ocr=True)
        assert " ".join(document.text.split()) == " ".join([*LINES, LINES[0]][: pages + 1])
        assert len(document.pages) == pages


def test_damaged_empty_and_large_ones(typeset: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = saved([page(LINES)], "PNG")
    with pytest.raises(InputError, match=r"x cannot be read by text recognition \(it is damaged"):
        recognition.recognised_pages(broken[: len(broken) // 2], "x")
    with pytest.raises(InputError, match=r"x\.pdf holds no text on its 1 pages, and text recognition found none"):
        document_from_pdf(saved([page([])], "PDF"), "x.pdf", ocr=True)
    monkeypatch.setattr(recognition, "MOST_PAGES", 1)
    with pytest.raises(InputError, match=r"x\.pdf has 2 pages that are pictures, .* reads 1 of a file at most; cut it"):
        document_from_pdf(typeset([], []), "x.pdf", ocr=True)


def test_lines_of_boxes() -> None:
    """Heights that differ by a hair are one size; base lines lie 0.22 of the height above the lower end of a box."""
    boxes = [
        [50, 90, 300, 110, "a"],
        [50, 115, 99, 137, " b  c "],
        [50, 20, 300, 60, "Title"],
        [9, 150, 90, 170, " "],
    ]
    lines = lines_of_boxes(boxes, 3)
    assert [(line.text, line.page) for line in lines] == [("a", 3), ("b c", 3), ("Title", 3)]
    assert lines[0].size == lines[1].size == pytest.approx(0.72 * 21)  # the median of 20, 22, 40 and 20
    assert lines[2].size == pytest.approx(0.72 * 40)
    assert lines[0].base == pytest.approx(110 - 0.22 * 21)
