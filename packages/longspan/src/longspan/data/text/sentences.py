"""Sentences and words of a text, with their positions, for many scripts and in linear time.

Segmentation rules (end marks, abbreviations, quotations of some 250 languages) come from the `sentencex` library. Six
rules are added for long and untidy documents:

1. Blank lines, form feeds, list items and Markdown headings always end a sentence. A single line break does so if a
   neighbouring line is longer than hard wrapping ever makes it (`WRAPPED_LINE` characters): then lines are paragraphs.
2. The library gets blocks of at most `BLOCK` characters: some of its quotation rules take quadratic time, and one
   unbalanced quotation mark must not swallow the rest of a book.
3. A sentence longer than `LONGEST` characters is segmented again, ignoring quotation marks; pieces that are still
longer
   are cut at the last clause mark, otherwise at the last space, otherwise at `LONGEST` characters. So tables, logs and
   texts without end marks become pieces of bounded length.
4. A piece without letters and digits (a stray closing quotation mark) belongs to the previous sentence, a list number
   alone ("2.") to the next.
5. Without a space after it, an end mark of the Latin kind ends no sentence: `zoneinfo.ZoneInfo`, `branch.<name>.merge`,
   `setup.Cfg`, 3.X, https://example.org/?Name are words. An ellipsis in quotation marks or brackets ends none before a
   small letter, and a line that ends in a colon is a sentence if the next line is indented, as code is. Between two
   sentences of prose a missing space is inferred.
6. Abbreviations, initials, ordinal numbers and quotations that the library lacks: see `abbreviations`.

Words are the unit of metrics, labels and summary lengths.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from longspan.data.text.abbreviations import (
    abbreviations_from,
    abbreviations_of,
    goes_on,
    goes_on_small,
    goes_on_unspaced,
    has_table,
    unseen_ends,
)
from longspan.errors import InputError
from longspan.settings import show

BLOCK = 10_000
LONGEST = 600
WRAPPED_LINE = 160
TICKS = 200
"""With this number of backticks in a block, they are not treated as quotation marks, because the library would try
every pair."""

_LINE = re.compile(r"[^\n\f\u2029]*[\n\f\u2029]?")
_ITEM = re.compile(r"\s*(?:[-*•‣◦▪–●■○·]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+\S|#{1,6}\s|\|")
_ITEM_MARK = re.compile(r"\s*[-*•‣◦▪–●■○·(]+(?=[\s\d])")
_NUMBER = re.compile(
    r"\(?(?:\d{1,3}|[A-Za-z])[.)]"
    r"|(?:Fig|Figs|Figure|Table|Tab|Box|Scheme|Plate|Theorem|Lemma|Definition|Corollary|Proposition|Remark|Example"
    r"|Abb|Abbildung|Tabelle|Satz|Tableau|Figura|Tabla|Tabella|Tabel|Figuur)\.?\s\d{1,3}(?:\.\d{1,3})*[a-z]?\."
)
"""A number or a label that belongs to the following sentence: "2.", "Fig. 1."."""
_QUOTES = str.maketrans(dict.fromkeys('"“”„‟«»‹›「」『』《》()[]{}（）【】', " "))
_INTRODUCES = re.compile(r"\w\W?:\s*$")
_CLOSING = "\"'”’»›)]}*_`"
SIDE = 60
"""Characters on each side of a full stop that determine whether a sentence ends there."""
_GLUED = re.compile(
    r"[.!?](?=(?P<next>[A-Z][a-z]+|A|I)(?:,?\s+[a-z0-9]|\s+[A-Z][a-z]))(?:(?<=[a-z]{3}[.!?])|(?<=\d{4}[.!?]))"
)
_BRACKETED = re.compile(
    r"\((?:(?<=[.!?]\s\()|(?<=^\())[A-Z][^()\n]*[.!?]\)\s+(?=[A-Z])|（(?:(?<=[。！？]（)|(?<=^（))[^（）]*[。！？]）"
)
_RAISED = re.compile(r"[\u00b9\u00b2\u00b3\u2070\u2074-\u2079†‡]{1,3}\s+(?=[(\"'“‘«]?[A-Z])")
_ENDED = re.compile(r"[^\W\d_]{2}[.!?][\"'”’»)]{0,2}$")
_UNDECIDED = re.compile(r"[\"'“‘`(\[](?:\.{2,}|…)[\"'”’`)\]]\s+$")
_CLAUSE = re.compile(r"[;:,](?=\s)|[—、，；：،؛]")
_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("zh", re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")),
    ("ko", re.compile(r"[\u1100-\u11ff\uac00-\ud7af]")),
    ("ar", re.compile(r"[\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff]")),
    ("ru", re.compile(r"[\u0400-\u052f]")),
    ("el", re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("bn", re.compile(r"[\u0980-\u09ff]")),
    ("ta", re.compile(r"[\u0b80-\u0bff]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("my", re.compile(r"[\u1000-\u109f]")),
    ("ka", re.compile(r"[\u10a0-\u10ff]")),
    ("am", re.compile(r"[\u1200-\u139f]")),
    ("km", re.compile(r"[\u1780-\u17ff]")),
    ("hy", re.compile(r"[\u0530-\u058f]")),
    ("en", re.compile(r"[A-Za-z\u00c0-\u024f]")),
)
# Chinese, Japanese and Yi characters, and the South-East Asian scripts that are written without spaces.
_UNSPACED = (
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48f\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e00-\u0e3a\u0e40-\u0e5b\u0e80-\u0edf\u1000-\u109f\u1780-\u17ff"
)

_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_HAN = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
HAN_OF_A_WORD, UNSPACED_OF_A_WORD = 1.6, 3.5
"""Characters that express one word: Chinese characters; kana and the characters of South-East Asian scripts, each with
its combining marks.

