"""Validation of an index's files: types and ranges of fields, and the consistency of texts, passages, tokens and rows.

`index.json` and its shards belong to an index with a model, `search.json` and its parts to one without.

An index is untrusted data, even if its checksums are right. After these checks, code can use it without further ones:
every position lies in its text, every row in its tensor, and every file in the index's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import LARGEST, Form, Range, Rule, Whole, from_plain, hints_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage
from longspan_documents.text.reading import DocumentSentence

PIECE_TOKENS = 384
"""Maximum number of tokens of a piece; passages have about 120 words, so only long tables and sentences are split."""
AGAIN = "make the index again with `longspan index`"

# Names of files and documents may contain lone surrogates, which settings must not.
Text = Annotated[Any, Rule(lambda value: isinstance(value, str), "a text")]
TextOrNone = Annotated[Any, Rule(lambda value: value is None or isinstance(value, str), "a text or null")]
Digest = Annotated[str, Form("[0-9a-f]{32}", "32 hexadecimal digits")]
Bytes = Annotated[int, Range(0, 2**53)]
ShardName = Annotated[str, Form(r"shard-[0-9]{6,9}\.safetensors", "the name of a shard of this folder")]
PartName = Annotated[str, Form(r"part-[0-9]{6,9}\.safetensors", "the name of a part of this folder")]
Source = Annotated[str, Form(r"\S[\s\S]*", "a name or a path", 4096)]
Place = Annotated[int, Range(0, LARGEST)]


@dataclass(frozen=True, kw_only=True)
class ListedDocument:
    """A document in the list of a shard: the checksum of its text, and its name."""

    digest: Digest
    name: Text


@dataclass(frozen=True, kw_only=True)
class ListedShard:
    """A shard in the list of an index: its file, bytes, checksum and documents."""

    file: ShardName
    bytes: Bytes
    checksum: Annotated[str, Form("[0-9a-f]{40}", "40 hexadecimal digits")]
    documents: list[ListedDocument]


@dataclass(frozen=True, kw_only=True)
class MadeBy:
    """What the states of an index depend on: model, split, dtype, and checksums of weights and tokenizer."""

    source: Source
    lower_layers: Annotated[int, Range(1, 999)] | None
    dtype: Literal["float16", "float32", "bfloat16"]
    weights: Digest
    tokenizer: Digest


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The fields of `index.json`, without its checksum and format number."""

    made_by: MadeBy
    shards: list[ListedShard]


@dataclass(frozen=True, kw_only=True)
class ListedPart:
    """A part in `search.json`, without its documents."""

    file: PartName
    bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class SearchListing:
    """The fields of `search.json`, without its parts and format number."""

    encoder: Source | None
    language: Annotated[str, Form("[a-z]{2,8}", "the code of a language")] | None
    width: Annotated[int, Range(0, 65_536)]


@dataclass(frozen=True, kw_only=True)
class ListedSource:
    """A document in the list of a part: its file or digest, size and time of the file, the checksum of its text, and
    its index in the part, which is null if another text has replaced it."""

    key: Text
    stamp: list[Place]
    digest: Digest
    document: Whole | None


@dataclass(frozen=True, kw_only=True)
class StoredSentence:
    """A `DocumentSentence` as stored in a shard."""

    text: Text
    start: Place
    end: Place
    block: Whole
    section: Whole | None
    speaker: TextOrNone
    abstract: bool


@dataclass(frozen=True, kw_only=True)
class StoredPassage:
    """A `Passage` as stored in a shard, without its sentences, and the number of its pieces."""

    first: Whole
    heading: TextOrNone
    page: Annotated[int, Range(1, LARGEST)] | None
    by_lines: list[Whole]
    pieces: Whole


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """A document as stored in a shard, without its passages."""

    name: Text
    title: TextOrNone
    pages: list[Place]
    text: Text


def check_listing(body: Any) -> None:
    """Raise `InputError` for the first invalid entry of `index.json`."""
    from_plain(Listing, body, "the list")
    for part in (body["shards"], *(shard["documents"] for shard in body["shards"])):
        if not isinstance(part, list):
            raise InputError("the list holds one thing where it must hold several; it must be a list of them")
    files = [shard["file"] for shard in body["shards"]]
    for number, file in enumerate(files):
        if file in files[:number]:
            raise InputError(f"shards[{number}].file is {file!r}, which is in the list twice")


def check_search_listing(body: Any) -> None:
    """Raise `InputError` for the first invalid entry of `search.json`."""
    listing, parts = _split(body, "parts", "the list", empty=True)
    from_plain(SearchListing, listing, "the list")
    files = set()
    for number, part in enumerate(parts):
        fields, entries = _split(part, "entries", f"parts[{number}]")
        listed = from_plain(ListedPart, fields, f"parts[{number}]")
        if listed.file in files:
            raise InputError(f"parts[{number}].file is {listed.file!r}, which is in the list twice")
        files.add(listed.file)
        for place, entry in enumerate(entries):
            # There may be a million entries: the slow check is used only for its error message.
            if not _is_source(entry):
                from_plain(ListedSource, entry, f"parts[{number}].entries[{place}]")
                raise InputError(f"parts[{number}].entries[{place}].stamp is no size and time of a file")


