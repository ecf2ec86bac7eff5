"""Word files (.docx) as blocks of the visible text; the XML is specified in ISO/IEC 29500-1."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from posixpath import join, normpath, split, splitext
from typing import Any

from longspan.data.text.scripts import LEVEL, LOWERED, RAISED, with_scripts
from longspan.errors import InputError
from longspan_documents.text.archives.archive import Archive
from longspan_documents.text.archives.layout import is_margin_text, lays_out
from longspan_documents.text.blocks import Document, Kind, Part, document_from_parts
from longspan_documents.text.titles import could_be_title

DEEPEST = 6
"""Levels of headings."""
MOST_CHUNKS = 200
"""Maximum number of embedded documents in other formats."""

RISE = 4
"""In half points; letters shifted at least this far are superscripts or subscripts."""

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_TYPE = "{http://schemas.openxmlformats.org/package/2006/content-types}"
_BOX, _FALLBACK = f"{_W}txbxContent", f"{_MC}Fallback"
_NOT_SHOWN = frozenset(
    {f"{_W}{tag}" for tag in ("del", "moveFrom", "instrText", "delText", "rPr", "pPr", "footnoteRef", "endnoteRef")}
    | {_FALLBACK, _BOX}
)
"""Elements whose text is invisible, deleted, or shown elsewhere."""
_BREAKS = frozenset({f"{_W}br", f"{_W}cr"})
_SPACES = _BREAKS | {f"{_W}tab", f"{_W}ptab"}
_NOTES = {f"{_W}footnoteReference": "footnotes", f"{_W}endnoteReference": "endnotes"}
_SCRIPTS = {f"{_M}sup": RAISED, f"{_M}sub": LOWERED}
_HEADING = re.compile(r"heading (\d)")
_PAGE_NUMBER = re.compile(r"\b(?:NUMPAGES|SECTIONPAGES|PAGE)\b")
_FORMATS = {
    "application/rtf": ".rtf",
    "application/xhtml+xml": ".xhtml",
    "message/rfc822": ".mht",
    "text/html": ".html",
    "text/plain": ".txt",
    "text/rtf": ".rtf",
}
"""File suffixes of embedded documents, by media type."""
_LIST = re.compile(r"list(?: (?:bullet|number|continue|paragraph))?(?: (\d))?")
_STYLES: dict[str, Kind] = {"caption": "caption", "html preformatted": "code", "source code": "code", "macro": "code"}


Embedded = Callable[[bytes, str, str], Document]
"""Reads an embedded document from its bytes, the suffix of its format, and its name."""


def document_from_word(archive: Archive, embedded: Embedded | None = None, *, page_headers: bool = False) -> Document:
    """Returns the paragraphs, headings, items, tables and notes of a Word file in order.

    Comments, deleted text and field codes are left out, inserted text is kept, and the text of boxes and notes follows
    the paragraph with their mark. Documents in other formats (`altChunk`) are read in place; those that cannot be read
    are listed in the document's remarks.

    Args:
        archive: the opened file.
        embedded: reads the documents in other formats; None leaves them out, with a remark.
        page_headers: whether page headers and footers are read, each once as a note: headers before the text, footers
            after it.

    Raises:
        InputError: the file is damaged, too large or has no text, or the 'documents' extra is not installed.
    """
    reader = _Reader(archive, embedded)
    heads, feet = reader.margins() if page_headers else ([], [])
    body = list(reader.blocks(reader.body))
    if not body:
        pictures = ", maybe pictures of it; save it as .pdf, and read that with --ocr or ocr=True"
        raise InputError(f"{archive.name} holds no text{f' ({reader.remarks[0]})' if reader.remarks else pictures}")
    titles = [reader.title, *(text for kind, text, level, *_ in body if kind == "heading" and level == 1)]
    title = next(filter(could_be_title, titles), None)
    return replace(document_from_parts([*heads, *body, *feet], archive.name, title), remarks=tuple(reader.remarks))


class _Reader:
    """Reads the blocks of one file, with its styles, notes and other parts."""

    def __init__(self, archive: Archive, embedded: Embedded | None) -> None:
        self.archive, self.embedded = archive, embedded
        self.remarks: list[str] = []
        self.chunks = 0
        whole = _related(archive, "")
        document = whole.get("officeDocument", "")
        self.document = document
        self.related = _related(archive, document)
        self.root = _tree(archive, document)
        self.body: Any = None if self.root is None else self.root.find(f"{_W}body")
        if self.body is None:
            raise archive.damaged(ValueError("it lacks its text"))
        styles = _tree(archive, self.related.get("styles", ""))
        self.styles = (
            {} if styles is None else {element.get(f"{_W}styleId"): element for element in styles.iter(f"{_W}style")}
        )
        self.scripts = {name: script for name in self.styles if (script := self._script_of_style(name))}
        self.bold = {name for name, style in self.styles.items() if _is_bold(style)}
        notes = {kind: _tree(archive, self.related.get(kind, "")) for kind in _NOTES.values()}
        self.notes = {kind: dict(self._notes(root)) for kind, root in notes.items()}
        self.kinds: dict[str | None, tuple[Kind, int]] = {}
        core = _tree(archive, whole.get("core-properties", ""))
        self.title = "" if core is None else " ".join(core.findtext(_TITLE, "").split())

    @cached_property
    def parts(self) -> dict[str, str]:
        """Returns the parts that the text refers to, by id; "" for targets outside the file."""
        return {
            relation.get("Id"): "" if relation.get("TargetMode") == "External" else target
            for relation, target in _relations(self.archive, self.document)
        }

    def margins(self) -> tuple[list[Part], list[Part]]:
        """Returns the visible page headers and footers, each text once."""
        settings = _tree(self.archive, self.related.get("settings", ""))
        facing = settings is not None and _is_on(settings.find(f"{_W}evenAndOddHeaders"))
        found: tuple[dict[str, None], dict[str, None]] = ({}, {})
        for section in self.body.iter(f"{_W}sectPr"):
            shown = {None, "default"} | ({"even"} if facing else set())
            shown |= {"first"} if _is_on(section.find(f"{_W}titlePg")) else set()
            for which, texts in zip(("header", "footer"), found, strict=True):
                for reference in section.iter(f"{_W}{which}Reference"):
                    root = None
                    if reference.get(f"{_W}type") in shown:
                        root = _tree(self.archive, self.parts.get(reference.get(f"{_R}id"), ""))
                    texts.update(dict.fromkeys(self._of_margin(root)))
        heads, feet = ([("note", text, 0) for text in texts] for texts in found)
        return heads, feet  # pyright: ignore[reportReturnType]

    def _of_margin(self, root: Any) -> Iterator[str]:
        for paragraph in () if root is None else root.iter(f"{_W}p"):
            if next(paragraph.iterancestors(_FALLBACK), None) is not None:
                continue
            text = _text(paragraph, self.scripts)
            codes = [part.text or "" for part in paragraph.iter(f"{_W}instrText")]
            codes += [part.get(f"{_W}instr") or "" for part in paragraph.iter(f"{_W}fldSimple")]
            if is_margin_text(text, numbered=any(map(_PAGE_NUMBER.search, codes))):
                yield text

    def blocks(self, body: Any) -> Iterator[Part]:
        """Yields the paragraphs and tables below an element, including content controls."""
        for element in body:
            if element.tag == f"{_W}p":
                yield from self._paragraph(element)
            elif element.tag == f"{_W}tbl":
                yield from self._table(element)
            elif element.tag == f"{_W}altChunk":
                yield from self._chunk(self.parts.get(element.get(f"{_R}id")))
            elif element.tag in {f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml", f"{_W}ins", f"{_W}moveTo"}:
                yield from self.blocks(element)

    def _paragraph(self, paragraph: Any) -> Iterator[Part]:
        kind, level = self._kind(paragraph)
        text = _text(paragraph, self.scripts, kind if kind in {"code", "paragraph"} else None)
        if text:
            yield kind, text, level, _label(paragraph, self.bold)
        for box in _outermost(paragraph, _BOX, {_FALLBACK}):  # nested ones belong to their own paragraphs
            yield from self.blocks(box)
        yield from self._marked_notes(paragraph)

    def _marked_notes(self, element: Any) -> Iterator[Part]:
        """Yields the notes whose marks are in a paragraph or a table."""
        for tag, notes in _NOTES.items():
            for mark in _outermost(element, tag, {_FALLBACK, _BOX}):
                # Once, even with several marks.
                if note := self.notes[notes].pop(mark.get(f"{_W}id"), ""):
                    yield "note", note, 0

    def _chunk(self, part: str | None) -> Iterator[Part]:
        """Yields the blocks of a document in another format, which some programs embed instead of paragraphs."""
        self.chunks += 1
        if self.chunks == MOST_CHUNKS + 1:
            self.remarks.append(f"it holds more than {MOST_CHUNKS} embedded documents; the others were not read")
        if self.chunks > MOST_CHUNKS:
            return
        name = split(part or "")[1] or f"number {self.chunks}"
        problem = None if part else "it lies outside the file"
        if part:
            data = self.archive.part(part)
            problem = None if data and self.embedded else "it is empty or missing" if self.embedded else "not asked for"
            if problem is None and self.embedded is not None:
                try:
                    document = self.embedded(data, self._format(part), name)
                except InputError as error:
                    problem = str(error)
                else:
                    self.remarks += document.remarks
                    for block in document.blocks:
                        yield block.kind, f"{block.speaker}: {block.text}" if block.speaker else block.text, block.level
        if problem:
            self.remarks.append(f"the embedded document {name} was not read: {problem}")

    def _format(self, part: str) -> str:
        """Returns the suffix of a part's format, by its media type, otherwise by its name."""
        types = _tree(self.archive, "[Content_Types].xml")
        own = splitext(part)[1].lower()
        for one in () if types is None else chain(types.iter(f"{_TYPE}Override"), types.iter(f"{_TYPE}Default")):
            is_it = one.get("PartName") == f"/{part}" or f".{(one.get('Extension') or '').lower()}" == own
            if is_it and (ending := _FORMATS.get((one.get("ContentType") or "").partition(";")[0].strip().lower())):
                return ending
        return own

    def _kind(self, paragraph: Any) -> tuple[Kind, int]:
        """Returns the kind and level of a paragraph, by its own properties, otherwise by its style."""
        marks = paragraph.find(f"{_W}pPr")
        style = marks.find(f"{_W}pStyle") if marks is not None else None
        name = style.get(f"{_W}val") if style is not None else None
        if name not in self.kinds:
            self.kinds[name] = self._kind_of_style(name)
        kind, level = self.kinds[name]
        own = _marked(marks) if marks is not None else None
        return own if own is not None and kind in {"paragraph", "item"} else (kind, level)

    def _kind_of_style(self, name: str | None) -> tuple[Kind, int]:
        """Returns the kind by name, outline level and list of a style and its base styles."""
        visited: set[str | None] = set()
        while name in self.styles and name not in visited:
            visited.add(name)
            style = self.styles[name]
            label = style.find(f"{_W}name")
            known = _named((label.get(f"{_W}val") or "").lower() if label is not None else "")
            marks = style.find(f"{_W}pPr")
            kind = known or (_marked(marks) if marks is not None else None)
            if kind is not None:
                return kind
            base = style.find(f"{_W}basedOn")
            name = base.get(f"{_W}val") if base is not None else None
        return "paragraph", 0

    def _script_of_style(self, name: str | None) -> str:
        """Returns the superscript or subscript mark of a style or its base styles."""
        visited: set[str | None] = set()
        while name in self.styles and name not in visited:
            visited.add(name)
            marks = self.styles[name].find(f"{_W}rPr")
            script = _script_of(marks) if marks is not None else None
            if script is not None:
                return script
            base = self.styles[name].find(f"{_W}basedOn")
            name = base.get(f"{_W}val") if base is not None else None
        return ""

    def _words(self, element: Any) -> str:
        """Returns the words of all paragraphs in a cell or a note."""
        return " ".join(self._paragraphs(element)).strip()

    def _paragraphs(self, element: Any) -> list[str]:
        """Returns the words of each paragraph in a cell or a note."""
        texts = [
            _text(part, self.scripts)
            for part in element.iter(f"{_W}p")
            if next(part.iterancestors(_FALLBACK), None) is None
        ]
        self.archive.count(sum(map(len, texts)))  # nested paragraphs are read with each of their parents
        return [text for text in texts if text]

    def _notes(self, root: Any) -> Iterator[tuple[str, str]]:
        """Yields the id and the text of each foot- or endnote."""
        for note in () if root is None else root:
            yield note.get(f"{_W}id"), self._words(note)

    def _table(self, table: Any) -> Iterator[Part]:
        """Yields a data table as rows between bars; of a layout table, its cells in order."""
        rows = [list(_outermost(row, f"{_W}tc")) for row in _outermost(table, f"{_W}tr")]
        texts = [[self._paragraphs(cell) for cell in row] for row in rows]
        if self._is_built(rows) or lays_out(texts):
            for row in rows:
                for cell in row:
                    yield from self.blocks(cell)
        else:
            lines = [[" ".join(cell) for cell in row] for row in texts]
            yield "table", "\n".join(f"| {' | '.join(row)} |" for row in lines if any(row)), 0
            yield from self._marked_notes(table)

    def _is_built(self, rows: list[list[Any]]) -> bool:
        """Whether cells contain more than data: tables, other documents, headings with text below them."""
        for cell in (cell for row in rows for cell in row):
            if next(cell.iter(f"{_W}tbl", f"{_W}altChunk"), None) is not None:
                return True
            kinds = [self._kind(part)[0] for part in cell.iter(f"{_W}p") if _text(part, self.scripts)]
            if "heading" in kinds[:-1]:
                return True
        return False