Measured on translations. Rust by Example, 600 paragraphs: 1.58 Chinese characters for each English word, 2.62 Japanese
ones, 24 % of which are Chinese characters, so 3.3 kana. Questions of Debian's installer: 3.9 of Thai, 3.6 of Khmer.
ICU's dictionaries divide the same Chinese text into words of 1.61 characters.
"""
_ASCII_WORD = re.compile(r"[a-z0-9]+")

_FUNCTION_WORDS = """
a about above after again against all also am an and any anybody anyone anything are as at be because been
before being below between both but by can could d did do does doing done down during each either else ever
every few for from further give had has have having he her here hers herself him himself his how however i if in
into is it its itself just let like ll m many may me might more most much must my myself no nor not of off on
once only or other ought our ours ourselves out over own please re s same say says shall she should so some
somebody someone something such t tell than that the their theirs them themselves then there these they this
those through thus to too under until up upon us ve very was we were what when where whether which while who
whom whose why will with would you your yours yourself yourselves
"""
STEM = 6
"""Letters of a word that distinguish it from others."""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English words without content."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: `text == document[start:end]`, without surrounding white space."""

    text: str
    start: int
    end: int


class _Rules(NamedTuple):
    """Options of the segmentation."""

    language: str
    abbreviations: frozenset[str]


def split_sentences(text: str, language: str | None = None, abbreviations: Iterable[str] = ()) -> list[Sentence]:
    """Segments a text into sentences, in order and without overlap; together they contain every character except white
    space.

    Args:
        text: any text; an empty or blank one has no sentences.
        language: an ISO 639-1 code ("en", "zh", "ar"); None guesses one from the most frequent script, which suffices
            for the end marks but selects the abbreviations of one language per script (Latin letters: English).
        abbreviations: further words that never end a sentence, such as "Anm."; case and a final full stop are ignored.

    Raises:
        InputError: `language` is not a language code, an abbreviation is not one word, or the 'documents' extra is not
            installed.
    """
    if language is None:
        language = guess_language(text)
    else:
        check_language(language)
    rules = _Rules(language, abbreviations_from(abbreviations))
    spans: list[tuple[int, int]] = []
    for first, last in _paragraphs(text):
        inside = len(spans)
        for start, end in _cut_paragraph(text, first, last, rules):
            piece = text[start:end].rstrip()
            if not piece:
                continue
            start, end = start + len(piece) - len(piece.lstrip()), start + len(piece)
            joins = len(spans) > inside and end - spans[-1][0] <= LONGEST
            if joins and (not any(map(str.isalnum, text[start:end])) or _NUMBER.fullmatch(text, *spans[-1])):
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
    return [Sentence(text[start:end], start, end) for start, end in spans]


