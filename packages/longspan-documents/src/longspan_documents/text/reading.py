"""Reading of documents of any kind into blocks and sentences, with positions in the document's text.

A reader for each format returns blocks. The steps of `longspan_documents.text.tidying`, pure functions from blocks to
blocks, then classify them: turns, headings, items, references, boilerplate.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.characters import mend, mended_note
from longspan.data.text.abbreviations import abbreviations_from
from longspan.data.text.sentences import check_language, guess_language, split_sentences, whole_sentence
from longspan.errors import InputError
from longspan.imports import MissingLibraryError, importing
from longspan.options import expand_options
from longspan.settings import check_kind, show
from longspan_documents.text.blocks import SPOKEN, Block, Document
from longspan_documents.text.documents import check_words
from longspan_documents.text.folders import check_not_path
from longspan_documents.text.kinds.refused import check_prose
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import kind_of
from longspan_documents.text.options import FileReading, Reading, SentenceReading
from longspan_documents.text.plain_text import blocks_of_text, is_log, lines_of_log, paragraphs_of
from longspan_documents.text.tidying import (
    apparatus,
    contents,
    conversations,
    labels,
    notices,
    structure,
    threads,
    turns,
)
from longspan_documents.text.titles import title_of

logger = logging.getLogger(f"longspan.{__name__}")

Step = Callable[[Sequence[Block]], list[Block]]

STEPS: tuple[Step, ...] = (
    structure.without_invisible_characters,
    apparatus.without_gutenberg_frame,
    threads.with_letters,
    conversations.with_conversation,
    turns.with_turns,
    turns.without_tags,
    labels.with_labels,
    structure.without_paragraph_numbers,
    apparatus.with_code,
    apparatus.with_tables,
    apparatus.with_captions,
    contents.without_contents,
    structure.with_headings,
    structure.with_items,
    structure.with_usage,
    structure.with_joined_lines,
    apparatus.without_credits,
    notices.without_notices,
    apparatus.without_banners,
    structure.without_rules,
    apparatus.with_references,
    structure.without_repeated_headings,
    structure.with_abstract,
)
"""Steps applied to the blocks, in this order."""
GUESSES: frozenset[Step] = frozenset(
    {
        structure.without_paragraph_numbers,
        apparatus.with_code,
        apparatus.with_tables,
        structure.with_headings,
        structure.with_items,
    }
)
"""Steps that guess the structure of a text from its form; formats with their own structure do not need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSentence:
    """A sentence of a document.

    Attributes:
        text: the edited words, on one line.
        start, end: its characters in `Document.text`, end exclusive.
        block: index of its block.
        section: index of the nearest heading above it, or None.
        speaker: its speaker, if it belongs to a turn.
        abstract: whether it belongs to the document's own abstract.
    """

    text: str
    start: int
    end: int
    block: int
    section: int | None = None
    speaker: str | None = None
    abstract: bool = False


@expand_options(FileReading)
def read(path: str | Path, options: Reading) -> Document:
    """Reads a document file of any kind in `longspan_documents.text.kinds.table.READERS`, or plain text.

    The kind is detected from the content first, so that standard input and files without an extension work, then from
    the suffix. Line ends become "\\n". Unpaired surrogates become U+FFFD, and a warning in the log counts them.

    Args:
        path: a file, or "-" for standard input.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, blank, binary, not in the passed encoding,
            encrypted, damaged, or one of images without text and `ocr` is False; it is of an unsupported kind, such as
            JSON; it is a device, a socket or a named pipe; it, or its uncompressed content, is too large; or the
            'documents' extra is not installed, or the 'ocr' extra for `ocr`, or a library of them cannot be imported.
    """
    return read_file(path, options)