def _named(name: str) -> tuple[Kind, int] | None:
    """Returns the kind of a built-in style by its name, which is English in every language."""
    if name == "title":
        return "heading", 1
    if match := _HEADING.fullmatch(name):
        return "heading", min(int(match[1]), DEEPEST)
    if name.startswith(("toc ", "header", "footer", "table of figures", "index ")):
        return "boilerplate", 0
    if match := _LIST.fullmatch(name):
        return None if name in {"list", "list paragraph"} else ("item", int(match[1] or 1))
    return (_STYLES[name], 0) if name in _STYLES else None


def _marked(marks: Any) -> tuple[Kind, int] | None:
    """Returns the kind by outline level and numbering in the properties of a paragraph or a style."""
    outline = marks.find(f"{_W}outlineLvl")
    if outline is not None and outline.get(f"{_W}val") in set("012345678"):
        return "heading", min(int(outline.get(f"{_W}val")) + 1, DEEPEST)
    numbers = marks.find(f"{_W}numPr")
    if numbers is None:
        return None
    number, level = numbers.find(f"{_W}numId"), numbers.find(f"{_W}ilvl")
    if number is not None and number.get(f"{_W}val") == "0":
        return "paragraph", 0
    depth = level.get(f"{_W}val") if level is not None else "0"
    return "item", 1 + int(depth) if depth in set("012345678") else 1