def whole_sentence(text: str) -> Sentence:
    """Returns a text as a single sentence, such as a line of a log."""
    return Sentence(text, 0, len(text))


def check_language(language: str) -> None:
    """Raises `InputError` unless `language` is a language code."""
    if not isinstance(language, str) or not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", language):
        raise InputError(f"language={show(language)} is not a language code; give one such as 'en', 'zh' or 'ar'")


def guess_language(text: str) -> str:
    """Returns the language code of the most frequent script in samples of the text; "en" if no letter is known.

    Kana among Chinese characters mean Japanese.
    """
    step = max(1, len(text) // 8)
    sample = "".join(text[start : start + 500] for start in range(0, len(text), step)) if len(text) > 4000 else text
    counts = Counter({code: len(pattern.findall(sample)) for code, pattern in _SCRIPTS})
    counts["zh"] += counts["ja"]
    if counts["ja"] * 20 >= counts["zh"]:
        counts["ja"], counts["zh"] = counts["zh"], counts["ja"]
    # Chinese, Japanese and Korean words have about two characters, alphabetic ones about five.
    for code in ("zh", "ja", "ko"):
        counts[code] *= 2
    code, count = counts.most_common(1)[0]
    return code if count else "en"


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Yields spans at whose borders sentences must end; together they cover the text."""
    start = 0
    before: tuple[int, bool, bool] | None = None  # length, is blank, is a heading
    above = ""
    for match in _LINE.finditer(text):
        line = match.group()
        if not line:
            break
        now = (len(line), not line.strip(), line.startswith("#"))
        if before is not None:
            hard = before[0] > WRAPPED_LINE or now[0] > WRAPPED_LINE
            opens = _INTRODUCES.search(above) and _margin(line) > _margin(above) + 1
            broken = text[match.start() - 1] != "\n"
            if hard or before[1] or now[1] or before[2] or opens or broken or _ITEM.match(line):
                yield start, match.start()
                start = match.start()
        before, above = now, line
    if start < len(text):
        yield start, len(text)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def _cut_paragraph(text: str, start: int, end: int, rules: _Rules) -> Iterator[tuple[int, int]]:
    """Segments one paragraph with the library, then cuts what is too long."""
    for cuts in _cut_blocks(text, start, end, rules, quotes=True):
        if cuts[-1] - cuts[0] <= LONGEST:
            yield from pairwise(cuts)
            continue
        # The whole is measured instead of the parts: otherwise an end missed by the library would leave the others
        # inside unclosed quotation marks or brackets.
        for inner_cuts in _cut_blocks(text, cuts[0], cuts[-1], rules, quotes=False):
            for first, last in pairwise(inner_cuts):
                yield from _cut_long(text, first, last)


def _cut_blocks(text: str, start: int, end: int, rules: _Rules, quotes: bool) -> Iterator[list[int]]:
    """Segments at most `BLOCK` characters at a time; yields each piece as ascending positions: its beginning, ends
    missed by the library, and its end.

    The last sentence of a block may be incomplete, so the next block begins with it again, unless it is the only one.
    """
    while start < end:
        stop = min(end, start + BLOCK)
        ends, unseen = _boundaries(text[start:stop], rules, quotes)
        cuts, inside = [start + cut for cut in ends], [start + cut for cut in unseen]
        if stop < end and len(cuts) > 1:
            cuts.pop()
        elif stop < end:
            cuts = [_last_space(text, start, stop)]
        for cut in cuts:
            yield [start, *(place for place in inside if start < place < cut), cut]
            start = cut


def _boundaries(block: str, rules: _Rules, quotes: bool) -> tuple[list[int], list[int]]:
    """Returns the ascending sentence ends of the block from the library, the last one being the block's length, and
    those that it misses."""
    import sentencex

    shown = block if quotes else block.translate(_QUOTES)
    if shown.count("`") > TICKS:
        shown = shown.replace("`", " ")
    if mark := _ITEM_MARK.match(shown):  # after some marks, the library treats everything as one sentence
        shown = " " * mark.end() + shown[mark.end() :]
    # Only the ends are used: some results of the library leave gaps between sentences.
    boundaries = sentencex.get_sentence_boundaries(rules.language, shown)  # pyright: ignore[reportAttributeAccessIssue]
    ends = {int(sentence["end_index"]) for sentence in boundaries}
    ends = {end for end in ends if 0 < end < len(block) and _is_end(block, end, rules)}
    small = goes_on_small(block, rules.language)
    ends = {end for end in ends if not small or _next_word(block, end) not in small}
    unseen = [end for end in _unseen_ends(block, rules.language) if not (quotes and _in_quotation(block, ends, end))]
    return [*sorted(ends), len(block)], sorted(set(unseen) - ends)


def _next_word(block: str, end: int) -> int:
    """Returns the position of the first character after the white space around a position of a block."""
    while end < len(block) and block[end].isspace():
        end += 1
    return end


def _in_quotation(block: str, ends: set[int], place: int) -> bool:
    """Whether a quotation is open at a position of a block, counted from the last end before it."""
    inside = block[max((end for end in ends if end <= place), default=0) : place]
    return inside.count("“") + inside.count("„") > inside.count("”") or inside.count('"') % 2 == 1


def _unseen_ends(block: str, language: str) -> Iterator[int]:
    """Yields ends missed by the library: after apparent initials or abbreviations, after a bracketed sentence or a
    superscript mark, and where the space between two sentences of prose is missing."""
    yield from unseen_ends(block, language)
    for match in () if block.isascii() else _RAISED.finditer(block):
        if _ENDED.search(block, max(0, match.start() - 5), match.start()):
            yield match.end()
    yield from (match.end() for match in _BRACKETED.finditer(block) if match.end() < len(block))
    if has_table(language):
        glued = [match for match in _GLUED.finditer(block) if len(block[: match.start()].split(maxsplit=3)) > 3]
        # "module.Class" looks the same, so one of them must begin with a word that begins sentences.
        starters = abbreviations_of(language).starters
        if any(match["next"].lower() in starters for match in glued):
            # A question mark without a space may replace a lost dash: "French?English".
            sure = (match for match in glued if match[0] != "?" or match["next"].lower() in starters)
            yield from (match.end() for match in sure)


def _is_end(block: str, end: int, rules: _Rules) -> bool:
    """Whether a sentence ends between two characters of a block: at white space, or at an end mark that needs none.

    A quoted ellipsis ("use '...' here") ends none before a small letter.
    """
    before, after = block[max(0, end - SIDE) : end], block[end : end + SIDE]
    if before[-1].isspace() or after[0].isspace():
        before, after = before.rstrip(), after.lstrip()
        if after[:1].islower() and _UNDECIDED.search(before[-12:] + " "):
            return False
        return not goes_on(before, after, rules.language, rules.abbreviations)
    if _UNSPACED_CHARACTER.match(after):
        return not goes_on_unspaced(before, after)
    mark = before.rstrip(_CLOSING)[-1:]
    return not (mark.isascii() or mark == "…" or (mark == "．" and after[0].isdigit()))


def _cut_long(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts into pieces of at most `LONGEST` characters, at a clause mark if the second half of the piece has one."""
    while end - start > LONGEST:
        middle = start + LONGEST // 2
        marks = [match.end() for match in _CLAUSE.finditer(text, middle, start + LONGEST)]
        cut = marks[-1] if marks else _last_space(text, start, start + LONGEST)
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _last_space(text: str, start: int, stop: int) -> int:
    """Returns the position after the last white space before `stop`, or `stop` if the span is one word."""
    for index in range(stop - 1, start, -1):
        if text[index].isspace():
            return index + 1
    return stop


def split_words(text: str) -> list[str]:
    """Returns the lower-case words in order, NFKC-normalised; characters of scripts without spaces are single words."""
    if text.isascii():  # the same words, ten times faster
        return _ASCII_WORD.findall(text.lower())
    # The Arabic tatweel only stretches a word on paper.
    return _pattern().findall(unicodedata.normalize("NFKC", text).lower().replace("\u0640", ""))


def placed_words(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields start and end of each word of a text, in characters, and the word, lower-case and NFKC-normalised;
    characters of scripts without spaces are single words."""
    for match in _pattern().finditer(text):
        yield match.start(), match.end(), unicodedata.normalize("NFKC", match[0]).lower()


def count_words(text: str) -> int:
    """Counts the words of a text, separated by white space; in scripts without spaces, by their characters."""
    pieces = text.split()
    if text.isascii() or _UNSPACED_CHARACTER.search(text) is None:
        return len(pieces)
    han = len(_HAN.findall(text))
    others = len(_UNSPACED_CHARACTER.findall(text)) - len(_unspaced_marks().findall(text)) - han
    mixed = [_UNSPACED_CHARACTER.sub(" ", piece) for piece in pieces]
    spaced = sum(
        1 if rest == piece else sum(any(map(str.isalnum, part)) for part in rest.split())
        for piece, rest in zip(pieces, mixed, strict=True)
    )
    return math.ceil(spaced + _words_of(han, others))


def count_of(words: Sequence[str]) -> int:
    """Counts the words of a text by its `split_words`; characters of scripts without spaces are parts of words."""
    return math.ceil(length_in_words(words))


def length_in_words(words: Sequence[str]) -> float:
    """Returns the number of words that `split_words` of a text amount to, before it is rounded."""
    unspaced = [word for word in words if is_unspaced(word)]
    han = sum(_HAN.match(word) is not None for word in unspaced)
    return len(words) - len(unspaced) + _words_of(han, len(unspaced) - han)


def _words_of(han: int, others: int) -> float:
    return han / HAN_OF_A_WORD + others / UNSPACED_OF_A_WORD


def contents_of(text: str) -> list[str]:
    """Returns the content words of a text: without English function words and numbers, truncated to `STEM` letters.

    Words with a common prefix are treated as forms of one word: as good as a stemmer for counting, for every language,
    and without a dependency. Characters of scripts without spaces are combined into pairs of neighbours.
    """
    contents: list[str] = []
    before = ""
    for word in split_words(text):
        if is_unspaced(word):
            if before:
                contents.append(before + word)
            before = word
            continue
        before = ""
        if len(word) > 1 and not word.isdigit() and word not in FUNCTION_WORDS:
            contents.append(word[:STEM])
    return contents


def holders_of(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """Counts for each word the texts, passed as their words, that contain it; words are in the order of first
    occurrence."""
    return Counter(word for words in texts for word in dict.fromkeys(words))


def is_unspaced(word: str) -> bool:
    """Whether a word of `split_words` is a character of a script without spaces."""
    return not word.isascii() and _UNSPACED_CHARACTER.match(word) is not None


def combining_marks() -> list[int]:
    """Returns the code points of all combining marks. Only the planes of letters and of tags are searched, because
    others have none, and searching all takes a quarter of a second."""
    planes = (*range(0x300, 0x20000), *range(0xE0000, 0xE1000))
    return [code for code in planes if unicodedata.category(chr(code))[0] == "M"]


@cache
def _unspaced_marks() -> re.Pattern[str]:
    """Matches a combining mark among the characters of unspaced scripts."""
    marks = filter(_UNSPACED_CHARACTER.match, map(chr, combining_marks()))
    return re.compile(f"[{''.join(marks)}]")


@cache
def _pattern() -> re.Pattern[str]:
    r"""Matches one character of an unspaced script, or a run of others, each with its combining marks, which `\\w`
    lacks."""
    marks = "".join(f"\\U{code:08x}" for code in combining_marks())
    return re.compile(rf"[{_UNSPACED}][{marks}]*|(?:(?![{_UNSPACED}])[^\W_][{marks}\u200c\u200d]*)+")
