"""The text inside HTML pages, Markdown files and PDF files."""

from __future__ import annotations

import html
import logging
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import accumulate
from typing import Any

from longspan.data.extras import require
from longspan.errors import InputError

_NOT_TEXT = frozenset(
    {
        "script",
        "style",
        "template",
        "noscript",
        "head",
        "nav",
        "footer",
        "aside",
        "form",
        "button",
        "select",
        "textarea",
    }
    | {"svg", "math", "iframe", "object"}
)
_INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins"}
    | {"kbd", "label", "mark", "nobr", "output", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike"}
    | {"strong", "sub", "sup", "time", "tt", "u", "var", "wbr", "td", "th", "br", "img"}
)
_BLOCK_MARK, _LINE_MARK = "\ue000", "\ue001"  # private-use characters, which no page means as text

_LINK = re.compile(r"!?\[([^\[\]\n]*)\](?:\([^()\s]*(?:\s+\"[^\"\n]*\")?\)|\[[^\[\]\n]*\])")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(?:```|~~~).*$", re.MULTILINE)
_RULE = re.compile(r"^ {0,3}(?:[-*_=][ \t]*){3,}$", re.MULTILINE)
_BROKEN_WORD = re.compile(r"([^\W\d_])[-\u2010]\n([^\W\d_A-Z])")


def text_from_html(page: str) -> str:
    """The text of a page, blocks separated by blank lines.

    Scripts, styles, navigation, asides, form controls and footers are left out. Where the page marks one part as its
    main part (`<main>`, else a single `<article>`), only that part is read.
    """
    soup = require("bs4", extra="documents", purpose="reading HTML")
    page = page.replace(_BLOCK_MARK, " ").replace(_LINE_MARK, " ")
    with warnings.catch_warnings():
        # XHTML read as HTML is what we want, and a short text that looks like an address is still a text.
        warnings.simplefilter("ignore", soup.XMLParsedAsHTMLWarning)
        warnings.simplefilter("ignore", soup.MarkupResemblesLocatorWarning)
        tree = soup.BeautifulSoup(page, "html.parser")
    text = "".join(_walk(_main_part(tree), soup.element.PreformattedString))
    blocks = (" ".join(block.split()) for block in text.split(_BLOCK_MARK))
    lines = ("\n".join(line.strip() for line in block.split(_LINE_MARK)).strip() for block in blocks)
    return "\n\n".join(line for line in lines if line)


def _walk(root: Any, not_text: type) -> Iterator[str]:
    """Strings and marks in reading order; without recursion, since unclosed tags nest thousands deep."""
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, verbatim = waiting.pop()
        name = getattr(node, "name", None)
        if name is None:  # a string: text, a mark of ours, or a comment or declaration
            if not isinstance(node, not_text):
                yield str(node).replace("\n", _LINE_MARK) if verbatim else str(node)
            continue
        if name in _NOT_TEXT:
            continue
        # Any tag that is not known to stand inside a line stands alone, so that no two words are glued together.
        mark = {"br": _LINE_MARK, "td": " ", "th": " "}.get(name, "" if name in _INLINE else _BLOCK_MARK)
        verbatim = verbatim or name == "pre"
        inside = [(mark, False), *((child, verbatim) for child in node.children), (mark, False)]
        waiting.extend(reversed(inside[:1] if name == "br" else inside))


def _main_part(tree: Any) -> Any:
    for name in ("main", "article"):
        found = tree.find_all(name, limit=2)
        if len(found) == 1 and found[0].get_text(strip=True):
            return found[0]
    return tree


def text_from_markdown(source: str) -> str:
    """The words of a Markdown file: front matter, comments, link targets and marks of style are left out."""
    if source.startswith("---\n") and (end := source.find("\n---\n", 3)) >= 0:
        source = source[end + 5 :]
    source = _without_comments(source)
    source = _LINK.sub(r"\1", source)
    source = _FENCE.sub("", source)
    source = _RULE.sub("", source)
    source = _HEADING.sub(r"\n\1\n", source)
    return html.unescape(source.replace("**", ""))


def _without_comments(source: str) -> str:
    """Drop `<!-- … -->`; an unclosed one stays as it is."""
    kept: list[str] = []
    place = 0
    while (start := source.find("<!--", place)) >= 0 and (end := source.find("-->", start)) >= 0:
        kept.append(source[place:start])
        place = end + 3
    return "".join([*kept, source[place:]])


def text_from_pdf(data: bytes, name: str) -> str:
    """The text of a PDF file, page after page; a word that is broken at a line's end is joined again.

    Args:
        data: the whole file.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, encrypted with a password, or holds images of text only.
    """
    return text_and_pages_from_pdf(data, name)[0]


def text_and_pages_from_pdf(data: bytes, name: str) -> tuple[str, list[int]]:
    """As `text_from_pdf`, and for each page the character at which its text begins."""
    pypdf = require("pypdf", extra="documents", purpose="reading PDF")
    try:
        with _quiet("pypdf"):
            reader = pypdf.PdfReader(BytesIO(data))
            locked = reader.is_encrypted and not reader.decrypt("")
            pages = [] if locked else [page.extract_text().strip() for page in reader.pages]
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} cannot be read as PDF ({reason}); save it again, or convert it to text") from error
    if locked:
        raise InputError(f"{name} is encrypted; save a copy without a password")
    text = "\n".join(pages)
    if not text.strip():
        raise InputError(f"{name} holds no text on its {len(pages)} pages, likely scans; run text recognition first")
    starts = [0, *accumulate(len(page) + 1 for page in pages[:-1])]
    # Joining a broken word takes two characters away, and so from where every later page begins.
    broken = [match.end() for match in _BROKEN_WORD.finditer(text)]
    return _BROKEN_WORD.sub(r"\1\2", text), [start - 2 * bisect_right(broken, start + 1) for start in starts]


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library from logging what it mends in a damaged file, line after line; errors still raise."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