def _outermost(root: Any, tag: str, closed: Container[str] = ()) -> Iterator[Any]:
    """Yields the elements of a tag below `root` in order, without nested ones and those inside the tags `closed`."""
    waiting = list(reversed(root))
    while waiting:
        element = waiting.pop()
        if element.tag == tag:
            yield element
        elif element.tag not in closed:
            waiting.extend(reversed(element))


def _text(paragraph: Any, scripts: Mapping[str | None, str], kind: Kind | None = None) -> str:
    """Returns the visible words of a paragraph.

    Args:
        paragraph: the element.
        scripts: the mark of `longspan.data.text.scripts` for each style with superscripts or subscripts.
        kind: "code" keeps line breaks and indentation, "paragraph" line breaks; None returns one line.
    """
    pieces: list[str] = []
    waiting = [paragraph]
    while waiting:
        element = waiting.pop()
        if isinstance(element, str):
            pieces.append(element)
            continue
        if element.tag in _NOT_SHOWN or _is_hidden(element):
            continue
        if script := _script(element, scripts):
            pieces.append(script)
            waiting.append(LEVEL)
        if element.tag in {f"{_W}t", f"{_M}t"}:
            pieces.append(element.text or "")
        elif element.tag in _SPACES:
            pieces.append("\v" if element.tag in _BREAKS else " ")  # this character is invalid in XML
        elif element.tag == f"{_W}noBreakHyphen":
            pieces.append("-")
        waiting.extend(reversed(element))
    text = with_scripts("".join(pieces))
    if kind == "code":
        return "\n".join(line.rstrip() for line in text.split("\v")).strip("\n")
    lines = [line for piece in text.split("\v") if (line := " ".join(piece.split()))]
    return ("\n" if kind else " ").join(lines)


