"""reStructuredText (.rst), parsed by docutils; of Sphinx extensions, the words are kept."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from longspan.errors import InputError, last_line
from longspan.imports import require
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.documents import check_words
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

LARGEST = 1 << 23
"""In characters; the library takes some microseconds for each."""

LONGEST_LINE = 10_000
"""In characters, as in the library, whose time is quadratic in the length of a line."""

_ROLE = re.compile(r":([a-zA-Z][\w.+:-]{0,60}):`([^`]{1,1000})`")
_TARGET = re.compile(r"\s*<[^<>]*>$")
_DIRECTIVE = re.compile(
    r"^([ \t]*)\.\.[ \t]+([a-zA-Z][\w.+:-]{0,60})::[ \t]*(.*)((?:\n[ \t]+:[\w-]+:[^\n]*)*)$", re.MULTILINE
)
_DROPPED = frozenset({
    "toctree", "automodule", "autoclass", "autofunction", "automethod", "autosummary", "autodata",
    "autoexception", "index", "currentmodule", "module", "py:module", "py:currentmodule", "highlight", "include",
    "literalinclude", "only", "tabularcolumns", "codeauthor", "sectionauthor", "image", "raw", "contents", "meta",
    "default-role", "default-domain", "figure", "graphviz", "digraph", "plot", "jinja",
})  # fmt: skip
"""Directives without text, or that draw."""
_CODE = frozenset({
    "sourcecode", "code-block", "code", "ipython", "doctest", "testcode", "testoutput", "prompt",
    "productionlist", "console",
})  # fmt: skip
_KNOWN = frozenset({
    "note", "warning", "tip", "hint", "caution", "danger", "attention", "important", "error", "admonition",
    "topic", "sidebar", "parsed-literal", "math", "rubric", "epigraph", "highlights", "pull-quote", "compound",
    "container", "table", "csv-table", "list-table", "role", "replace", "unicode", "date", "class", "header",
    "footer", "line-block", "target-notes", "sectnum", "title",
})  # fmt: skip
"""Directives of docutils itself."""


def _read(source: Source) -> Document:
    core = require("docutils.core", extra="documents", purpose="reading reStructuredText")
    check_words(source.text, source.name)
    if len(source.text) > LARGEST:
        raise InputError(f"{source.name} is longer than {LARGEST >> 20} MiB, too long for reStructuredText; cut it")
    longest = max(map(len, source.text.splitlines()))
    if longest > LONGEST_LINE:
        raise InputError(
            f"{source.name} has a line of {longest:,} characters, and reStructuredText is read in lines of at most "
            f"{LONGEST_LINE:,}; break the line, or save it as .txt"
        )
    settings = {
        "_disable_config": True,
        "file_insertion_enabled": False,  # no other file is read
        "raw_enabled": False,
        "report_level": 5,
        "halt_level": 6,
        "warning_stream": io.StringIO(),
        "line_length_limit": LONGEST_LINE,
        "smart_quotes": False,
        "syntax_highlight": "none",
    }
    text = _DIRECTIVE.sub(_known, _ROLE.sub(_words_of_role, source.text))
    try:
        tree = core.publish_doctree(text, settings_overrides=settings)
    except (RecursionError, ValueError, AttributeError, IndexError, core.utils.SystemMessage) as error:
        raise InputError(
            f"{source.name} cannot be read as reStructuredText ({last_line(error)}); save it as .txt"
        ) from None
    return document_from_parts(_parts(tree), source.name)


def _words_of_role(match: re.Match[str]) -> str:
    """Returns the visible text of a role: its title, or its target without Sphinx's marks."""
    name, words = match[1], match[2]
    if name in {"sup", "sub", "superscript", "subscript"}:
        return f"{'^' if name.startswith('sup') else '_'}{words}"
    if name in {"math", "code"}:
        return match[0]
    return _TARGET.sub("", words).lstrip("~!")


def _known(match: re.Match[str]) -> str:
    """Replaces a Sphinx directive by one that docutils knows, keeping its words without its options."""
    margin, name, rest = match[1], match[2].lower(), match[3]
    if name in _DROPPED:
        return f"{margin}.. {name} {rest}{match[4]}"  # a comment, with everything indented below it
    if name in _CODE:
        return f"{margin}.. code-block:: {rest if re.fullmatch('[a-z0-9+-]*', rest) else ''}"
    if name in _KNOWN:
        return match[0]
    return f"{margin}.. container::\n\n{margin}   {rest}" if rest else f"{margin}.. container::"


def _parts(tree: Any) -> Iterator[Part]:
    nodes = require("docutils.nodes", extra="documents", purpose="reading reStructuredText")
    skipped = (nodes.comment, nodes.system_message, nodes.substitution_definition, nodes.raw, nodes.image, nodes.meta)
    code = (nodes.literal_block, nodes.doctest_block, nodes.math_block)
    sections = (nodes.section, nodes.document)
    # Pending: a node, its section depth, its list depth, and whether it belongs to a note.
    waiting: list[tuple[Any, int, int, bool]] = [(tree, 0, 0, False)]
    while waiting:
        node, level, depth, in_note = waiting.pop()
        if isinstance(node, skipped) or "contents" in node.get("classes", ()):
            continue
        if isinstance(node, nodes.title | nodes.subtitle | nodes.rubric):
            is_section = isinstance(node.parent, sections) or isinstance(node, nodes.rubric)
            yield ("heading" if is_section else "paragraph"), _line(node), max(level, 1) if is_section else 0
        elif isinstance(node, code):
            yield "code", node.astext(), 0
        elif isinstance(node, nodes.table):
            rows = [[_line(cell) for cell in row.children] for row in node.findall(nodes.row)]
            yield "table", "\n".join(f"| {' | '.join(row)} |" for row in rows), 0
        elif isinstance(node, nodes.docinfo):
            yield "boilerplate", _line(node), 0
        elif isinstance(node, nodes.caption):
            yield "caption", _line(node), 0
        elif isinstance(node, nodes.definition_list_item):
            term = ", ".join(_line(one) for one in node.findall(nodes.term))
            body = " ".join(_line(one) for one in node.findall(nodes.definition))
            yield "item", f"{term}: {body}", depth + 1
        elif isinstance(node, nodes.paragraph | nodes.line_block | nodes.field | nodes.option_list_item):
            if words := _line(node):
                first = node.children[0] if isinstance(node, nodes.paragraph) and node.children else None
                label = _line(first) if isinstance(first, nodes.strong) else ""
                kind = "note" if in_note else "item" if depth else "paragraph"
                yield kind, words, depth if kind == "item" else 0, label
        elif not isinstance(node, nodes.Text | nodes.label):
            inner = level + isinstance(node, nodes.section)
            deeper = depth + isinstance(node, nodes.list_item)
            note = in_note or isinstance(node, nodes.footnote | nodes.citation)
            waiting.extend((child, inner, deeper, note) for child in reversed(node.children) if hasattr(child, "get"))


def _line(node: Any) -> str:
    return " ".join(node.astext().split())


RESTRUCTURED = FileKind(
    name="restructured",
    title="a reStructuredText file",
    endings=(".rst", ".rest"),
    read=_read,
    parts=(
        "Headings, lists, tables, code, admonitions and footnotes; of Sphinx's own roles and directives, the words."
    ),
    left_out="comments, directives that draw or include other files",
    library="docutils",
)
