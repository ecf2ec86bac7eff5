"""The text of a PDF file, read with PDFium.

PDFium ends a line that a hyphen breaks by one mark, U+FFFE, and puts the next line behind it. Two rules follow from it:

1. The rest of the broken word joins its beginning, and the line ends behind that word: lines stay as long as they were
   printed, which finding paragraphs and sentences relies on.
2. A hyphen that belongs to the word ("non-opioid", "ICD-9") stays. The rest of the document tells: it does where the
   hyphenated form occurs elsewhere and the joined one does not.
"""

from __future__ import annotations

import re
from contextlib import closing
from itertools import accumulate
from threading import Lock
from typing import Any

from longspan.errors import InputError
from longspan.extras import require

LOCK = Lock()
"""PDFium must not be entered by two threads at once, not even with two files."""

PASSWORD = 4
"""PDFium's number for a file that asks for one."""

_BROKEN = re.compile(
    r"(?<![^\W\d_])([^\W\d_]++)(?:[\u00ad\u2010-]([\n\f])|[\x02\ufffe]([\n\f]?))(\w[^\s\x02\ufffe]*+) ?([\n\f]?)"
)
_WORD = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_MARKS = re.compile("[\x02\ufffe]")


def text_and_pages_from_pdf(data: bytes, name: str) -> tuple[str, list[int]]:
    """The text of a PDF file, page after page, and for each page the character at which its text begins.

    Args:
        data: the whole file.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, encrypted with a password, or holds images of text only.
    """
    pages = whole_words("\f".join(_lines(page) for page in _pages(data, name))).split("\f")
    text = "\n".join(pages)
    if not text.strip():
        raise InputError(f"{name} holds no text on its {len(pages)} pages, likely scans; run text recognition first")
    return text, [0, *accumulate(len(page) + 1 for page in pages[:-1])]


def whole_words(text: str) -> str:
    """The text with the words joined that a line's end ("\n") or a page's ("\f") breaks, each on its first line."""
    known = {word.casefold() for word in _WORD.findall(text)}

    def join(found: re.Match[str]) -> str:
        head, first_end, second_end, rest, last_end = found.groups(default="")
        hyphen = "-" if _keeps_hyphen(text[max(found.start() - 1, 0) : found.start()], head, rest, known) else ""
        ends = (first_end + second_end + last_end).replace("\n", "")
        return f"{head}{hyphen}{rest}{ends or chr(10)}"

    return _MARKS.sub("", _BROKEN.sub(join, text))


def _keeps_hyphen(before: str, head: str, rest: str, known: set[str]) -> bool:
    word = _WORD.match(rest)
    tail = word[0] if word else rest
    together = f"{head}{tail}".casefold() in known
    if before in {"-", "\u2010"} or not tail[0].islower():
        return not together
    return f"{head}-{tail}".casefold() in known and not together


def _pages(data: bytes, name: str) -> list[str]:
    pdfium = require("pypdfium2", extra="documents", purpose="reading PDF")
    with LOCK:
        try:
            with closing(pdfium.PdfDocument(data)) as document:
                return [_page(document, number) for number in range(len(document))]
        except pdfium.PdfiumError as error:
            if getattr(error, "err_code", None) == PASSWORD:
                raise InputError(f"{name} is encrypted; save a copy without a password") from None
            reason = " ".join(str(error).split()).rstrip(".")
            raise InputError(f"{name} cannot be read as PDF ({reason}); save it again, or convert it to text") from None


def _page(document: Any, number: int) -> str:
    with closing(document[number]) as page, closing(page.get_textpage()) as text:
        # Half characters, of a font with a broken table, are the caller's to mend, as in every kind of file.
        return text.get_text_range(errors="surrogatepass")


def _lines(page: str) -> str:
    lines = page.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\0", "").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip()
