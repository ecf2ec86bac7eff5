"""TriviaQA (Joshi et al. 2017), Wikipedia domain: trivia questions, Wikipedia pages, and aliases of each answer.

The release's layout, as a folder, as the archive (which is read as a whole: extract a large one), or one file of
questions::

    qa/wikipedia-train.json   {"Data": [{"QuestionId", "Question", "Answer": {"NormalizedAliases": …},
                                         "EntityPages": [{"Filename": …}, …]}, …]}
    evidence/wikipedia/*.txt  the pages

Pages have no annotated positions. Every occurrence of an alias counts as an answer (distant supervision): words are
compared as in the official evaluation, lower-case, without punctuation and articles.
"""

from __future__ import annotations

import json
import re
import string
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from longspan.data.fields import Record, check_text, list_of, name_of, value_of
from longspan.data.jsonl import UNREADABLE, open_bytes, read_json, unreadable
from longspan.data.sources import ALIASES
from longspan.errors import InputError

ARCHIVE = re.compile(r"\.(tar|tgz|tar\.gz|tar\.xz)$", re.IGNORECASE)
"""Names of archives of the release."""
UNANSWERED = "without-answers"
"""In the name of the file of test questions."""
REMEDY = "give the folder with qa/ and evidence/ in it, or one of the files in qa/"

_APART = re.escape(string.punctuation + "‘’´`")
_WORD = re.compile(rf"[^\s{_APART}]+")
_ARTICLE = r"\b(?:a|an|the)\b"
_PARTS = re.compile(rf"{_ARTICLE}|((?:(?!{_ARTICLE}).)+)", re.IGNORECASE)
"""The rest of a word without articles, as group 1: "a–z" contains one, next to a dash that is not ASCII."""
_LONG_WORD = re.compile(r"\S+")


class Asked(NamedTuple):
    """A question about one page.

    Attributes:
        id: id of the question, independent of the page.
        accepted: normalised correct answers; empty if unknown.
        page: file name of the evidence page.
    """

    id: str
    question: str
    accepted: tuple[str, ...]
    page: str


def normalized_alias(text: str) -> str:
    """Normalises as TriviaQA's official evaluation: lower case, no punctuation, no articles, single spaces."""
    return " ".join(word for word, _, _ in _words(text))


