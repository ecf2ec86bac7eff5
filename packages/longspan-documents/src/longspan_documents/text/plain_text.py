"""Plain text as blocks: by blank lines, marks at the beginning of lines, and the form of lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longspan.data.text.sentences import WRAPPED_LINE
from longspan_documents.text.blocks import Block, Traced

TITLE = 100
"""In characters; a longer line is not a heading."""

WIDEST = 400
"""In characters; maximum width of wrapped text."""

LABEL = 40
"""Maximum characters of a label above indented lines."""
EARLY, NEAR = 0.7, 12
"""Part of the width of a group of lines, the longest within this distance on both sides, before which a title ends."""

BULLET = re.compile(r"[^\S\n]*[-*+•‣◦▪–●■○·][^\S\n]+(?=\S)")
NUMBER = re.compile(
    r"[^\S\n]*(?:\(?(?P<number>\d{1,3})[.)]|(?P<deep>\d{1,2}(?:\.\d{1,2}){1,4})\.?(?=[^\S\n]+[A-Z\"“(])"
    r"|\(?(?P<letter>[a-z]|[ivx]{2,4}|[A-Z](?=[.)][^\S\n]{2}))[.)])[^\S\n]+(?=\S)"
)
ATX = re.compile(r"[^\S\n]{0,3}(?P<marks>#{1,6})[^\S\n]+(?P<words>[^\n]*?)[^\S\n]*#*$")
WIKI = re.compile(r"[^\S\n]*(?P<marks>=(?:[ ]?=){0,5})[^\S\n]+(?P<words>[^\n=]+?)[^\S\n]+(?P=marks)[^\S\n]*$")
CHAPTER = re.compile(
    r"[^\S\n]*(?:chapter|part|book|volume|section|appendix|act|scene|canto|kapitel|chapitre"
    r"|cap[íi]tulo|capitolo|teil|глава)"
    r"[^\S\n]+(?:the[^\S\n]+\w+|\d{1,3}|[ivxlc]{1,8}|[a-z]|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    r"(?:[.:—–-][^\n]{0,80}|[^\S\n][^\n]{0,80}[^.,;!?\s]|)[^\S\n]*$",
    re.IGNORECASE,
)
SECTIONS = re.compile(
    r"abstract|summary|executive summary|introduction|background|related work|(?:materials and )?methods|method"
    r"|results|discussion|results and discussion|conclusions?|references|bibliography|works cited|literature cited"
    r"|contents|table of contents|acknowledge?ments?|appendix|keywords|foreword|preface|prologue|epilogue|motivation"
    r"|limitations|(?:conclusions? and )?future work|key points|highlights|overview|notes|experiments|evaluation",
    re.IGNORECASE,
)
"""Names of sections that are headings when alone on a line."""
STATEMENT = re.compile(
    r"\s*(?:(?:async )?(?:def|class)\s+\w+|(?:async )?(?:if|for|while|elif|else|try|except|finally|with)\b"
    r"|[)\]}]+(?=:|\s*->)).*[:(]\s*$"
)
"""A line of code that opens an indented block."""
ENDED = re.compile(r"[.!?…:;。！？।؟][\"'”’»)\]*_]*$")

_LINE = re.compile(r"[^\n\f]*[\n\f]?")
_PAGE = re.compile(r"\s*\d{1,4}\s*")
_SECTION = re.compile(r"\s*\d{1,2}(?:\.\d{1,2}){0,4}\.?\s+[A-Z]")
_RULE = re.compile(r"[^\S\n]*(?:([=\-~^\"*+#_])\1{2,}|(?:[-_*=][ ]){2,}[-_*=])[^\S\n]*")


def paragraphs_of(text: str) -> list[Block]:
    """Returns the text's paragraphs unchanged, separated by blank lines, with their line ends."""
    paragraphs: list[Block] = []
    start = end = -1
    for line in _LINE.finditer(text):
        blank = not line[0] or line[0].isspace()
        if start < 0 and not blank:
            start = line.start()
        if start >= 0 and (blank or line[0][-1] != "\n"):
            end = line.start() if blank else line.end()
            paragraphs.append(Block(kind="paragraph", body=Traced.whole(text[start:end].rstrip("\n\f"), start)))
            start = -1
    if start >= 0:
        paragraphs.append(Block(kind="paragraph", body=Traced.whole(text[start:].rstrip("\n"), start)))
    return paragraphs


