"""OpenDocument files (OASIS ODF 1.3): texts as blocks, spreadsheets as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longspan.errors import InputError
from longspan_documents.text.archives.archive import Archive
from longspan_documents.text.archives.layout import is_margin_text, lays_out
from longspan_documents.text.blocks import Kind, Part

MOST_REPEATS = 10_000
"""Maximum repetitions of a cell or a row with words; empty ones repeated to the end of the sheet are ignored."""
DEEPEST = 6

_SPACE = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _TABLE, _OFFICE, _STYLE = (f"{{{_SPACE}{name}:1.0}}" for name in ("text", "table", "office", "style"))
_WEIGHT = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}font-weight"
_LOCKED = f"{{{_SPACE}manifest:1.0}}encryption-data"
_NOT_SHOWN = frozenset(
    {f"{_TEXT}{tag}" for tag in ("tracked-changes", "note", "table-of-content", "hidden-text", "hidden-paragraph")}
    | {f"{_TEXT}{tag}-index" for tag in ("alphabetical", "table", "illustration", "object", "user")}
    | {f"{_OFFICE}annotation", f"{_OFFICE}annotation-end", f"{_OFFICE}forms", f"{_TEXT}ruby-text"}
)
_MARGINS = {"heads": ("header", "header-first", "header-left"), "feet": ("footer", "footer-first", "footer-left")}


def content_of(archive: Archive) -> Any:
    """Returns the root of the content part.

    Raises:
        InputError: the file is encrypted or damaged, or the 'documents' extra is not installed.
    """
    if b"encryption-data" in archive.part("META-INF/manifest.xml"):
        raise InputError(f"{archive.name} is locked with a password; save a copy without one")
    root = archive.tree("content.xml", "reading OpenDocument files")
    if root is None:
        raise archive.damaged(ValueError("it lacks its text"))
    return root


def parts_of_text(archive: Archive) -> Iterator[Part]:
    """Yields the headings, paragraphs, items, tables and notes of a text, in order; a note follows its paragraph."""
    root = content_of(archive)
    styles = {one.get(f"{_STYLE}name"): one.get(f"{_STYLE}parent-style-name") for one in root.iter(f"{_STYLE}style")}
    bold = {
        one.getparent().get(f"{_STYLE}name")
        for one in root.iter(f"{_STYLE}text-properties")
        if one.get(_WEIGHT) == "bold"
    }
    waiting: list[tuple[Any, int]] = [(one, 0) for one in root.iter(f"{_OFFICE}text")]
    while waiting:
        element, depth = waiting.pop()
        if element.tag in _NOT_SHOWN:
            continue
        if element.tag in {f"{_TEXT}p", f"{_TEXT}h"}:
            yield from _paragraph(element, depth, styles, bold, archive)
        elif element.tag == f"{_TABLE}table":
            cells = list(_cells(element, archive))
            if _is_built(element) or lays_out(cells):
                waiting.extend((cell, depth) for cell in reversed(list(_cells_of(element))))
                continue
            rows = [[" ".join(cell) for cell in row] for row in cells]
            if rows := [row for row in rows if any(row)]:
                yield "table", "\n".join(f"| {' | '.join(row)} |" for row in rows), 0
            yield from _notes(element, archive)
        else:
            deeper = depth + (element.tag == f"{_TEXT}list")
            waiting.extend((child, deeper) for child in reversed(element))


def margins_of(archive: Archive) -> tuple[list[Part], list[Part]]:
    """Returns page headers and footers, each text once, as notes; without page numbers."""
    root = archive.tree("styles.xml", "reading OpenDocument files")
    found: dict[str, dict[str, None]] = {which: {} for which in _MARGINS}
    for page in () if root is None else root.iter(f"{_STYLE}master-page"):
        for which, tags in _MARGINS.items():
            for margin in page.iter(*(f"{_STYLE}{tag}" for tag in tags)):
                for part in () if margin.get(f"{_STYLE}display") == "false" else margin.iter(f"{_TEXT}p", f"{_TEXT}h"):
                    text = " ".join(_words(part).split())
                    numbered = next(part.iter(f"{_TEXT}page-number", f"{_TEXT}page-count"), None) is not None
                    if is_margin_text(text, numbered=numbered):
                        found[which][text] = None
    heads, feet = ([("note", text, 0) for text in texts] for texts in found.values())
    return heads, feet  # pyright: ignore[reportReturnType]


def _is_built(table: Any) -> bool:
    """Whether cells contain more than data: tables, and headings with text below them."""
    for cell in table.iter(f"{_TABLE}table-cell"):
        if next(cell.iter(f"{_TABLE}table"), None) is not None:
            return True
        parts = [part.tag for part in cell.iter(f"{_TEXT}p", f"{_TEXT}h") if _words(part).strip()]
        if f"{_TEXT}h" in parts[:-1]:
            return True
    return False


def _cells_of(table: Any) -> Iterator[Any]:
    """Yields the cells of a table in row order, without those of nested tables."""
    waiting = list(reversed(table))
    while waiting:
        element = waiting.pop()
        if element.tag == f"{_TABLE}table-cell":
            yield element
        elif element.tag != f"{_TABLE}covered-table-cell":
            waiting.extend(reversed(element))


def _paragraph(
    element: Any, depth: int, styles: dict[str, str], bold: set[str | None], archive: Archive
) -> Iterator[Part]:
    lines = [line for piece in _words(element, "\v").split("\v") if (line := " ".join(piece.split()))]
    if lines:
        own = element.get(f"{_TEXT}style-name") or ""
        names = {own, styles.get(own) or ""}
        kind: Kind = "item" if depth else "paragraph"
        if names & {"Preformatted_20_Text", "Source_20_Code"}:
            kind = "code"
        if element.tag == f"{_TEXT}h" or "Title" in names:
            level = element.get(f"{_TEXT}outline-level") or "1"
            yield "heading", " ".join(lines), min(int(level), DEEPEST) if level in set("123456789") else 1
        else:
            first = next(iter(element), None)
            label = ""
            if first is not None and not (element.text or "").strip() and first.get(f"{_TEXT}style-name") in bold:
                label = " ".join(_words(first).split())
            text = ("\n" if kind in {"paragraph", "code"} else " ").join(lines)
            yield kind, text, depth if kind == "item" else 0, label
    yield from _notes(element, archive)
    for box in element.iter(f"{{{_SPACE}drawing:1.0}}text-box"):
        for part in box.iter(f"{_TEXT}p"):
            if words := " ".join(_counted(part, archive).split()):
                yield "paragraph", words, 0


def _notes(element: Any, archive: Archive) -> Iterator[Part]:
    for note in element.iter(f"{_TEXT}note-body"):
        if words := " ".join(" ".join(_counted(part, archive) for part in note.iter(f"{_TEXT}p")).split()):
            yield "note", words, 0


def _counted(paragraph: Any, archive: Archive) -> str:
    """Returns the words of a paragraph that may be nested in another and is then read with both."""
    words = _words(paragraph)
    archive.count(len(words))
    return words


def _words(paragraph: Any, line_break: str = " ") -> str:
    """Returns the visible characters of a paragraph."""
    pieces: list[str] = []
    waiting: list[Any] = [paragraph]
    while waiting:
        element = waiting.pop()
        if isinstance(element, str):
            pieces.append(element)
            continue
        if element is not paragraph and (element.tag in _NOT_SHOWN or element.tag.endswith("}text-box")):
            continue
        if element.tag in {f"{_TEXT}s", f"{_TEXT}tab", f"{_TEXT}line-break"}:
            pieces.append(line_break if element.tag == f"{_TEXT}line-break" else " ")
        for child in reversed([one for one in element if isinstance(one.tag, str)]):
            waiting += [child.tail or "", child]
        waiting.append(element.text or "")
    return "".join(pieces)


def rows_of_sheets(archive: Archive) -> Iterator[tuple[str, Iterator[list[str]]]]:
    """Yields each sheet's name and rows, without empty cells and rows repeated to the end of the sheet."""
    for sheet in content_of(archive).iter(f"{_TABLE}table"):
        if sheet.getparent().tag == f"{_OFFICE}spreadsheet":
            yield sheet.get(f"{_TABLE}name") or "", ([" ".join(cell) for cell in row] for row in _cells(sheet, archive))


