"""LaTeX sources (.tex), parsed by pylatexenc: the visible text, as far as the file defines it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from longspan.characters import mend
from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.documents import check_words
from longspan_documents.text.kinds.latex_numbers import theorems_of, with_numbers
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

LARGEST = 1 << 22
"""In characters; the library takes microseconds for each."""
MOST_GROWTH = 2
"""Maximum growth of a text when its own macros are expanded."""

_SECTIONS = {"part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_LINES = {*_SECTIONS, "title", "author", "date", "affiliation", "institute", "email", "thanks", "caption"}
_LINES |= {"footnote", "footnotetext"}
_LISTS = frozenset({"itemize", "enumerate", "description", "compactitem", "compactenum"})
_CODE = frozenset({"verbatim", "Verbatim", "lstlisting", "minted", "alltt", "algorithmic", "algorithm"})
_FORMULAS = frozenset(
    {"equation", "align", "gather", "multline", "eqnarray", "displaymath", "math", "flalign", "alignat"}
)
_FLOATS = frozenset({"figure", "table", "wrapfigure", "wraptable", "sidewaystable", "sidewaysfigure", "subfigure"})
_TABLES = frozenset({"tabular", "tabularx", "tabulary", "longtable", "tabu"})
_SKIPPED = frozenset({"comment", "tikzpicture", "pgfpicture", "picture", "filecontents", "CCSXML"})
_NEW = re.compile(
    r"\\(?:(?:re|provide)?newcommand|providecommand|renewcommand|def)\*?\s*\{?\\([A-Za-z]+)\}?\s*\{([^{}\\]*)\}"
)
_GONE = re.compile(
    r"[~ ]?\\(?:[A-Za-z]*[Cc]ite[a-z]*|nocite)\*?\s*(?:\[[^\][]*\]\s*){0,2}\{[^{}]*\}"
    r"|\\(?:label|bibliographystyle|bibliography|vspace|hspace|input|include|usepackage|RequirePackage|documentclass"
    r"|pagestyle|thispagestyle|setlength|addtolength|graphicspath|includegraphics|hypersetup|setcounter|addtocounter"
    r"|phantom|index|definecolor|newtheorem|theoremstyle|title?format|geometry)\*?\s*(?:\[[^\][]*\]\s*){0,2}\{[^{}]*\}"
    r"(?:\{[^{}]*\}){0,3}"
)
_SHOWN = re.compile(
    r"\\(?:href|textcolor)\s*\{[^{}]*\}\s*(?=\{)|\\(?:xspace|noindent|maketitle|centering|newpage|clearpage)\b"
)
_ENTRY = re.compile(r"\\bibitem\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}")
_MARKS_OF_CODE = re.compile(r"\\(?:begin|end)\{[^}]*\}(?:\[[^\]]*\])?(?:\{[^}]*\})?")
_AROUND_TABLE = re.compile(
    r"^\\begin\{[^}]*\}(?:\[[^\]]*\])?(?:\{(?:[^{}]|\{[^{}]*\})*\}){1,2}|\\end\{[^}]*\}$"
    r"|\\(?:hline|toprule|midrule|bottomrule|cline\{[^}]*\}|cmidrule(?:\([^)]*\))?\{[^}]*\})"
    r"|\\multi(?:column|row)\{[^{}]*\}\{(?:[^{}]|\{[^{}]*\})*\}"
)
_COMMANDS = re.compile(r"[\\${}~%^_`'\"-]")
_BEGINS = re.compile(r"(?:[^\S\n]*+(?:%[^\n]*+)?\n)*+\s*+\\(?:documentclass|documentstyle)\b")
_VERBATIM = re.compile(
    r"\\begin\{(verbatim|Verbatim|lstlisting|minted|comment)\*?\}.*?(?:\\end\{\1\*?\}|\Z)", re.DOTALL
)


def _is_latex(source: Source) -> bool:
    return bool(_BEGINS.match(source.beginning))


def _read(source: Source) -> Document:
    walker = require("pylatexenc.latexwalker", extra="documents", purpose="reading LaTeX")
    check_words(source.text, source.name)
    text = _prepared(mend(source.text)[0])
    if len(text) > LARGEST:
        raise InputError(f"{source.name} is longer than {LARGEST >> 20} MiB, too long for one LaTeX file; cut it")
    try:
        nodes, _, _ = walker.LatexWalker(text, tolerant_parsing=True).get_latex_nodes(pos=0)
        parts = list(_Reader(theorems_of(source.text)).parts(nodes))
    except (RecursionError, walker.LatexWalkerError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise InputError(f"{source.name} cannot be read as LaTeX ({type(error).__name__}); save it as .pdf") from None
    return document_from_parts(parts, source.name)


def _prepared(text: str) -> str:
    """Returns the source with text macros expanded, and without commands that print nothing; verbatim text is
    unchanged."""
    text = with_numbers(text)
    names = {name: words for name, words in _NEW.findall(text) if name not in words}
    pieces: list[str] = []
    done = 0
    for match in [*_VERBATIM.finditer(text), None]:
        piece = _GONE.sub("", text[done : match.start() if match else len(text)])
        piece = _ENTRY.sub("\n\n", _SHOWN.sub("", _NEW.sub("", piece)))
        if names:
            found = re.compile(rf"\\({'|'.join(map(re.escape, names))})(?![A-Za-z])(?:\{{\}}|\\(?= )| (?=[,.;:]))?")
            longer = found.sub(lambda one: names[one[1]], piece)
            piece = longer if len(longer) <= MOST_GROWTH * len(piece) + 1_000 else piece
        pieces += [piece, match[0] if match else ""]
        done = match.end() if match else done
    return "".join(pieces)


class _Reader:
    """Collects the blocks of a tree; words are buffered until their paragraph ends."""

    def __init__(self, theorems: Mapping[str, str]) -> None:
        from pylatexenc.latex2text import LatexNodes2Text

        self.theorems = theorems
        self.label = ""

        self.plain = LatexNodes2Text(math_mode="text", keep_comments=False, strict_latex_spaces=False)
        self.words: list[str] = []
        self.notes: list[str] = []

    def parts(self, nodes: Sequence[Any]) -> Iterator[Part]:
        """Yields the blocks of a whole file."""
        body = next((one for one in nodes if _environment(one) == "document"), None)
        if body is not None:
            for node in nodes:
                if _macro(node) == "title":
                    yield from self._walk([node], "paragraph", 0)
            nodes = body.nodelist
        yield from self._walk(nodes, "paragraph", 0)
        yield from self._done("paragraph", 0)

    def _walk(self, nodes: Sequence[Any], kind: Any, depth: int) -> Iterator[Part]:
        done = 0
        for index, node in enumerate(nodes):
            macro, environment = _macro(node), _environment(node)
            if index < done:
                continue
            if environment:
                yield from self._done(kind, depth)
                yield from self._environment(node, environment, kind, depth)
            elif macro in _LINES:
                if macro in _SECTIONS or macro in {"title", "caption"}:
                    yield from self._done(kind, depth)
                argument = _last(node)
                if argument is None:  # a command unknown to the library
                    argument = next((one for one in nodes[index + 1 : index + 2] if _is_group(one)), None)
                    done = index + 2 if argument is not None else done
                if words := self._line(argument):
                    yield from self._of_line(macro, words)
            elif macro == "item":
                yield from self._done(kind, depth)
                if words := self._line(_last(node)):
                    self.words.append(f"{words}: ")
            elif macro == "par" or getattr(node, "specials_chars", "") == "\n\n":
                yield from self._done(kind, depth)
            elif _is_group(node):
                yield from self._walk(node.nodelist, kind, depth)
            elif type(node).__name__ == "LatexCharsNode":
                first, *others = re.split(r"\n[^\S\n]*\n\s*", node.chars)
                self.words.append(first)
                for words in others:
                    yield from self._done(kind, depth)
                    self.words.append(words)
            else:
                words = self.plain.nodelist_to_text([node])
                if macro == "textbf" and not "".join(self.words).strip():
                    self.label = words
                self.words.append(words)

    def _of_line(self, macro: str, words: str) -> Iterator[Part]:
        if macro in {"footnote", "footnotetext"}:
            self.notes.append(words)
        elif macro == "caption":
            yield "caption", words, 0
        elif macro in _SECTIONS or macro == "title":
            yield "heading", words, _SECTIONS.get(macro, 1)
        else:
            yield "boilerplate", words, 0

    def _environment(self, node: Any, name: str, kind: Any, depth: int) -> Iterator[Part]:
        name = name.rstrip("*")
        if name in _SKIPPED:
            return
        if name in _CODE:
            yield "code", _MARKS_OF_CODE.sub("", node.latex_verbatim()).strip("\n"), 0
        elif name in _FORMULAS:
            yield "code", " ".join(self.plain.nodelist_to_text(node.nodelist).split()), 0
        elif name in _TABLES:
            yield from self._table(node)
        elif name in _FLOATS:
            parts = self._walk(node.nodelist, "paragraph", 0)
            yield from [part for part in parts if part[0] in {"caption", "table", "code"}]
            self.words = []
        elif name == "thebibliography":
            yield "heading", "References", 2
            first, *others = node.nodelist or [None]
            widest = first is not None and _is_group(first)
            yield from self._walk(others if widest else node.nodelist, "references", 0)
            yield from self._done("references", 0)
        else:
            if name == "abstract":
                yield "heading", "Abstract", 2
            nodes = node.nodelist
            if name in self.theorems or name == "proof":
                title, nodes = self._named(self.theorems.get(name, "Proof"), node)
                yield "heading", title, 6
            is_list = name in _LISTS
            inner = ("item", depth + 1) if is_list else (kind, depth)
            yield from self._walk(nodes, *inner)
            yield from self._done(*inner)

    def _named(self, title: str, node: Any) -> tuple[str, Sequence[Any]]:
        """Returns the title of a theorem with the bracketed name after it, and the remaining nodes."""
        nodes = node.nodelist
        if words := self._line(_last(node)):
            return f"{title} ({words})", nodes
        text = nodes[0].chars if nodes and type(nodes[0]).__name__ == "LatexCharsNode" else ""
        match = re.match(r"\s*\[([^\]\[]{1,200})\]", text)
        if not match:
            return title, nodes
        self.words.append(text[match.end() :])
        return f"{title} ({' '.join(match[1].split())})", nodes[1:]

    def _table(self, node: Any) -> Iterator[Part]:
        source = _AROUND_TABLE.sub("", node.latex_verbatim())
        rows = [
            [self._cell(cell) for cell in re.split(r"(?<!\\)&", row)]
            for row in re.split(r"\\\\(?:\[[^\]]*\])?", source)
        ]
        if rows := [row for row in rows if any(row)]:
            yield "table", "\n".join(f"| {' | '.join(row)} |" for row in rows), 0

    def _cell(self, source: str) -> str:
        text = self.plain.latex_to_text(source) if _COMMANDS.search(source) else source
        return " ".join(text.split())

    def _done(self, kind: Any, depth: int) -> Iterator[Part]:
        """Yields the finished paragraph, and its notes."""
        text = re.sub(r"\s+([,.;:])(?=\s|$)", r"\1", " ".join("".join(self.words).split()))
        notes, self.words, self.notes = self.notes, [], []
        label, self.label = " ".join(self.label.split()), ""
        if text:
            yield kind, text, depth, label
        for note in filter(None, notes):
            yield "note", note, 0

    def _line(self, node: Any) -> str:
        return "" if node is None else " ".join(self.plain.nodelist_to_text([node]).split())


def _is_group(node: Any) -> bool:
    return type(node).__name__ == "LatexGroupNode"


def _macro(node: Any) -> str:
    return getattr(node, "macroname", None) or ""


def _environment(node: Any) -> str:
    return getattr(node, "environmentname", None) or ""


def _last(node: Any) -> Any:
    arguments = node.nodeargd.argnlist if node.nodeargd is not None else None
    return next((one for one in reversed(arguments or []) if one is not None), None)


LATEX = FileKind(
    name="latex",
    title="a LaTeX file",
    endings=(".tex", ".latex", ".ltx"),
    signature=_is_latex,
    read=_read,
    parts=(
        "Sections, paragraphs, lists, tables, captions and footnotes; formulas in Unicode; user-defined "
        "commands without arguments are expanded; references have their printed numbers."
    ),
    left_out="preamble, comments, citations, references to other files, figures, included files",
    library="pylatexenc",
)
