"""CoNLL files of coreference: documents of words in columns, with brackets in the last one; read and written.

Three forms are read, known by their columns:

- CoNLL-2012 (OntoNotes): twelve columns or more, separated by spaces; the speaker is the tenth;
- LitBank: thirteen separated by tabs, of which the last is *empty* where a word is in no mention;
- OntoGUM: three separated by tabs (index, word, brackets), no sentences, `# begin document` with or without a name.

`(3` opens a mention of cluster 3, `3)` closes the one of cluster 3 that was opened last, `(3)` is one word; several
stand on a word with `|` between them or without, in any order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from longspan.characters import counted
from longspan.data.fields import Skipped
from longspan.data.jsonl import UNREADABLE, lines_of, open_bytes, unreadable
from longspan.errors import InputError
from longspan.settings import show
from longspan_papers.coreference.rows import CoreferenceRow, Mention, crossing

_BEGIN = re.compile(r"#\s*begin document(.*)$")
_PART = re.compile(r"\s*part\s*(\d{1,9})\s*")
_END = re.compile(r"#\s*end document")
_MARK = re.compile(r"\(\w+\)|\(\w+|\w+\)")
_NONE = {"", "-", "_", "*"}
_ENDS = str.maketrans("\t\n\r", "   ")
SPEAKER = 9
"""Column of the speaker, from 0, in files that have it."""


def read_conll(path: Path, skipped: Skipped | None = None) -> Iterator[CoreferenceRow]:
    """The documents of a file, plain or compressed; one is in memory at a time.

    Args:
        path: the file.
        skipped: what becomes of a document that is wrong; `None` raises.

    Raises:
        InputError: no such file, a damaged one, or, by `skipped`, a document with brackets that do not balance, rows
            that are none, or bytes that are not UTF-8; it names file and line.
    """
    skipped = skipped or Skipped(str(path))
    document: _Document | None = None
    number, stem, count = 0, path.name.split(".")[0], 0
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(lines_of(file, path), 1):
                place, text = f"{path}, line {number}", ""
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                    if (begun := _begun(text)) is not None:
                        left, count = document, count + 1
                        document = _Document(begun[0] or f"{stem}:{count}", begun[1])
                        if left is not None:
                            raise left.unended(place)
                    elif _END.match(text):
                        ended, document = document, None
                        if ended is not None:
                            yield ended.row(place)
                    elif document is not None:
                        document.add(text, number, place)
                    elif text.strip() and not text.startswith("#") and not skipped.count:
                        raise InputError(f"{place}: no line '#begin document' before it; is this a CoNLL file?")
                except UnicodeDecodeError as error:
                    document = None
                    skipped.add(number, InputError(f"{place}: not UTF-8 at byte {error.start}; save the file as UTF-8"))
                except InputError as error:
                    document = document if _begun(text) is not None else None
                    skipped.add(number, InputError(skipped.with_remedy(str(error))))
        if document is not None:
            skipped.add(number, document.unended(f"{path}, line {number}"))
    except UNREADABLE as error:
        raise unreadable(path, error, f" after line {number}") from None
    finally:
        skipped.report()


def _begun(line: str) -> tuple[str, int] | None:
    """The name and the part of a document that a line begins; None for other lines. A name in brackets may hold any
    sign, "; part" too."""
    begin = _BEGIN.match(line)
    if begin is None:
        return None
    name, _, last = begin[1].rpartition(";")
    part = _PART.fullmatch(last) if name or begin[1].startswith(";") else None
    name = (begin[1] if part is None else name).strip()
    if name.startswith("(") and name.endswith(")") and len(name) > 1:
        name = name[1:-1]
    elif ";" in name:
        return None
    return name, 0 if part is None else int(part[1])


@dataclass
class _Document:
    """What was read of a document so far."""

    name: str
    part: int
    sentences: list[list[str]] = field(default_factory=lambda: [[]])
    speakers: list[list[str]] = field(default_factory=lambda: [[]])
    words: int = 0
    open: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each cluster the first words of its open mentions, with their lines."""
    clusters: dict[str, list[Mention]] = field(default_factory=lambda: defaultdict(list))

    def add(self, text: str, number: int, place: str) -> None:
        """One line: a word, or the end of a sentence."""
        if not text.strip():
            self.sentences.append([])
            self.speakers.append([])
            return
        cells = text.split("\t") if "\t" in text else text.split()
        if len(cells) != 3 and len(cells) < 5:
            raise InputError(
                f"{place}: {counted(len(cells), 'column')}; a row has document, part, index, word, … and brackets, or "
                "index, word and brackets"
            )
        speaker = cells[SPEAKER] if len(cells) > SPEAKER + 1 else ""
        self.sentences[-1].append(cells[1 if len(cells) == 3 else 3])
        self.speakers[-1].append("" if speaker in _NONE else speaker)
        self._mark(cells[-1].strip(), number, place)
        self.words += 1

    def _mark(self, cell: str, number: int, place: str) -> None:
        """The brackets on a word: closings take what was open before, if anything of their cluster was."""
        marks = [] if cell in _NONE else _MARK.findall(cell)
        if cell not in _NONE and _MARK.sub("", cell).strip("|"):
            raise InputError(f"{place}: {show(cell)} are no brackets; write them as (3, 3) or (3), with | between")
        opened = [mark[1:] for mark in marks if mark[0] == "(" and mark[-1] != ")"]
        for mark in marks:
            if mark[0] == "(" and mark[-1] == ")":
                self.clusters[mark[1:-1]].append((self.words, self.words))
        for cluster in (mark[:-1] for mark in marks if mark[0] != "("):
            if self.open[cluster]:
                self.clusters[cluster].append((self.open[cluster].pop()[0], self.words))
            elif cluster in opened:
                opened.remove(cluster)
                self.clusters[cluster].append((self.words, self.words))
            else:
                raise InputError(
                    f"{place}: {cluster}) closes a mention of cluster {cluster}, but none is open; open it"
                )
        for cluster in opened:
            self.open[cluster].append((self.words, number))

    def row(self, place: str) -> CoreferenceRow:
        """The document, whose end was read."""
        for cluster, places in self.open.items():
            if places:
                raise InputError(
                    f"{place}: document {self.name!r} ends, but the mention of cluster {cluster} opened in line "
                    f"{places[-1][1]} is not closed; close it with {cluster})"
                )
        return CoreferenceRow(
            id=self.name,
            part=self.part,
            sentences=tuple(tuple(words) for words in self.sentences if words),
            speakers=tuple(tuple(names) for names in self.speakers if names) if any(map(any, self.speakers)) else None,
            clusters=tuple(map(tuple, self.clusters.values())),
        )

    def unended(self, place: str) -> InputError:
        """The error for a document that another one, or the end of the file, breaks off."""
        return InputError(f"{place}: document {self.name!r} has no '#end document'; get the whole file")


