"""PowerPoint slides (.pptx, ISO/IEC 29500-1, PresentationML): title, text and notes of each, in order."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import join, normpath, split
from typing import Any

from longspan_documents.text.archives.archive import Archive
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_TITLES = frozenset({"title", "ctrTitle"})
_NOT_TEXT = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})
"""Placeholders of numbers, dates, headers, footers and thumbnails."""
_BODIES = frozenset({"body", "obj", "subTitle"})


def _is_slides(source: Source) -> bool:
    archive = source.archive
    return archive is not None and "presentationml.presentation.main" in archive.types


def _read(source: Source) -> Document:
    assert source.archive is not None
    return document_from_parts(_parts(source.archive), source.name)


def _parts(archive: Archive) -> Iterator[Part]:
    main = next(iter(_related(archive, "", "officeDocument").values()), "ppt/presentation.xml")
    root = _tree(archive, main)
    if root is None:
        raise archive.damaged(ValueError("it lacks its list of slides"))
    slides = _related(archive, main, "slide")
    # A slide is read once, even if the list repeats it.
    for name in dict.fromkeys(slides.get(mark.get(f"{_R}id"), "") for mark in root.iter(f"{_P}sldId")):
        slide = _tree(archive, name)
        if slide is None or slide.get("show") in {"0", "false"}:
            continue
        for part in _slide(slide):
            archive.count(len(part[1]))  # nested shapes are read with each of their parents
            yield part
        for diagram in _related(archive, name, "diagramData").values():
            yield from _diagram(_tree(archive, diagram))
        for notes in _related(archive, name, "notesSlide").values():
            tree = _tree(archive, notes)
            for shape in () if tree is None else tree.iter(f"{_P}sp"):
                if _placeholder(shape) == "body":
                    for _, text in _paragraphs(shape):
                        yield "note", text, 0


def _slide(slide: Any) -> Iterator[Part]:
    """Yields the title first, wherever it is, then the other shapes in their order."""
    shapes = list(slide.iter(f"{_P}sp", f"{_P}graphicFrame", f"{_P}cxnSp"))
    titles = [one for one in shapes if _placeholder(one) in _TITLES]
    for shape in titles:
        if words := " ".join(text for _, text in _paragraphs(shape)):
            yield "heading", words, 1
    for shape in shapes:
        kind = _placeholder(shape)
        if shape in titles or kind in _NOT_TEXT or _is_hidden(shape):
            continue
        for table in shape.iter(f"{_A}tbl"):
            rows = [[_words(cell) for cell in row.findall(f"{_A}tc")] for row in table.findall(f"{_A}tr")]
            if rows := [row for row in rows if any(row)]:
                yield "table", "\n".join(f"| {' | '.join(row)} |" for row in rows), 0
        if shape.tag != f"{_P}graphicFrame":
            is_list = kind in _BODIES - {"subTitle"}
            for level, text in _paragraphs(shape):
                yield "item" if is_list else "paragraph", text, level + 1 if is_list else 0


def _diagram(tree: Any) -> Iterator[Part]:
    for point in () if tree is None else tree.iter(f"{_DIAGRAM}pt"):
        if words := _words(point):
            yield "item", words, 1


def _placeholder(shape: Any) -> str | None:
    """Returns the placeholder type of a shape: "title", "body" and so on; None if it is not a placeholder."""
    mark = next(shape.iter(f"{_P}ph"), None)
    return None if mark is None else mark.get("type", "obj")


def _is_hidden(shape: Any) -> bool:
    names = next(shape.iter(f"{_P}cNvPr"), None)
    return names is not None and names.get("hidden") in {"1", "true"}


def _paragraphs(shape: Any) -> Iterator[tuple[int, str]]:
    """Yields the level, from 0, and the words of each paragraph that is not empty."""
    for paragraph in shape.iter(f"{_A}p"):
        marks = paragraph.find(f"{_A}pPr")
        level = marks.get("lvl", "0") if marks is not None else "0"
        if words := _words(paragraph):
            yield int(level) if level in set("012345678") else 0, words


def _words(element: Any) -> str:
    pieces = []
    for part in element.iter(f"{_A}t", f"{_A}br", f"{_A}p", f"{_A}tab"):
        pieces.append(part.text or "" if part.tag == f"{_A}t" else " ")
    return " ".join("".join(pieces).split())


def _related(archive: Archive, part: str, kind: str) -> dict[str, str]:
    """Returns the related parts of a kind, of a part or, with "", of the file, by id."""
    folder, name = split(part)
    root = _tree(archive, join(folder, "_rels", f"{name}.rels"))
    return {
        one.get("Id"): normpath(join("/", folder, one.get("Target") or "")).lstrip("/")
        for one in (() if root is None else root)
        if one.get("TargetMode") != "External" and (one.get("Type") or "").rpartition("/")[2] == kind
    }


def _tree(archive: Archive, name: str) -> Any:
    return archive.tree(name, "reading slides")


SLIDES = FileKind(
    name="slides",
    title="a PowerPoint presentation",
    endings=(".pptx",),
    signature=_is_slides,
    sure=True,
    read=_read,
    parts=(
        "Slides in order: the title as a heading, bullets as items, other boxes as paragraphs, tables in "
        "rows, the speaker's notes as notes."
    ),
    left_out="hidden slides, numbers, dates and footers, charts, pictures",
    library="lxml",
)
