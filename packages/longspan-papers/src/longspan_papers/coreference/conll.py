"""Reads and writes CoNLL files of coreference: words in columns, with brackets in the last column.

Three formats are recognised by their columns:

- CoNLL-2012 (OntoNotes): twelve columns or more, separated by spaces; the speaker is the tenth;
- LitBank: thirteen separated by tabs, of which the last is *empty* for a word outside all mentions;
- OntoGUM: three separated by tabs (index, word, brackets), no sentences, `# begin document` with or without a name.

`(3` opens a mention of cluster 3, `)3` closes the last opened mention of cluster 3, `(3)` is a mention of one word;
several marks of one word may be separated by `|` or not, in any order.
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
"""Column of the speaker, from 0, in the formats that have one."""


def read_conll(path: Path, skipped: Skipped | None = None) -> Iterator[CoreferenceRow]:
    """Yield the documents of a file, plain or compressed; one is in memory at a time.

    Args:
        path: the file.
        skipped: collects malformed documents; `None` raises for them.

    Raises:
        InputError: the file does not exist or is damaged; or, depending on `skipped`, a document has unbalanced
            brackets, malformed lines, or bytes that are not UTF-8. The message names file and line.
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
    """Returns name and part of a document if the line begins one, else None. A name in brackets may contain any
    character, including "; part"."""
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
    """A document while it is parsed."""

    name: str
    part: int
    sentences: list[list[str]] = field(default_factory=lambda: [[]])
    speakers: list[list[str]] = field(default_factory=lambda: [[]])
    words: int = 0
    open: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Cluster → first words of its open mentions, with their line numbers."""
    clusters: dict[str, list[Mention]] = field(default_factory=lambda: defaultdict(list))

    def add(self, text: str, number: int, place: str) -> None:
        """Adds one line: a word, or the end of a sentence."""
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
        """Applies the brackets of a word; a closing bracket ends a mention opened earlier, if its cluster has one."""
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
        """Returns the finished document."""
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
        """Returns the error for a document that ends without its end line."""
        return InputError(f"{place}: document {self.name!r} has no '#end document'; get the whole file")


def conll_text(rows: Iterable[CoreferenceRow]) -> str:
    """Formats documents as a CoNLL-2012 file of thirteen columns for the official scorer; clusters are numbered from 0.

    Raises:
        InputError: two mentions of one cluster cross, which brackets cannot express.
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
    """Replaces the characters that end a column or a line, which some tokenizers put into words."""
    return text.translate(_ENDS)


def _marks(row: CoreferenceRow) -> dict[int, str]:
    """Returns the last column of each word that has a mark: outer mentions open first and close last."""
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