def conll_text(rows: Iterable[CoreferenceRow]) -> str:
    """Documents as a CoNLL-2012 file of thirteen columns, which the official scorer reads; clusters are counted from 0.

    Raises:
        InputError: two mentions of one cluster cross: brackets cannot tell such mentions apart.
    """
    return "".join(line for row in rows for line in _lines(row))


def _lines(row: CoreferenceRow) -> Iterator[str]:
    marks = _marks(row)
    place = 0
    name = _cell(row.id)
    yield f"#begin document ({name}); part {row.part:03d}\n"
    for number, sentence in enumerate(row.sentences):
        for index, word in enumerate(sentence):
            speaker = row.speakers[number][index] if row.speakers is not None else ""
            cells = [
                name,
                str(row.part),
                str(index),
                _cell(word),
                *["-"] * 5,
                _cell(speaker) or "-",
                "-",
                "-",
                marks.get(place, "-"),
            ]
            yield "\t".join(cells) + "\n"
            place += 1
        yield "\n"
    yield "#end document\n"


def _cell(text: str) -> str:
    """A text without what ends a column or a line, as some tokenizers have it for words."""
    return text.translate(_ENDS)


def _marks(row: CoreferenceRow) -> dict[int, str]:
    """The last column of each word that needs one: mentions that hold others open first and close last."""
    for number, cluster in enumerate(row.clusters):
        if (pair := crossing(cluster)) is not None:
            (start, end), (first, last) = pair
            raise InputError(
                f"cluster {number} of document {row.id!r} has the mentions {start}–{end} and {first}–{last}, which "
                "cross; CoNLL's brackets cannot say that, so drop one, or write JSON"
            )
    mentions = [(start, end, number) for number, cluster in enumerate(row.clusters) for start, end in cluster]
    opening: dict[int, list[str]] = defaultdict(list)
    closing: dict[int, list[str]] = defaultdict(list)
    for start, end, number in sorted(mentions, key=lambda mention: (mention[0], -mention[1], mention[2])):
        opening[start].append(f"({number})" if start == end else f"({number}")
    for start, end, number in sorted(mentions, key=lambda mention: (mention[1], -mention[0], -mention[2])):
        if start < end:
            closing[end].append(f"{number})")
    return {place: "|".join([*closing[place], *opening[place]]) for place in {*opening, *closing}}
