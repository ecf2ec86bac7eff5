"""A document of any kind in, its blocks and sentences out, each with its place in the document's text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.characters import mend, mended_note, without_half_entities
from longspan.data.text.blocks import SPOKEN, Block, Document
from longspan.data.text.documents import check_words, decode, is_markdown, is_page, is_pdf, opened
from longspan.data.text.pdf import text_and_pages_from_pdf
from longspan.data.text.plain_text import blocks_of_text, paragraphs_of
from longspan.data.text.sentences import guess_language, split_sentences
from longspan.data.text.tidying import tidied
from longspan.data.text.web_pages import text_from_html

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSentence:
    """A sentence of a document.

    Attributes:
        text: the words as they are to be read, on one line.
        start, end: its characters in `Document.text`, end exclusive.
        block: the index of the block that it stands in.
        section: the index of the nearest heading above it, or None.
        speaker: who says it, where it belongs to a turn.
        abstract: whether it belongs to the document's own abstract.
    """

    text: str
    start: int
    end: int
    block: int
    section: int | None = None
    speaker: str | None = None
    abstract: bool = False


def read(path: str | Path, encoding: str | None = None, *, raw: bool = False) -> Document:
    """Read a document file: `.pdf`, `.html`, `.htm`, `.xhtml`, `.md`, `.markdown`, or plain text.

    Args:
        path: a file, or "-" for standard input.
        encoding: of a text file; None takes the byte order mark, else what an HTML page declares, else UTF-8.
        raw: leave nothing out and guess nothing: every paragraph is one.

    Raises:
        InputError: as `read_document`.
    """
    data, suffix, name = opened(path)
    halves, pages = 0, []
    if is_pdf(data, suffix):
        text, pages = text_and_pages_from_pdf(data, name)
    else:
        text = decode(data, name, encoding)
        if is_page(text, suffix):
            text, halves = without_half_entities(text)
            text = text_from_html(text)
        elif is_markdown(suffix):
            text, halves = without_half_entities(text)
    check_words(text, name)
    text, more = mend(text)
    if halves + more:
        logger.warning("note: %s: %s", name, mended_note(halves + more))
    return replace(document_of(text, raw=raw, name=name), pages=tuple(pages))


def document_of(text: str, *, raw: bool = False, name: str = "the document") -> Document:
    """A plain text as a document; `raw` as in `read`."""
    blocks = paragraphs_of(text) if raw else tidied(blocks_of_text(text))
    return Document(text=text, blocks=tuple(blocks), name=name)


def sentences_of(document: Document, language: str | None = None) -> list[DocumentSentence]:
    """The sentences of a document's paragraphs, items and turns, in order; none reaches from one block into another.

    Args:
        document: what `read` or `document_of` gave.
        language: an ISO 639-1 code; None guesses one by the script.

    Raises:
        InputError: `language` is not a language code, or the 'documents' extra is not installed.
    """
    language = language or guess_language(document.text)
    found: list[DocumentSentence] = []
    section = None
    for index, block in enumerate(document.blocks):
        if block.kind == "heading":
            section = index
        elif block.kind in SPOKEN:
            found.extend(_sentences(block, index, section, language))
    return found


def _sentences(block: Block, index: int, section: int | None, language: str) -> Iterator[DocumentSentence]:
    for sentence in split_sentences(block.text, language):
        start, end = block.body.span(sentence.start, sentence.end)
        yield DocumentSentence(
            text=" ".join(sentence.text.split()),
            start=start,
            end=end,
            block=index,
            section=section,
            speaker=block.speaker,
            abstract=block.abstract,
        )
