"""The questions of this folder with the texts they are about, out of the data folder."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).with_name("natural.jsonl")
SHORT = Path(__file__).with_name("short.jsonl")
REASONS = Path(__file__).with_name("reasons.jsonl")
"""Questions for reasons, ways and definitions, each with the sentences that answer."""

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:_[^>]*)?>")
_BEFORE_MARK = re.compile(r" ([.,;:?!)\]’”%]|['’](?:s|re|ve|ll|d|m)|n['’]t)(?=\W|$)")
_AFTER_MARK = re.compile(r"([(\[“‘$]) ")
_BLOCKS = frozenset(["P", "Table", "Tr", "Ul", "Ol", "Dl", "Li", "Dd", "Dt", "H1", "H2", "H3", "H4", "H5", "H6"])
"""Tags that begin and end something of its own, which then stands in a paragraph of its own."""


@dataclass(frozen=True, slots=True)
class NaturalQuestion:
    """One question and where its answer is.

    Attributes:
        document: which of the documents it is about.
        question: as a person asks it.
        places: characters in the document's text, one pair for each place that answers; empty where none does.
        part: "design" if rules were chosen by it, "held out" otherwise.
    """

    document: str
    question: str
    places: tuple[tuple[int, int], ...]
    part: str = "held out"


def natural_questions(data: Path, file: Path = QUESTIONS) -> tuple[dict[str, str], list[NaturalQuestion]]:
    """The documents by name, and the questions in the order of the file.

    Raises:
        ValueError: a quote is not, or not once, at the place that the file names.
    """
    texts: dict[str, str] = {}
    questions = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name, source = row["document"], row["source"]
        if name not in texts:
            texts[name] = _READERS[source["read"]](data / source["folder"] / source["file"], source)
        places = tuple(tuple(answer["place"]) for answer in row["answers"])
        for answer in row["answers"]:
            start, end = answer["place"]
            if texts[name][start:end] != answer["quote"] or texts[name].count(answer["quote"]) != 1:
                raise ValueError(f"{name}: {answer['quote']!r} does not stand once, at {start}-{end}")
        questions.append(NaturalQuestion(name, row["question"], places, row.get("part", "held out")))
    return texts, questions


def _rows(path: Path) -> list[dict[str, Any]]:
    with (lzma if path.suffix == ".xz" else gzip).open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _field(path: Path, source: dict[str, Any]) -> str:
    """One field of one row."""
    return _rows(path)[source["row"]][source["field"]]


def _whole(path: Path, source: dict[str, Any]) -> str:
    """A file that is one text."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def _turns(path: Path, source: dict[str, Any]) -> str:
    """A transcript: one line per turn, the speakers in front."""
    row = next(row for row in _rows(path) if row["episode"] == source["key"])
    return "\n".join(f"{', '.join(turn['NAMES'])}: {' '.join(turn['UTTERANCES'])}" for turn in row["TURNS"])


def _page(path: Path, source: dict[str, Any]) -> str:
    """A page of Wikipedia without its tags: each heading, paragraph, item and row in a paragraph of its own."""
    blocks: list[list[str]] = [[]]
    for token in _rows(path)[source["row"]]["document_text"].split(" "):
        tag = _TAG.fullmatch(token)
        if tag is None:
            blocks[-1].append(token)
        elif tag[1] in _BLOCKS:
            blocks.append([])
    return "\n\n".join(" ".join(block) for block in blocks if block)


def _conll(path: Path, source: dict[str, Any]) -> str:
    """A document of OntoGUM, whose words stand one per line, with the usual spaces around marks."""
    documents: list[list[str]] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("# begin document"):
                documents.append([])
            elif line.strip() and not line.startswith("# end"):
                documents[-1].append(line.rstrip("\n").split("\t")[1])
    joined = _BEFORE_MARK.sub(r"\1", " ".join(documents[source["row"]]))
    return _AFTER_MARK.sub(r"\1", joined)


def _sections(path: Path, source: dict[str, Any]) -> str:
    """The sections of a row, each under its title."""
    sections = _rows(path)[source["row"]]["sections"]
    return "\n\n".join((f"## {one['title']}\n\n" if one["title"] else "") + one["text"].strip() for one in sections)


_READERS: dict[str, Callable[[Path, dict[str, Any]], str]] = {
    "field": _field,
    "whole": _whole,
    "turns": _turns,
    "page": _page,
    "conll": _conll,
    "sections": _sections,
}
