"""E-books (.epub, versions 2 and 3; W3C EPUB 3.3): the chapters in the order of the spine, as blocks."""

from __future__ import annotations

import codecs
import re
from collections.abc import Container, Iterator
from html import unescape
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.text.archives.archive import Archive
from longspan_documents.text.blocks import Document
from longspan_documents.text.documents import check_encoding
from longspan_documents.text.markup import (
    NOT_TEXT,
    Line,
    blocks_of_pieces,
    laid_out,
    pieces_of,
    text_of_lines,
    without_marks,
)
from longspan_documents.text.page_parts import keep_what_is_read

_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that only obfuscate fonts."""
_BESIDE = frozenset(
    {"cover", "titlepage", "title-page", "halftitlepage", "toc", "landmarks", "page-list", "loi", "lot", "index"}
    | {"copyright-page", "imprint", "colophon", "other-credits"}
)
"""Parts of a book that are not text, by `epub:type` and the guide."""
_PAGES = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})
_AND = re.compile(r"&(?!#?\w{1,32};)")
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)[A-Za-z][A-Za-z0-9]{1,31};")
_DECLARATION = re.compile(r"^\s*<\?xml[^>]{0,200}\?>|<!DOCTYPE[^>\[]{0,500}(?:\[[^\]]{0,5000}\]\s*)?>")
_ENCODING = re.compile(rb"""<\?xml[^>]{0,100}encoding\s*=\s*["']([A-Za-z0-9_.-]{1,40})["']""")


def document_from_book(archive: Archive) -> Document:
    """Returns the chapters of a book, without its cover, tables of contents and copyright pages if they are marked.

    Args:
        archive: the opened file.

    Raises:
        InputError: the file is damaged, its chapters are encrypted, it contains no text, or the 'documents' extra is
            not installed.
    """
    folder, package = _package(archive)
    # A chapter is read once, even if the spine repeats it.
    chapters = dict.fromkeys(_chapters(package, folder))
    _check_readable(archive, chapters)
    pages = filter(None, map(archive.part, chapters))
    lines = [block for page in pages for block in _lines(page, archive)]
    blocks = blocks_of_pieces(pieces_of(lines))
    if not any(block.text.strip(" \n-|") for block in blocks):
        raise InputError(f"{archive.name} holds no text in its {len(chapters)} chapters, maybe pictures of pages")
    titles = (" ".join("".join(title.itertext()).split()) for title in package.iter("title"))
    title = next((title for title in titles if title), None)
    return Document(text=text_of_lines(lines), blocks=tuple(blocks), title=title, name=archive.name)


def _package(archive: Archive) -> tuple[str, Any]:
    """Returns the folder of the package file, which lists all others, and its root."""
    container = _tree(archive.part("META-INF/container.xml"), archive)
    path = next((root.get("full-path") for root in container.iter("rootfile") if root.get("full-path")), "")
    path = normpath(unquote(path)) if path else ""
    data = archive.part(path)
    if not data:
        raise archive.damaged(ValueError(f"it lacks its package file {path!r}" if path else "it names no package file"))
    return dirname(path), _tree(data, archive)


def _chapters(package: Any, folder: str) -> Iterator[str]:
    """Yields the parts with text, in reading order."""
    excluded = {_path(folder, part.get("href")) for part in package.iter("reference") if part.get("type") in _BESIDE}
    parts = {item.get("id"): item for item in package.iter("item")}
    for place in package.iter("itemref"):
        item = parts.get(place.get("idref"))
        if item is None or place.get("linear") == "no" or "nav" in (item.get("properties") or "").split():
            continue
        path = _path(folder, item.get("href"))
        if path not in excluded and (item.get("media-type") or "").lower() in _PAGES:
            yield path


def _path(folder: str, link: str | None) -> str:
    """Returns the name of a part; links out of the archive match none of its parts."""
    return normpath(join(folder, unquote((link or "").partition("#")[0])))


def _check_readable(archive: Archive, chapters: Container[str]) -> None:
    """Raises `InputError` for a book with encrypted chapters."""
    data = archive.part("META-INF/encryption.xml")
    if not data:
        return
    for locked in _tree(data, archive).iter("EncryptedData"):
        method = next(locked.iter("EncryptionMethod"), None)
        if method is not None and method.get("Algorithm") in _FONTS:
            continue
        if any(normpath(unquote(part.get("URI") or "")) in chapters for part in locked.iter("CipherReference")):
            raise InputError(f"{archive.name} is encrypted by its seller (DRM); give a copy that is not")


def _lines(page: bytes, archive: Archive) -> list[list[Line]]:
    """Returns the blocks of a chapter; empty if the page is marked as not text."""
    tree = _tree(page, archive)
    keep_what_is_read(tree)
    body = next(tree.iter("body"), tree)

    def skip(element: Any) -> bool:
        kinds = element.get("{http://www.idpf.org/2007/ops}type") or element.get("epub:type") or ""
        return element.tag in NOT_TEXT or element.tag == "head" or not _BESIDE.isdisjoint(kinds.split())

    return laid_out(body, skip)


def _tree(data: bytes, archive: Archive) -> Any:
    """Returns the root of an XML part, with names without namespaces; invalid pages are repaired as in browsers."""
    etree = require("lxml.etree", extra="documents", purpose="reading EPUB")
    parser = etree.XMLParser(recover=True, resolve_entities=False, remove_comments=True, remove_pis=True)
    declared = _ENCODING.match(data)
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = declared[1].decode("ascii") if declared else "utf-16" if marked else "utf-8"
    try:
        text = data.decode(check_encoding(encoding), "replace").removeprefix("\ufeff")
    except InputError:
        raise archive.damaged(ValueError(f"it declares the unknown encoding {encoding!r}")) from None
    text = _ENTITY.sub(lambda match: unescape(match[0]), without_marks(_AND.sub("&amp;", _DECLARATION.sub("", text))))
    try:
        root = etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError:  # nothing could be recovered
        root = None
    if root is None:
        raise archive.damaged(ValueError("one of its parts is no XML"))
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = re.split("[}:]", element.tag)[-1] or "span"
    return root