def occurrences(text: str, accepted: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the occurrences of normalised answers in a text: first character and words, in order, without
    duplicates."""
    begins: dict[str, set[tuple[str, ...]]] = {}
    for one in accepted:
        if words := tuple(normalized_alias(one).split()):
            begins.setdefault(words[0], set()).add(words)
    there = _words(text)
    matches = set()
    for place, (word, start, _) in enumerate(there):
        for wanted in begins.get(word, ()):
            last = place + len(wanted)
            if last <= len(there) and all(there[place + i][0] == one for i, one in enumerate(wanted)):
                matches.add((start, text[start : there[last - 1][2]]))
    return sorted(matches)


def _words(text: str) -> list[tuple[str, int, int]]:
    """Returns the words of a text except articles, in lower case, with their characters."""
    return [
        (part[1].lower(), match.start() + part.start(), match.start() + part.end())
        for match in _WORD.finditer(text)
        for part in _PARTS.finditer(match[0])
        if part[1]
    ]


def first_words(text: str, count: int | None) -> str:
    """Truncates a text after `count` words; None keeps all."""
    if count is None:
        return text
    last = next(islice(_LONG_WORD.finditer(text), count - 1, None), None)
    return text if last is None else text[: last.end()]


def is_release(folder: Path) -> bool:
    """Whether a folder has the layout of TriviaQA's release: the folders `qa` and `evidence`."""
    return (folder / "qa").is_dir() and (folder / "evidence").is_dir()


def asked_of_pages(whole: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yields every question of a file with each of its pages, to be parsed; counted by questions, from 1."""
    for number, record in enumerate(list_of(whole, "Data", "the file"), 1):
        pages = record.get("EntityPages") if isinstance(record, dict) else None
        for page in pages if isinstance(pages, list) and pages else [None]:
            yield number, (record, page, UNANSWERED in name)


def asked(given: tuple[Any, Any, bool], default_id: str) -> Asked:
    """Returns a question about a page; raises `InputError` if a field is missing or has another type."""
    record, page, unanswered = given
    question = check_text(value_of(record, "Question"), "the question (field 'Question')")
    if page is None:
        list_of(record, "EntityPages")
        raise InputError("field 'EntityPages' is empty, so that there is no page to read; leave the question out")
    file = value_of(page, "Filename", "an entity page")
    parts = PurePosixPath(file).parts if isinstance(file, str) else ()
    if not parts or ".." in parts or parts[0] == "/":
        raise InputError(f"the page {str(file)[:80]!r} is no name of a file below evidence/wikipedia; correct it")
    accepted = () if unanswered and "Answer" not in record else accepted_answers(value_of(record, "Answer"))
    return Asked(name_of(record, "QuestionId", default_id), question, accepted, file)


def accepted_answers(answer: Record) -> tuple[str, ...]:
    """Returns the answers that the official evaluation accepts: the normalised aliases, and human answers."""
    given = [*list_of(answer, "NormalizedAliases", "field 'Answer'"), *(answer.get("HumanAnswers") or [])]
    if wrong := [one for one in given if not isinstance(one, str)]:
        raise InputError(f"an alias is {wrong[0]!r}; give texts")
    answers = tuple(dict.fromkeys(filter(None, map(normalized_alias, given))))
    if not answers:
        raise InputError("field 'NormalizedAliases' has no name with a letter or digit in it; give what is accepted")
    return answers


class Evidence:
    """The pages, truncated to `max_words` words; equal pages of several questions share memory."""

    def __init__(self, content: Callable[[str], bytes], max_words: int | None) -> None:
        self.content, self.max_words = content, max_words
        self.known: dict[str, str] = {}

    def __getitem__(self, page: str) -> str:
        """Returns the text of a page; raises `InputError` if it is missing, empty or not UTF-8."""
        if page not in self.known:
            try:
                text = self.content(page).decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(f"the page {page!r} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
            self.known[page] = check_text(first_words(text, self.max_words), f"the page {page!r}")
        return self.known[page]


def in_release(path: Path, split: str, max_words: int | None) -> tuple[Any, str, Evidence]:
    """Reads a path of the release: its questions as JSON, the name of their file, and their pages.

    Args:
        path: the release's folder, its archive, or a file of questions.
        split: split of a folder or an archive.
        max_words: as in `Evidence`.
    """
    if path.is_dir():
        names = {file.name: file for file in sorted((path / "qa").iterdir())}
        path = names[_file_of(split, list(names), path)]
    elif ARCHIVE.search(path.name):
        return _in_archive(path, split, max_words)
    return read_json(path, REMEDY), path.name, evidence_beside(path, max_words)


def evidence_beside(questions: Path, max_words: int | None) -> Evidence:
    """Returns the pages that belong to a file in `qa/`."""
    folder = questions.parent.parent / "evidence" / "wikipedia"

    def content(page: str) -> bytes:
        try:
            return (folder / page).read_bytes()
        except OSError as error:
            raise unreadable(folder / page, error) from None

    return Evidence(content, max_words)


def _in_archive(path: Path, split: str, max_words: int | None) -> tuple[Any, str, Evidence]:
    asked_in: dict[str, bytes] = dict(_members(path, "qa"))
    name = _file_of(split, list(asked_in), path)
    try:
        whole = json.loads(asked_in[name])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: qa/{name} is not JSON ({error}); {REMEDY}") from None
    pages: Mapping[str, bytes] = dict(_members(path, "evidence/wikipedia"))

    def content(page: str) -> bytes:
        if page not in pages:
            raise InputError(f"the archive has no page evidence/wikipedia/{page}; {REMEDY}")
        return pages[page]

    return whole, name, Evidence(content, max_words)


def _members(path: Path, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yields name below a folder and content of the files of an archive, wherever the folder is in it."""
    below = re.compile(rf"(?:^|/){folder}/(.+)$")
    try:
        with open_bytes(path) as whole, tarfile.open(fileobj=whole, mode="r|") as archive:
            for member in archive:
                match = below.search(member.name)
                if match and member.isfile():
                    file: IO[bytes] | None = archive.extractfile(member)
                    assert file is not None
                    yield match[1], file.read()
    except (tarfile.TarError, zlib.error) as error:
        raise InputError(f"{path} is a damaged archive ({error}); get the file again") from None
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _file_of(split: str, names: Sequence[str], place: Path) -> str:
    """Returns the file of a split among those in `qa/`."""
    for name in ALIASES.get(split, (split,)):
        for file in sorted(names):
            if re.fullmatch(rf"wikipedia-{re.escape(name)}(-{UNANSWERED})?\.json", file):
                return file
    raise InputError(
        f"split={split!r} is not in {place}, whose qa/ has {', '.join(sorted(names)) or 'no files'}; name another, "
        "such as train or dev"
    )