def read_file(path: str | Path, reading: Reading) -> Document:
    """Reads a document file; see `read`."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    check_kind(path, "path", str, "the path of a file, or '-' for standard input")
    source = replace(Source.of_path(path, reading.encoding), page_headers=reading.page_headers, ocr=reading.ocr)
    try:
        with importing(extra="documents", purpose="reading it"):
            return abbreviating(document_in(source, raw=reading.raw), further_abbreviations(reading))
    except MissingLibraryError as error:  # for one file of a folder, which the message must name
        raise InputError(f"{source.name}: {error}") from error


def document_in(source: Source, *, raw: bool = False) -> Document:
    """Reads the document in an opened file; see `read`."""
    kind, name = kind_of(source), source.name
    result = source.text if kind is None or (raw and kind.is_text) else kind.read(source)
    if isinstance(result, str):
        check_words(result, name)
        if not raw and kind is None:
            check_prose(source, result)
        taken_out = kind is not None and result is not source.text
        return replace(document_of(_mended(result, name), raw=raw, name=name), extracted=taken_out)
    # Marks of empty items and cells are added by us, not words of the document.
    check_words("".join(block.text.strip(" \n-|") for block in result.blocks), name)
    assert kind is not None
    remarks = list(result.remarks)
    if raw:
        blocks = as_they_are(result.blocks)
    elif not kind.is_prose:
        blocks = list(result.blocks)
        remarks.append("it holds a table, which is no prose: no sentences are found in it")
    elif any(block.kind == "code" for block in result.blocks) and not any(
        _may_have_sentences(block) for block in result.blocks
    ):
        blocks = list(result.blocks)
        remarks.append("it holds code, which is no prose: no sentences are found in it")
    else:
        blocks = tidied(result.blocks, guess=False)
    if remarks:
        logger.warning("note: %s: %s", name, "; ".join(remarks))
    title = result.title or title_of(blocks)
    remade = {"blocks": tuple(blocks), "title": title, "remarks": tuple(remarks), "extracted": not kind.has_places}
    return replace(result, **remade)


def document_of(text: str, *, raw: bool = False, name: str = "the document") -> Document:
    """Returns a plain text as a document; `raw` as in `read`. In a log every line is a paragraph, and a sentence."""
    if not raw and is_log(text) and conversations.form_of(text) is None:
        return replace(_document(text, lines_of_log(text), name), is_log=True)
    return _document(text, paragraphs_of(text) if raw else tidied(blocks_of_text(text)), name)


def abbreviating(document: Document, abbreviations: Iterable[str]) -> Document:
    """Returns the document with further words that never end a sentence.

    Raises:
        InputError: one of them is not a word.
    """
    words = abbreviations_from(abbreviations)
    return replace(document, abbreviations=document.abbreviations | words) if words else document


def further_abbreviations(reading: Reading) -> Iterable[str]:
    """Words that no sentence ends with, besides those that are known; of verbs that cut sentences."""
    return reading.abbreviations if isinstance(reading, SentenceReading) else ()


def as_document(given: str | Path | Document, reading: Reading | None = None) -> Document:
    """Returns a document from any of its forms: the text itself, a `Path` to a file that `read` supports, or a
    `Document`."""
    reading = reading or Reading()
    if isinstance(given, Document):
        return abbreviating(given, further_abbreviations(reading))
    if not isinstance(given, str | Path):
        raise InputError(
            f"document is {show(given)}, of type {type(given).__name__}; give a text, a Path or a Document"
        )
    if isinstance(given, Path):
        return read_file(given, reading)
    if not given.strip():
        raise InputError("document is blank; give a text with words in it, or a Path to a file")
    check_not_path(given, "document")
    document = document_of(_mended(given, "the document"), raw=reading.raw)
    return abbreviating(document, further_abbreviations(reading))


def tidied(blocks: Sequence[Block], *, guess: bool = True) -> list[Block]:
    """Applies every step to the blocks; without `GUESSES` if the document's format defines its structure.

    A document of which nothing would be left is returned unchanged, except for copyright notices on a page of links.
    """
    tidy = list(blocks)
    for step in STEPS:
        tidy = step(tidy) if guess or step not in GUESSES else tidy
    if any(block.kind in SPOKEN for block in tidy):
        return tidy
    kept = [replace(block, kind="paragraph") if block.kind == "boilerplate" else block for block in blocks]
    places = [block.kind == "boilerplate" for block in notices.without_notices(kept)]
    whole = as_they_are(blocks)
    return [replace(block, kind="boilerplate") if one else block for block, one in zip(whole, places, strict=True)]


def as_they_are(blocks: Sequence[Block]) -> list[Block]:
    """Returns every block as a paragraph, without leaving anything out."""
    return [Block(kind="paragraph", body=block.body) for block in blocks]


def _document(text: str, blocks: Sequence[Block], name: str) -> Document:
    return Document(text=text, blocks=tuple(blocks), title=title_of(blocks), name=name)


def _may_have_sentences(block: Block) -> bool:
    return block.kind in {*SPOKEN, "table", "caption", "note"}


def _mended(text: str, name: str) -> str:
    """Replaces unpaired surrogates, with a warning that counts them."""
    text, halves = mend(text)
    if halves:
        logger.warning("note: %s: %s", name, mended_note(halves))
    return text


def sentences_of(document: Document, language: str | None = None) -> list[DocumentSentence]:
    """Returns the sentences of a document's paragraphs, items and turns, in order; none crosses a block border.

    Args:
        document: a result of `read` or `document_of`.
        language: an ISO 639-1 code; None guesses one by the script.

    Raises:
        InputError: `language` is not a language code, or the 'documents' extra is not installed.
    """
    if language is not None:
        check_language(language)
    language = language or guess_language(document.text)
    sentences: list[DocumentSentence] = []
    section = None
    for index, block in enumerate(document.blocks):
        if block.kind == "heading":
            section = index
        elif block.kind in SPOKEN:
            cut = [whole_sentence(block.text)] if document.is_log else None
            for sentence in cut or split_sentences(block.text, language, document.abbreviations):
                start, end = block.body.span(sentence.start, sentence.end)
                placed = DocumentSentence(
                    text=" ".join(sentence.text.split()),
                    start=start,
                    end=end,
                    block=index,
                    section=section,
                    speaker=block.speaker,
                    abstract=block.abstract,
                )
                sentences.append(placed)
    return sentences
