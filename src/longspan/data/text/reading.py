"""A document of any kind in, its blocks and sentences out, each with its place in the document's text.

A reader for each format gives blocks. The steps of `longspan.data.text.tidying`, each a pure function from blocks to
blocks, then tell what they are: turns, headings, items, references, boilerplate.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.characters import mend, mended_note, on_one_line, without_half_entities
from longspan.data.text.archives.archive import SIGNATURE, Archive
from longspan.data.text.archives.book import document_from_book
from longspan.data.text.archives.word import document_from_word
from longspan.data.text.blocks import SPOKEN, Block, Document
from longspan.data.text.documents import check_encoding, check_not_path, check_prose, check_words, decode, is_page
from longspan.data.text.markdown import blocks_of_markdown, is_made_of_marks
from longspan.data.text.markup import blocks_of_pieces, pieces_of, text_of_lines
from longspan.data.text.pdf.reader import document_from_pdf
from longspan.data.text.plain_text import SUBTITLES, blocks_of_text, is_log, lines_of_log, paragraphs_of, transcript_of
from longspan.data.text.sentences import check_language, guess_language, split_sentences, whole_sentence
from longspan.data.text.tidying import apparatus, structure, turns
from longspan.data.text.web_pages import lines_of_page
from longspan.errors import InputError
from longspan.settings import show

logger = logging.getLogger(__name__)

Step = Callable[[Sequence[Block]], list[Block]]

STEPS: tuple[Step, ...] = (
    apparatus.without_gutenberg_frame,
    turns.with_turns,
    turns.without_tags,
    structure.without_paragraph_numbers,
    apparatus.with_code,
    apparatus.with_tables,
    apparatus.with_captions,
    structure.with_headings,
    structure.with_items,
    structure.with_usage,
    structure.with_joined_lines,
    apparatus.without_credits,
    apparatus.without_licences,
    apparatus.without_banners,
    structure.without_rules,
    apparatus.without_contents,
    apparatus.with_references,
    structure.without_repeated_headings,
    structure.with_abstract,
)
"""What is done to the blocks, in this order."""
GUESSES: frozenset[Step] = frozenset(
    {
        structure.without_paragraph_numbers,
        apparatus.with_code,
        apparatus.with_tables,
        structure.with_headings,
        structure.with_items,
    }
)
"""Steps that guess from its form what a text is; formats with a structure of their own need them not."""
LARGEST = 1 << 28
"""Bytes; more is no document for one call, and would need a hundred times as much memory."""
TITLE_WITHIN = 12
"""Blocks at the beginning among which the title stands."""

_PIPES = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")
_ZIPPED = {".docx": "a Word file", ".docm": "a Word file", ".epub": "an electronic book"}
_OLD = b"\xd0\xcf\x11\xe0"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
"""A name in the old container of Microsoft Office, in which it puts files that it encrypts."""


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
    """Read a document file: `.pdf`, `.docx`, `.epub`, `.html`, `.htm`, `.xhtml`, `.md`, `.markdown`, subtitles
    (`.srt`, `.vtt`, of which what is said is read), or plain text.

    All but Markdown and subtitles is known by its contents too, so that standard input and files without an extension
    work. Line ends become "\\n". Half characters (unpaired surrogates) become U+FFFD, and a warning in the log counts
    them.

    Args:
        path: a file, or "-" for standard input.
        encoding: the encoding of a text file. None takes the byte order mark, else what an HTML page declares, else
            UTF-8; other encodings such as Latin-1 are never guessed, since a wrong guess cannot be noticed.
        raw: leave nothing out and guess nothing: every block is a paragraph, and JSON a text like any other.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, blank, binary, not in the given encoding, an
            encrypted or damaged PDF, Word file or book, or one of images without text; it is of a format that is not
            read, JSON among them; it is no file but a device, a socket or a named pipe; it is larger than `LARGEST`;
            or the 'documents' extra is not installed.
    """
    data, suffix, name = file_bytes(path)
    if encoding is not None:
        check_encoding(encoding)
    document = structured(data, suffix, name)
    if document is not None:
        blocks = as_they_are(document.blocks) if raw else tidied(document.blocks, guess=False)
        return replace(document, blocks=tuple(blocks), extracted=True)
    text, extracted = decode(data, name, encoding), False
    if suffix in SUBTITLES and not raw:
        said = transcript_of(text)
        text, extracted = (text, False) if said is None else (said, True)
    if is_page(text, suffix):
        page, halves = without_half_entities(text)
        lines = lines_of_page(_mended(page, name, halves))
        blocks, text, extracted = blocks_of_pieces(pieces_of(lines)), text_of_lines(lines), True
    elif suffix in {".md", ".markdown"}:
        check_words(text, name)
        text = _mended(text, name, without_half_entities(text)[1])
        if is_made_of_marks(text):
            logger.warning("note: %s is read as plain text: it is made of Markdown marks rather than words", name)
            return document_of(text, raw=raw, name=name)
        blocks = blocks_of_markdown(text)
    else:
        check_words(text, name)
        if not raw:
            check_prose(text, suffix, name)
        return replace(document_of(_mended(text, name), raw=raw, name=name), extracted=extracted)
    check_words("".join(block.text.strip(" \n-|") for block in blocks), name)  # marks of empty items and cells are ours
    document = _document(text, as_they_are(blocks) if raw else tidied(blocks, guess=False), name)
    return replace(document, extracted=extracted)


def file_bytes(path: str | Path) -> tuple[bytes, str, str]:
    """The bytes of a file that is not empty, its suffix in lower case, and what messages call it."""
    piped = str(path) == "-"
    name = "standard input" if piped else on_one_line(str(path))
    if piped and sys.stdin is None:
        raise InputError("standard input is closed; give a file, or pipe a document in")
    try:
        if piped:
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name} is a directory; name the files in it")
            # A regular file, or a pipe that the shell made for this command; nothing else ends for sure.
            if not stat.S_ISREG(mode) and not (stat.S_ISFIFO(mode) and _PIPES.fullmatch(str(path))):
                kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
                raise InputError(f"{name} is {kind}, not a file; give a file, or pipe the text in and name it -")
            with open(path, "rb") as file:
                data = file.read(LARGEST + 1)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path, or a closed standard input
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be read ({reason}); check the path and its permissions") from None
    if len(data) > LARGEST:
        raise InputError(f"{name} is longer than {LARGEST >> 20} MiB, too long for one document; cut it into parts")
    if not data:
        raise InputError(f"{name} is empty; give a document with text")
    return data, "" if piped else Path(path).suffix.lower(), name


def structured(data: bytes, suffix: str, name: str) -> Document | None:
    """The document in a PDF file, a Word file or an electronic book, before it is tidied; None for what must be a text.

    Args:
        data: the whole file.
        suffix: of its name, in small letters.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, locked, or of another format that longspan does not read.
    """
    if data.startswith(SIGNATURE):
        archive = Archive(data, name)
        return document_from_word(archive) if archive.kind() == "word" else document_from_book(archive)
    if data.startswith(_OLD) and _LOCKED in data:
        raise InputError(f"{name} is locked with a password; save a copy without one")
    if data.startswith(b"%PDF-") or suffix == ".pdf":
        return document_from_pdf(data, name)
    if suffix in _ZIPPED and not data.startswith(_OLD):
        raise InputError(f"{name} is not {_ZIPPED[suffix]}, whatever its name says; save it again, or rename it")
    return None


def document_of(text: str, *, raw: bool = False, name: str = "the document") -> Document:
    """A plain text as a document; `raw` as in `read`. Of a log every line is a paragraph, and a sentence."""
    if not raw and is_log(text):
        return replace(_document(text, lines_of_log(text), name), is_log=True)
    return _document(text, paragraphs_of(text) if raw else tidied(blocks_of_text(text)), name)


def as_document(given: str | Path | Document) -> Document:
    """A document however it is given: the text itself, a `Path` to a file that `read` knows, or what `read` gave."""
    if isinstance(given, Document):
        return given
    if not isinstance(given, str | Path):
        raise InputError(
            f"document is {show(given)}, of type {type(given).__name__}; give a text, a Path or a Document"
        )
    if isinstance(given, Path):
        return read(given)
    check_not_path(given, "document")
    return document_of(_mended(given, "the document"))


def tidied(blocks: Sequence[Block], *, guess: bool = True) -> list[Block]:
    """The blocks after every step; without `GUESSES` where the document's format has told its structure.

    A document of which nothing would be left is left as it is.
    """
    tidy = list(blocks)
    for step in STEPS:
        tidy = step(tidy) if guess or step not in GUESSES else tidy
    return tidy if any(block.kind in SPOKEN for block in tidy) else as_they_are(blocks)


def as_they_are(blocks: Sequence[Block]) -> list[Block]:
    """Every block as a paragraph; nothing is left out."""
    return [Block(kind="paragraph", body=block.body) for block in blocks]


def _document(text: str, blocks: Sequence[Block], name: str) -> Document:
    """The title is the heading that the document begins with, else the only one of level 1, if it stands near."""
    first = next((block for block in blocks if block.kind != "boilerplate"), None)
    top = [index for index, block in enumerate(blocks) if block.kind == "heading" and block.level == 1]
    title = None
    if first is not None and first.kind == "heading":
        title = first.text
    elif len(top) == 1 and top[0] < TITLE_WITHIN:
        title = blocks[top[0]].text
    return Document(text=text, blocks=tuple(blocks), title=title, name=name)


def _mended(text: str, name: str, halves: int = 0) -> str:
    """The text without half characters, which a warning counts, together with those that entities named."""
    text, more = mend(text)
    if halves + more:
        logger.warning("note: %s: %s", name, mended_note(halves + more))
    return text


def sentences_of(document: Document, language: str | None = None) -> list[DocumentSentence]:
    """The sentences of a document's paragraphs, items and turns, in order; none reaches from one block into another.

    Args:
        document: what `read` or `document_of` gave.
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
            for sentence in [whole_sentence(block.text)] if document.is_log else split_sentences(block.text, language):
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