def _script(element: Any, scripts: Mapping[str | None, str]) -> str:
    """Returns the superscript or subscript mark of a run, or of a part of a formula; otherwise ""."""
    if element.tag in _SCRIPTS:
        return _SCRIPTS[element.tag]
    marks = element.find(f"{_W}rPr") if element.tag == f"{_W}r" else None
    if marks is None:
        return ""
    style = marks.find(f"{_W}rStyle")
    own = _script_of(marks)
    return own if own is not None else scripts.get(style.get(f"{_W}val"), "") if style is not None else ""


def _script_of(marks: Any) -> str | None:
    """Returns the vertical position of letters by their properties: a mark, "" for the base line, None if undefined."""
    level = marks.find(f"{_W}vertAlign")
    if level is not None:
        return {"superscript": RAISED, "subscript": LOWERED}.get(level.get(f"{_W}val"), "")
    moved = marks.find(f"{_W}position")
    halves = moved.get(f"{_W}val") if moved is not None else None
    if halves is None or not re.fullmatch(r"-?[0-9]{1,3}", halves) or abs(int(halves)) < RISE:
        return None
    return RAISED if int(halves) > 0 else LOWERED


def _label(paragraph: Any, styles: Container[str | None]) -> str:
    """Returns the bold words at the beginning of a paragraph; `styles` are the bold character styles."""
    pieces: list[str] = []
    for run in paragraph.iter(f"{_W}r"):
        if not (words := "".join(text.text or "" for text in run.iter(f"{_W}t"))).strip():
            pieces.append(words and " ")
            continue
        marks = run.find(f"{_W}rPr")
        style = marks.find(f"{_W}rStyle") if marks is not None else None
        bold = _is_bold(run)
        if bold is None and style is not None:
            bold = style.get(f"{_W}val") in styles
        if not bold:
            break
        pieces.append(words)
    return " ".join("".join(pieces).split())