def _is_source(entry: Any) -> bool:
    """Whether an entry is a `ListedSource` whose stamp is empty or two numbers."""
    if not isinstance(entry, dict) or entry.keys() != {"key", "stamp", "digest", "document"}:
        return False
    key, stamp, digest, number = (entry[name] for name in ("key", "stamp", "digest", "document"))
    return (
        isinstance(key, str)
        and isinstance(stamp, list)
        and len(stamp) in (0, 2)
        and all(type(value) is int for value in stamp)
        and isinstance(digest, str)
        and _DIGEST.fullmatch(digest) is not None
        and (number is None or (type(number) is int and number >= 0))
    )


_DIGEST = re.compile("[0-9a-f]{32}")


def check_rows(firsts: list[int], rows: int) -> None:
    """Raise `InputError` unless the first rows of pieces increase from 0 to the number of rows, and no piece is too
    long."""
    if firsts[0] != 0 or firsts[-1] != rows or any(before >= after for before, after in pairwise(firsts)):
        raise InputError(f"firsts does not rise from 0 to the {rows:,} rows of states")
    if any(after - before > PIECE_TOKENS for before, after in pairwise(firsts)):
        raise InputError(f"firsts has a piece of more than {PIECE_TOKENS} tokens")


IndexedDocument = tuple[Document, tuple[Passage, ...], list[range]]
"""A document, its passages, and the indices of the pieces of each passage."""


def documents_of(plain: Any, pieces: int) -> list[IndexedDocument]:
    """Returns the documents of a shard.

    Raises:
        InputError: they are invalid, or do not have `pieces` pieces in all.
    """
    if not isinstance(plain, list):
        raise InputError("documents holds no list")
    documents, first = [], 0
    for number, about in enumerate(plain):
        indexed = _document(about, f"documents[{number}]", first)
        documents.append(indexed)
        first = indexed[2][-1].stop
    if first != pieces:
        raise InputError(f"documents counts {first:,} pieces where firsts has {pieces:,}")
    return documents


def _document(about: Any, path: str, first: int) -> IndexedDocument:
    document_fields, passages = _split(about, "passages", path)
    from_plain(StoredDocument, document_fields, path)
    text, pages = document_fields["text"], document_fields["pages"]
    if any(before > after for before, after in pairwise([0, *pages, len(text)])):
        raise InputError(f"{path}.pages does not rise, or beyond the {len(text):,} characters of the text")
    checked, ranges = [], []
    for number, passage_fields in enumerate(passages):
        place = f"{path}.passages[{number}]"
        fields, sentences = _split(passage_fields, "sentences", place)
        from_plain(StoredPassage, fields, place)
        passage = Passage(
            sentences=tuple(_sentences(sentences, f"{place}.sentences", len(text))),
            first=fields["first"],
            heading=fields["heading"],
            page=fields["page"],
            by_lines=frozenset(fields["by_lines"]),
        )
        if checked and passage.start <= checked[-1].start:
            raise InputError(f"{place} does not begin after the passage before it")
        if passage.page is not None and passage.page > len(pages):
            raise InputError(f"{place}.page is {passage.page} of {len(pages)} pages")
        checked.append(passage)
        ranges.append(range(first, first + fields["pieces"]))
        first = ranges[-1].stop
    document = Document(
        text=text, blocks=(), pages=tuple(pages), title=document_fields["title"], name=document_fields["name"]
    )
    return document, tuple(checked), ranges


def _split(mapping: Any, part: str, path: str, *, empty: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Separate a list from the other fields of a mapping; it must not be empty unless `empty`."""
    if not isinstance(mapping, dict):
        raise InputError(f"{path} is no mapping")
    parts = mapping.get(part)
    if not isinstance(parts, list) or not (parts or empty):
        raise InputError(f"{path}.{part} must be a list that holds something")
    for name, value in mapping.items():
        if name in {"pages", "by_lines"} and not isinstance(value, list):
            raise InputError(f"{path}.{name} must be a list")
    return {name: value for name, value in mapping.items() if name != part}, parts


def _sentences(plain: list[Any], path: str, length: int) -> Iterator[DocumentSentence]:
    """Yield the sentences of a passage, after checking that they are in order and within the text."""
    place = 0
    for number, sentence in enumerate(plain):
        # An index of many books has a million sentences: the slow check is used only for its error message.
        if not (isinstance(sentence, dict) and sentence.keys() == _KINDS.keys()) or any(
            type(sentence[name]) not in kinds for name, kinds in _KINDS.items()
        ):
            from_plain(StoredSentence, sentence, f"{path}[{number}]")
        if not place <= sentence["start"] <= sentence["end"] <= length or sentence["block"] < 0:
            raise InputError(
                f"{path}[{number}] goes from {sentence['start']:,} to {sentence['end']:,} in a text of {length:,} "
                f"characters, behind {place:,}"
            )
        place = sentence["start"]
        yield DocumentSentence(**sentence)


_KINDS: dict[str, tuple[type, ...]] = {"start": (int,), "end": (int,), "block": (int,)}
_KINDS |= {"text": (str,), "section": (int, type(None)), "speaker": (str, type(None)), "abstract": (bool,)}
assert _KINDS.keys() == hints_of(StoredSentence).keys()