def blocks_of_text(text: str) -> list[Block]:
    """Returns the text's paragraphs with their line ends, split where an item, a title or a one-line paragraph
    begins."""
    width = wrapped_width(text)
    return [block for group in paragraphs_of(text) for block in _pieces(group, width)]


def wrapped_width(text: str) -> int:
    """Returns the maximum length of a line that is part of a paragraph; a longer one is a paragraph.

    A text whose lines above `WRAPPED_LINE` mostly end near one width is wrapped at that width.
    """
    long = sorted(length for line in text.split("\n") if WRAPPED_LINE < (length := len(line.rstrip())) <= WIDEST)
    total = sum(len(line) > WRAPPED_LINE for line in text.split("\n"))
    if len(long) < 20 or len(long) < total:
        return WRAPPED_LINE
    return long[-1] if long[len(long) // 4] > 0.9 * long[-1] else WRAPPED_LINE


def is_title(line: str) -> bool:
    """Whether a line is a heading by its form alone, at any position."""
    marked, line = line.rstrip(), line.strip()
    if len(line) > TITLE:
        return False
    if ATX.match(marked) or WIKI.match(line):  # if indented, # begins a comment in code
        return True
    name = line.rstrip(":." if line.isupper() else ":")
    return line[:1].isupper() and bool(CHAPTER.match(line) or SECTIONS.fullmatch(name))


def is_shouted(line: str) -> bool:
    """Whether a line is in capitals."""
    letters = sum(map(str.isalpha, line))
    return (
        letters > 2
        and "_" not in line
        and line.isupper()
        and len(line.strip()) <= TITLE
        and 2 * letters > len(line.strip())
    )


def _pieces(group: Block, width: int) -> Iterator[Block]:
    lines = group.text.split("\n")
    if len(lines) == 1:
        yield group
        return
    start = place = number = first = 0
    for index, line in enumerate(lines):
        last, match = number, NUMBER.match(line)
        number = int(match["number"]) if match and match["number"] else number  # of the item that it belongs to
        if index and _begins(lines, index, first, width, last):
            yield Block(kind="paragraph", body=group.body.part(start, place - 1))
            start, first = place, index
        place += len(line) + 1
    yield Block(kind="paragraph", body=group.body.part(start, len(group.text)))


def _begins(lines: list[str], index: int, first: int, width: int, last: int) -> bool:
    """Whether a block begins at a line of a group.

    Args:
        lines: lines of the group.
        index: index of the line, not the first.
        first: index of the line at which the last block began.
        width: maximum length of a line that is part of a paragraph.
        last: number of the last item.
    """
    before, line = lines[index - 1], lines[index]
    if max(len(before), len(line)) > width:
        return True
    if first == index - 1:  # the line above may be a title
        titled = is_title(before) or _PAGE.fullmatch(before) or (_SECTION.match(before) and _ends_early(lines, index))
        set_in = len(line) - len(line.lstrip()) > len(before) - len(before.lstrip()) + 2
        if set_in and _is_label_above(lines, index):
            return True
        if titled or (is_shouted(before) and not is_shouted(line) and (_apart(before) or set_in)):
            return True
    if _RULE.fullmatch(before) and not _RULE.fullmatch(line):
        return True  # the line above was underlined
    if is_title(line) and (line.lstrip()[0] in "#=" or _has_ended(lines, index)):
        return True
    if is_shouted(line) and not is_shouted(before) and _apart(line):
        return True
    return bool(BULLET.match(line)) or _is_numbered(lines, index, last) or _is_set_in(lines, index, first)


def _is_label_above(lines: list[str], index: int) -> bool:
    """Whether a short line is further left than all following lines, as names of sections and terms are."""
    before = lines[index - 1]
    margin = len(before) - len(before.lstrip())
    short = len(before.strip()) <= LABEL and not ENDED.search(before.rstrip()) and before.rstrip()[-1:] not in ",;-"
    return (
        short
        and not BULLET.match(before)
        and not NUMBER.match(before)
        and not STATEMENT.match(before)
        and all(len(line) - len(line.lstrip()) > margin + 3 for line in lines[index:] if line.strip())
    )


def _has_ended(lines: list[str], index: int) -> bool:
    """Whether the paragraph above a line is complete, by its end mark or its length."""
    before = lines[index - 1].rstrip()
    return bool(ENDED.search(before)) or len(before) < EARLY * max(map(len, lines[max(0, index - NEAR) : index + NEAR]))


def _is_set_in(lines: list[str], index: int, first: int) -> bool:
    """Whether an indented line begins a paragraph, as in books without blank lines."""
    before, line = lines[index - 1], lines[index]
    if STATEMENT.match(before):
        return False
    margins = [len(one) - len(one.lstrip()) for one in (before, line)]
    if not margins[0] + 1 < margins[1] < margins[0] + 9 or BULLET.match(lines[first]) or NUMBER.match(lines[first]):
        return False
    return bool(ENDED.search(before.rstrip())) and not line.lstrip()[0].islower()


def _ends_early(lines: list[str], index: int) -> bool:
    """Whether the line above ends long before the width of its group, without an end mark, and a sentence begins.

    This is so for a title above its paragraph, but not for a wrapped line, in which the next word would have fitted.
    """
    before, line = lines[index - 1].rstrip(), lines[index].lstrip()
    width = max(map(len, lines[max(0, index - NEAR) : index + NEAR]))
    return len(before) < EARLY * width and line[:1].isupper() and not ENDED.search(before)


def _apart(title: str) -> bool:
    """Whether a line of capitals is a title instead of words of a sentence."""
    title = title.strip()
    return not title.endswith((",", ";", "-", "—")) and (" " in title or len(title) > 7)


def _is_numbered(lines: list[str], index: int, last: int) -> bool:
    """Whether a line begins a numbered item, not by chance: "see Table / 3. The results"."""
    match = NUMBER.match(lines[index])
    if not match:
        return False
    if ENDED.search(lines[index - 1].rstrip()):
        return True
    if match["number"]:
        return int(match["number"]) in {1, last + 1}
    return bool(NUMBER.match(lines[index - 1])) or match["letter"] in {"a", "i", "A"}


STAMPED, MACHINE, ALL_STAMPED, FEWEST_LINES, FEWEST_STAMPED, SAMPLED = 0.5, 0.5, 0.9, 8, 4, 2_000
"""A log: minimum share of lines that begin with a time or a level, of which a minimum share is machine-written, or
nearly all begin so; a minimum number of lines, or fewer if all begin so; and the maximum size of the sample."""
_STAMP = re.compile(
    r"\W{0,3}(?:[a-z][\w.-]{1,40}\s)?\W{0,3}(?:\d{4}[-/.]\d\d[-/.]\d\d[T _,]\s?\d\d:\d\d:\d\d"
    r"|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d|\d\d:\d\d:\d\d[.,]\d{3}"
    r"|\s*\d+\.\d{4,}\]|\d{10,}(?:\.\d+)?\s|(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL|SEVERE)\b"
    r"|[DIWEF]\d{4}\s\d\d:|(?:\d{1,3}\.){3}\d{1,3}\s\S+\s\S+\s\[)"
)
_MACHINE = re.compile(
    r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL|SEVERE)\b|\w\[\d+\]:|\bkernel:|\"\s\d{3}\s[\d-]"
    r"|\b0x[\da-f]{4,}|\[\s*\d+\.\d{4,}\]|\b\w+=\S|\s/[\w.-]+/[\w.-]+"
)