def _cells(table: Any, archive: Archive) -> Iterator[list[list[str]]]:
    """Yields the rows of a table as lists of cells, each a list of paragraphs."""
    for row in table.iter(f"{_TABLE}table-row"):
        cells: list[list[str]] = []
        for cell in row:
            if cell.tag in {f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"}:
                parts = [part for part in cell.iter(f"{_TEXT}p") if not _in_note(part)]
                words = [" ".join(_counted(part, archive).split()) for part in parts]
                times = _times(cell, "columns", any(words))
                archive.count((times - 1) * _size([words]))
                cells += [words] * times
        while cells and not any(cells[-1]):
            cells.pop()
        times = _times(row, "rows", True) if cells else 1
        archive.count((times - 1) * _size(cells))
        yield from [cells] * times


def _size(cells: list[list[str]]) -> int:
    """Returns the characters of some cells, plus one for each."""
    return len(cells) + sum(len(words) for cell in cells for words in cell)


def _in_note(part: Any) -> bool:
    return next(part.iterancestors(f"{_TEXT}note-body"), None) is not None


def _times(element: Any, what: str, is_filled: bool) -> int:
    number = element.get(f"{_TABLE}number-{what}-repeated") or "1"
    times = int(number) if number.isdigit() and len(number) < 8 else 1
    return min(times, MOST_REPEATS) if is_filled else min(times, 100)
