"""The words of a Markdown file: what a reader of the rendered page would see, laid out as plain text."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from longspan.data.text.markup import text_of_tree, without_marks
from longspan.extras import require

logger = logging.getLogger(__name__)

_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?:(?!\1[ \t]*$|\.\.\.[ \t]*$).*\n){0,500}(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE
)
_DEFINED = re.compile(r"^(?= {0,3}\[\^[^\]\s]{1,60}\]:)", re.MULTILINE)
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,60}\]:?")
_SPECIAL = re.compile(r"[\[\]*_`<&!|~>\n\\]")
FEW, SHARE = 100_000, 5
"""A source in which more characters than the first number, and more than one in the second, are marks or line ends is
read as it is: no prose, and the parser takes ten microseconds for each of them."""


def text_from_markdown(source: str, name: str = "the document") -> str:
    """The text of a Markdown file: front matter, comments, link targets and marks of style are left out.

    Tables become lines of cells between bars, items keep their numbers, pictures leave their description, footnotes
    their text where it stands; raw HTML is read as such.
    """
    from longspan.data.text.web_pages import parsed

    source = _FRONT_MATTER.sub("", without_marks(source), count=1)
    marks = sum(1 for _ in _SPECIAL.finditer(source))
    if marks > FEW and marks * SHARE > len(source):
        logger.warning("note: %s is read as plain text: it is made of Markdown marks rather than words", name)
        return source
    tree = parsed(_parser().render(_DEFINED.sub("\n", source)))
    return "" if tree is None else text_of_tree(tree)


@lru_cache(maxsize=1)
def _parser() -> Any:
    library = require("markdown_it", extra="documents", purpose="reading Markdown")
    parser = library.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    reference = next(rule.fn for rule in parser.block.ruler.__rules__ if rule.name == "reference")

    def unless_footnote(state: Any, start: int, end: int, silent: bool) -> bool:
        begin = state.bMarks[start] + state.tShift[start]
        return not state.src.startswith("[^", begin) and reference(state, start, end, silent)

    def without_footnote_marks(state: Any) -> None:
        for block in state.tokens:
            for token in block.children or ():
                if token.type == "text":
                    token.content = _FOOTNOTE.sub("", token.content)

    parser.block.ruler.at("reference", unless_footnote)
    parser.core.ruler.push("footnote_marks", without_footnote_marks)
    return parser