def is_log(text: str) -> bool:
    """Whether a text is a program's log: most lines begin with a time or a level, and are machine-written. Chats, whose
    turns begin with times too, are not."""
    lines = [line for line in text[: 200 * SAMPLED].split("\n", SAMPLED)[:SAMPLED] if line.strip()]
    stamped = [line for line in lines if _STAMP.match(line)]
    fewest = FEWEST_STAMPED if len(stamped) == len(lines) else FEWEST_LINES
    if len(lines) < fewest or len(stamped) < STAMPED * len(lines):
        return False
    machine = sum(bool(_MACHINE.search(line)) for line in stamped)
    named = sum(bool(_CHAT.match(line)) for line in stamped)
    if machine >= MACHINE * len(stamped):
        return True
    return len(stamped) >= ALL_STAMPED * len(lines) and 10 * named < len(stamped)


_CHAT = re.compile(r"[^A-Za-z<]*(?:<[^>\s]+>\s|[A-Z][\w.’'-]*(?: [A-Z][\w.’'-]*){0,3}:\s)")


def lines_of_log(text: str) -> list[Block]:
    """Returns each line of a log that is not blank as a paragraph."""
    return [
        Block(kind="paragraph", body=Traced.whole(line[0].strip(), line.start() + len(line[0]) - len(line[0].lstrip())))
        for line in _LINE.finditer(text)
        if line[0].strip()
    ]


def is_rule(text: str) -> bool:
    """Whether a text is a line of dashes, stars or similar."""
    return bool(_RULE.fullmatch(text))
