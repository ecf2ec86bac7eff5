"""The text of a saved web page: its article, without menus, banners, comments and advertisements.

trafilatura finds the article, but drops some of its headings, lists, tables and code. So its words are only used to
locate the article: the smallest element with nine tenths of them is laid out, without navigation. If that part lacks
half of the page's words outside links (for short pages, and page structures unknown to trafilatura), the whole page is
laid out in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from longspan.imports import require
from longspan_documents.text.markup import NOT_TEXT, Line, laid_out, text_of_lines, text_of_tree, without_marks
from longspan_documents.text.page_parts import count, keep_what_is_read

LARGEST_TREE = 100_000
"""In elements; a larger page is laid out as a whole, since finding its article would take too long."""

MOST_ATTRIBUTES = 500
"""Of one element; libxml2 compares each with all previous ones, so attributes of an element with more are dropped."""

RUN = 5
"""Number of words at the beginning of a text by which it is found in the article."""

_NUMBER = re.compile(r"&#(?:[xX][0-9a-fA-F]{8,}|[0-9]{9,});?")
_BOILERPLATE = re.compile(
    r"(?:^|[-_\s])(?:comments?|cookies?|consent|gdpr|menu|nav|navbar|navigation|sidebar|breadcrumbs?|footer|share|sharing"
    r"|social|popup|modal|newsletter|advert|advertisements?|ads|promo|related|skip-?link|banner)(?:$|[-_\s])",
    re.IGNORECASE,
)
_ANCHOR = re.compile(r"(?:^|\s)(?:headerlink|header-anchor|anchor-link|hash-link|permalink)(?:$|\s)")
_PARTS = frozenset(
    {"body", "main", "article", "section", "div", "center", "table", "tbody", "tr", "td", "font", "span"}
)
"""Elements that may contain a whole article with its heading."""
_BESIDE = re.compile(
    r"(?:^|[-_\s])(?:legal-?notice|copyright|licen[cs]e|appendix|titlepage|toc)(?:$|[-_\s])", re.IGNORECASE
)
"""Classes of additions to the text, however long: DocBook's licences are longer than some manuals."""
_WORD = re.compile(r"\w+")
_TAG = re.compile(r"<[^<>]*>")
_OPENING = re.compile(r"<([A-Za-z][^\s>/]*)([^>]*)")
_HIDDEN = re.compile(r"<(script|style)\b.*?(?:</\1|\Z)", re.IGNORECASE | re.DOTALL)


def lines_of_page(page: str) -> list[list[Line]]:
    """Returns the blocks of a page, each with its lines; see `longspan_documents.text.markup` for lists and tables."""
    tree = parsed(page)
    if tree is None:
        return []
    keep_what_is_read(tree)
    page_part = _marked_part(tree)
    skip = _navigation(page_part)
    whole = laid_out(page_part, skip)
    article = _article(page_part) if sum(1 for _ in tree.iter()) <= LARGEST_TREE else page_part
    if article is page_part:
        return whole
    lines = laid_out(article, skip)
    prose = text_of_tree(page_part, lambda element: element.tag == "a" or skip(element))
    if 2 * len(_WORD.findall(text_of_lines(lines))) < len(_WORD.findall(prose)):
        return whole
    for heading in _headings_above(article, page_part):
        lines = [*laid_out(heading), *lines]
    return lines


def _headings_above(article: Any, page_part: Any) -> list[Any]:
    """Returns the headings directly above an article, and the page's single first-level heading; nearest first."""
    above: list[Any] = []
    before = article.getprevious()
    while before is not None and re.fullmatch("h[1-6]", str(before.tag)):
        above.append(before)
        before = before.getprevious()
    highest = list(page_part.iter("h1"))
    if len(highest) == 1 and highest[0] not in above and article not in (highest[0], *highest[0].iterancestors()):
        above.append(highest[0])
    return above


def parsed(page: str) -> Any:
    """Returns the root element of a page, or None if it has none; invalid character references are replaced."""
    library = require("lxml.html", extra="documents", purpose="reading HTML")
    page = _OPENING.sub(_bounded, _NUMBER.sub("\ufffd", without_marks(page)))
    parser = library.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        tree = library.document_fromstring(page.encode("utf-8", "replace"), parser=parser)
    except library.etree.ParserError:  # only white space or comments
        tree = None
    if any("depth" in entry.message for entry in parser.error_log):
        # libxml2 drops elements nested deeper than 2,048, from unclosed tags. The words are kept without them.
        pieces = (piece.replace("<", "&lt;") for piece in _TAG.split(_HIDDEN.sub(" ", page)) if piece.strip())
        return library.fromstring(f"<div><p>{'<p>'.join(pieces)}</div>")
    return tree


def _bounded(match: re.Match[str]) -> str:
    """Removes the attributes of a tag that has too many."""
    many = len(match[2]) > 2 * MOST_ATTRIBUTES and len(match[2].split(None, MOST_ATTRIBUTES)) > MOST_ATTRIBUTES
    return f"<{match[1]}" if many else match[0]


def _marked_part(tree: Any) -> Any:
    """Returns the part that the page itself marks as its main part."""
    for name in ("main", "article"):
        elements = list(tree.iter(name))
        if len(elements) == 1 and any(text.strip() for text in elements[0].itertext()):
            return elements[0]
    return tree


def _navigation(root: Any) -> Callable[[Any], bool]:
    """Returns a predicate for elements that are not text by tag or name, unless most of the page's words are in
    them."""
    words = count(root, lambda element, text: 0 if element.tag == "a" else len(_WORD.findall(text)), _is_no_text)
    half = words[root] / 2
    code = {inner for tag in ("pre", "code") for outer in root.iter(tag) for inner in outer.iter()}

    def skip(element: Any) -> bool:
        if _is_no_text(element):
            return True
        if element in code:  # in code every character counts, and classes are those of a highlighter
            return False
        if _is_anchor(element):
            return True
        named = f"{element.get('id', '')} {element.get('class', '')} {element.get('role', '')}"
        return bool(_BOILERPLATE.search(named)) and words[element] < half

    return skip


def _is_no_text(element: Any) -> bool:
    return element.tag in NOT_TEXT or element.tag == "head"


def _is_anchor(element: Any) -> bool:
    """Whether a link is the anchor mark of a heading, or words are a program's error message."""
    named = element.get("class", "")
    if element.tag == "a":
        return bool(_ANCHOR.search(named)) or "".join(element.itertext()).strip() in {"¶", "#", "§", "🔗"}
    return element.tag in {"span", "strong", "div"} and bool(
        re.search(r"(?:^|\s)(?:error|scribunto-error)(?:$|\s)", named)
    )


def _article(root: Any) -> Any:
    """Returns the smallest element with nine tenths of the words that trafilatura extracts; the root if it extracts
    none."""
    trafilatura = require("trafilatura", extra="documents", purpose="reading HTML")
    extracted = trafilatura.bare_extraction(deepcopy(root), include_comments=False, with_metadata=False)
    taken = _WORD.findall(extracted.text or "") if extracted is not None else []
    known = {tuple(taken[place : place + RUN]) for place in range(len(taken))}

    def matched(element: Any, text: str) -> int:
        words = _WORD.findall(text)
        return len(words) if tuple(words[:RUN]) in known and len(words) >= RUN else 0

    counts = count(root, matched, _is_no_text)
    if not counts[root]:
        return root
    article = root
    while inner := [child for child in article if child.tag in _PARTS and 10 * counts[child] >= 9 * counts[root]]:
        if _BESIDE.search(inner[0].get("class", "")):
            break
        article = inner[0]
    return article