def _is_bold(element: Any) -> bool | None:
    """Whether the properties of a run or a style are bold; None if undefined."""
    marks = element.find(f"{_W}rPr")
    bold = marks.find(f"{_W}b") if marks is not None else None
    return None if bold is None else _is_on(bold)


def _is_hidden(run: Any) -> bool:
    marks = run.find(f"{_W}rPr") if run.tag == f"{_W}r" else None
    return marks is not None and _is_on(marks.find(f"{_W}vanish"))


def _is_on(switch: Any) -> bool:
    """Whether a toggle property, which is on by being present, is on."""
    return switch is not None and switch.get(f"{_W}val", "1") not in {"0", "false", "off"}


def _related(archive: Archive, part: str) -> dict[str, str]:
    """Returns the first related part of each kind, of a part or, with "", of the file."""
    related: dict[str, str] = {}
    for relation, target in _relations(archive, part):
        if relation.get("TargetMode") != "External":
            related.setdefault((relation.get("Type") or "").rpartition("/")[2], target)
    return related


def _relations(archive: Archive, part: str) -> Iterator[tuple[Any, str]]:
    """Yields the relations of a part, each as its element and the name of the target part."""
    folder, name = split(part)
    root = _tree(archive, join(folder, "_rels", f"{name}.rels"))
    for relation in () if root is None else root:
        yield relation, normpath(join("/", folder, relation.get("Target") or "")).lstrip("/")


def _tree(archive: Archive, name: str) -> Any:
    return archive.tree(name, "reading Word files")
