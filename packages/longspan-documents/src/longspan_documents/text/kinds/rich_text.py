"""Rich text (.rtf), parsed by striprtf; headings by the styles of the file, if it has any."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.documents import check_words
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.tidying.apparatus import with_tables
from longspan_documents.text.tidying.structure import with_items

LARGEST = 1 << 24
"""In characters without pictures; the library takes a microsecond for each."""
DEEPEST = 6
"""Levels of headings."""

_PICTURE = re.compile(rb"[0-9a-fA-F\r\n]{256,}")
"""The bytes of a picture."""
_HIDDEN = re.compile(r"\{\\v(?![a-z0])[^{}]*\}|\{\\\*\\(?:comment|annotation|atnid|atnauthor)[^{}]*\}")
_TOKEN = re.compile(r"\\(pard|par|line|s|outlinelevel)(-?\d{1,5})?(?![a-z\d]) ?|\\[^a-z]|[{}]")
"""Tokens that define the style of a paragraph and its end; a backslash before a symbol; braces."""
_STYLES = re.compile(r"\{\s*\\stylesheet(?![a-z])((?:[^{}]|\{(?:[^{}]|\{[^{}]{0,2000}\}){0,200}\}){0,20000})\}")
_STYLE = re.compile(r"\{((?:[^{}]|\{[^{}]{0,2000}\}){0,5000})\}")
_NAME = re.compile(r"(?:^|[ }])([^\\{};]*);\s*$")
_HEADING = re.compile(r"heading ?(\d)", re.IGNORECASE)
_MARK = 0xFDE0
"""Plus the level of a heading, the character, unused in texts, that marks its end."""
_MARKED = re.compile(f"[{chr(_MARK)}-{chr(_MARK + DEEPEST)}]")


def _read(source: Source) -> Document | str:
    library = require("striprtf.striprtf", extra="documents", purpose="reading rich text")
    text = _PICTURE.sub(b"", source.data).decode("latin-1")
    if len(text) > LARGEST:
        raise InputError(f"{source.name} holds more than {LARGEST >> 20} MiB of rich text; save it as .docx or .txt")
    try:
        words = library.rtf_to_text(_with_marks(_HIDDEN.sub("", text)), errors="replace")
    except (ValueError, LookupError, IndexError, OverflowError, TypeError, RecursionError) as error:
        raise InputError(f"{source.name} is damaged ({type(error).__name__}); save it again, or as .docx") from None
    words = words.replace("\0", "")
    check_words(_MARKED.sub("", words), source.name)
    if not _MARKED.search(words):
        return re.sub(r"\s*\n\s*", "\n\n", words.strip())
    document = document_from_parts(_parts(words), source.name)
    return Document(text=document.text, blocks=tuple(with_tables(with_items(document.blocks))), name=source.name)


def _parts(words: str) -> Iterator[Part]:
    """Yields the paragraphs and headings, by the marks of `_with_marks`."""
    for line in words.split("\n"):
        mark = _MARKED.search(line)
        if text := _MARKED.sub("", line).strip():
            yield ("heading", text, ord(mark[0]) - _MARK) if mark else ("paragraph", text, 0)


def _with_marks(text: str) -> str:
    """Returns the source with a mark at the end of each heading, by its style or its own outline level."""
    levels = _levels(text)
    pieces: list[str] = []
    outer: list[int] = []
    level = done = 0
    for token in _TOKEN.finditer(text):
        word, number = token[1], token[2]
        if token[0] == "{":
            outer.append(level)
        elif token[0] == "}":
            level = outer.pop() if outer else 0
        elif word == "pard":
            level = 0
        elif word == "s":
            level = levels.get(number or "0", 0)
        elif word == "outlinelevel":
            level = _deep(number) or level
        elif level and word in {"par", "line"}:
            pieces += [text[done : token.start()], f"{{\\uc0\\u{_MARK + level} }}\\par " if word == "par" else " "]
            done = token.end()
    return "".join([*pieces, text[done:]])


def _levels(text: str) -> dict[str, int]:
    """Returns the levels of heading styles, by outline level, name, or base style."""
    sheet = _STYLES.search(text)
    levels: dict[str, int] = {}
    bases: dict[str, str] = {}
    for style in _STYLE.finditer(sheet[1]) if sheet else ():
        number = re.search(r"\\s(\d{1,5})(?!\d)", style[1])
        if number is None:
            continue
        outline = re.search(r"\\outlinelevel(\d)(?!\d)", style[1])
        base = re.search(r"\\sbasedon(\d{1,5})", style[1])
        name = _NAME.search(style[1])
        named = _HEADING.fullmatch(name[1].strip()) if name else None
        if name and name[1].strip().lower() == "title":
            levels[number[1]] = 1
        elif named or (outline and _deep(outline[1])):
            levels[number[1]] = min(int(named[1]), DEEPEST) if named else _deep(outline[1] if outline else None)
        elif base and not outline:
            bases[number[1]] = base[1]
    for style, base in bases.items():
        visited: set[str] = set()
        while base in bases and base not in visited:
            visited.add(base)
            base = bases[base]
        if base in levels:
            levels[style] = levels[base]
    return levels


def _deep(outline: str | None) -> int:
    """Returns the level of a heading by its outline level, 0 for text."""
    return min(int(outline) + 1, DEEPEST) if outline in set("012345678") else 0


RICH_TEXT = FileKind(
    name="rich-text",
    title="a rich-text file",
    endings=(".rtf",),
    signature=lambda source: source.head.lstrip().startswith(b"{\\rtf"),
    sure=True,
    read=_read,
    parts=(
        "Paragraphs, headings by their style or outline level, lists by their bullets; without such styles, "
        "headings are guessed as in plain text."
    ),
    left_out="pictures, comments, hidden text, page headers and footers",
    library="striprtf",
)
