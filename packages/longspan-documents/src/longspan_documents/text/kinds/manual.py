"""Manual pages in roff (man(7) and mdoc(7)): sections, paragraphs, options and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longspan.characters import mend
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

_BEGINS = re.compile(r"(?:(?:['.]\\\"|\.(?:ig|nr|if|ds|de)\b)[^\n]*+\n|\.?[^\S\n]*+\n)*+\.(?:TH\s+\S+\s+\S|Dd\s)")
_COMMENT = re.compile(r'(?<!\\)\\["#].*$')
_FONT = re.compile(
    r"\\f(?:\[[^\]]*\]|\(..|.)|\\s[+-]?\d{1,2}|\\[|^&%:,/cdu)]|\\[hvwkmMFYn](?:'[^']*'|\[[^\]]*\]|\(..|.)"
)
_NAMED = re.compile(r"\\\[([^\]]{1,20})\]|\\\((..)|\\\*\[([^\]]{1,20})\]|\\\*\((..)|\\\*(.)")
_SIGNS = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "bu": "•", "em": "—", "en": "–", "co": "©",
    "hy": "-", "mi": "−", "rs": "\\", "ti": "~", "ha": "^", "ga": "`", "R": "®", "Tm": "™", "mu": "×", "->": "→",
    "<-": "←", "<=": "≤", ">=": "≥", "+-": "±", "at": "@", "sh": "#", "Do": "$", "ul": "_", "ba": "|", "sl": "/",
    "de": "°", "ss": "ß", ":a": "ä", ":o": "ö", ":u": "ü", "'e": "é", "`e": "è", "'a": "á", "aa": "´",
}  # fmt: skip
_FONTS = frozenset(["B", "I", "R", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB"])
_PARAGRAPHS = frozenset(["PP", "P", "LP", "Pp", "sp", "HP", "RS", "RE", "br", "Lp"])
_CODE, _CODE_ENDS = frozenset({"nf", "EX", "Bd", "DS", "TS", "Dl"}), frozenset({"fi", "EE", "Ed", "DE", "TE"})
_WORDS = frozenset({
    "Ar", "Cm", "Em", "Sy", "Li", "Pa", "Va", "Vt", "Ev", "Er", "Fa", "Fn", "Ft", "Fo", "Fc", "Ic", "Ms", "No",
    "Nm", "Sx", "Tn", "Ql", "Dq", "Sq", "Pq", "Qq", "Bq", "Aq", "Brq", "Op", "Oo", "Oc", "Do", "Dc", "So", "Sc",
    "Po", "Pc", "Fl", "Xr", "Ad", "An", "At", "Bx", "Ux", "Lk", "Mt", "Nd", "St", "Dv", "Cd", "In",
})  # fmt: skip
_AROUND = {"Dq": "“”", "Sq": "‘’", "Pq": "()", "Qq": '""', "Bq": "[]", "Aq": "⟨⟩", "Brq": "{}", "Op": "[]", "Ql": "‘’"}


def _read(source: Source) -> Document:
    lines = mend(source.text)[0].replace("\\\n", "").split("\n")
    reader = _Reader()
    parts = list(reader.parts(lines))
    document = document_from_parts(parts, source.name, reader.title)
    return document


class _Reader:
    """The state of a page: the words of the current paragraph, and its kind."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.words: list[str] = []
        self.kind: str = "paragraph"
        self.program = ""
        self.tag_follows = False

    def parts(self, lines: list[str]) -> Iterator[Part]:
        """Yields the blocks of the page."""
        code: list[str] | None = None
        skipped: str | None = None  # what ends lines that are not text
        for line in lines:
            line = _COMMENT.sub("", line)
            match = re.match(r"[.'][ \t]*([A-Za-z]{1,3}|\\\"|\.)(?:[ \t]+(.*)|$)", line)
            name, rest = (match[1], (match[2] or "").strip()) if match else ("", "")
            if not match and line.strip() in {".", "'"}:  # a comment, or nothing
                continue
            if skipped is not None:
                skipped = None if name in {skipped, "."} else skipped
                continue
            if code is not None:
                if name in _CODE_ENDS:
                    if any(one.strip() for one in code):
                        yield "code", "\n".join(code).strip("\n"), 0
                    code = None
                else:
                    code.append(_plain(self._of_macro(name, rest) if match else line))
                continue
            if name in {"de", "ig", "am"}:
                skipped = "."
            elif name in _CODE:
                yield from self._done()
                code = [_plain(rest)] if name == "Dl" and rest else []
                if name == "Dl":
                    yield "code", "\n".join(code), 0
                    code = None
            elif name in {"SH", "Sh", "SS", "Ss"}:
                yield from self._done()
                if words := _plain(" ".join(_arguments(rest))):
                    yield "heading", words, 1 + (name in {"SS", "Ss"})
            elif name in {"TH", "Dt"}:
                given = [*_arguments(rest), "", ""]
                self.title = f"{given[0].lower()}({given[1]})" if given[0] and given[1] else None
            elif name in {"TP", "IP", "It"}:
                yield from self._done()
                self.kind = "item"
                tag = _plain(self._inline(rest) if name == "It" else " ".join(_arguments(rest)[:1]))
                self.words += [tag] if name != "TP" and re.search(r"\w", tag) else []
                self.tag_follows = name == "TP"
            elif name in _PARAGRAPHS or name in {"Bl", "El"} or (not match and not line.strip()):
                yield from self._done()
            elif match:
                self._add(self._of_macro(name, rest))
            else:
                self._add(line)
        if code is not None and any(one.strip() for one in code):
            yield "code", "\n".join(code).strip("\n"), 0
        yield from self._done()

    def _done(self) -> Iterator[Part]:
        text = " ".join(_plain(" ".join(self.words)).split())
        kind, self.words, self.kind, self.tag_follows = self.kind, [], "paragraph", False
        if text:
            yield ("item", text, 1) if kind == "item" else ("paragraph", text, 0)

    def _add(self, text: str) -> None:
        if text.strip():
            self.words.append(text.strip() + (" —" if self.tag_follows else ""))
            self.tag_follows = False

    def _of_macro(self, name: str, rest: str) -> str:
        """Returns the words of a macro line; "" for macros without text."""
        if name in _FONTS:
            between = " " if len(name) == 1 or name == "SM" else ""
            return between.join(_arguments(rest))
        if name == "Nm" and not self.program:
            self.program = rest
        if name == "Nm" and not rest:
            return self.program
        if name == "Nd":
            return f"— {self._inline(rest)}"
        return self._inline(f"{name} {rest}") if name in _WORDS else ""

    def _inline(self, text: str) -> str:
        """Returns a line of mdoc: macros among words."""
        words: list[str] = []
        closing = ""
        waiting = _arguments(text)
        for index, word in enumerate(waiting):
            if word == "Fl":
                following = waiting[index + 1] if index + 1 < len(waiting) else ""
                if not following or following in _WORDS:
                    words.append("-")
            elif word == "Xr":
                continue
            elif word == "Ar" and (index + 1 == len(waiting) or waiting[index + 1] in _WORDS):
                words.append("file ...")
            elif word in _AROUND:
                words.append(_AROUND[word][0])
                closing = _AROUND[word][1] + closing
            elif word not in _WORDS or word == "No":
                before = waiting[index - 1] if index else ""
                if index > 1 and waiting[index - 2] == "Xr":
                    words[-1] += f"({word})"
                else:
                    words.append(f"-{word}" if before == "Fl" else word if word != "No" else "")
        line = re.sub(r"([“‘(\[{⟨]) ", r"\1", " ".join(filter(None, words)))
        return re.sub(r" ([.,;:)\]?!])(?= |$)", r"\1", line + closing)


def _arguments(text: str) -> list[str]:
    """Returns the arguments of a macro line, with quotes."""
    return [
        match[1].replace('""', '"') if match[1] is not None else match[2]
        for match in re.finditer(r'"((?:[^"]|"")*)"?|((?:\\ |\S)+)', text)
    ]


def _plain(text: str) -> str:
    """Replaces escapes by their characters."""
    text = _NAMED.sub(lambda one: _SIGNS.get(next(filter(None, one.groups())), ""), text)
    text = _FONT.sub("", text)
    return re.sub(r"\\(.)", lambda one: {"e": "\\", "-": "-", "~": " ", "0": " ", "t": " "}.get(one[1], one[1]), text)


MANUAL = FileKind(
    name="manual",
    title="a manual page",
    endings=(".man", ".mdoc", ".roff"),
    signature=lambda source: bool(_BEGINS.match(source.beginning)),
    read=_read,
    parts=(
        "roff with the macros man and mdoc, with any suffix (`ls.1`): sections, paragraphs, options with "
        "their descriptions, examples as code."
    ),
    left_out="macro definitions, page headers and footers",
)
