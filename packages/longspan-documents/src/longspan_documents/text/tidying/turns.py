"""Turns of speakers in dialogues: transcripts, plays, interviews, chats.

A line begins a turn if it begins with a name in one of the forms below. Whether the document is a dialogue is decided
by all of them: at least two names are repeated, and their turns are most of the document.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from longspan.data.text.sentences import count_words
from longspan_documents.text.blocks import Block
from longspan_documents.text.plain_text import is_shouted, is_title

SHARE = 0.5
"""Minimum share of a dialogue's characters that belong to turns."""
CLOSED = 0.8
"""From this share on, a paragraph between two turns belongs to the previous speaker."""
LONGEST, BETWEEN = 2_000, 6
"""Maximum characters and blocks per turn, if names have their own lines."""
FEWEST, ALONE = 4, 6
"""Minimum turns of a dialogue; of one whose names have their own lines."""

LABELS = re.compile(
    r"notes?|examples?|warning|caution|tips?|hints?|important|sources?|figure|table|date|time|location|place|subject"
    r"|from|to|b?cc|sent|re|abstract|key ?words|summary|title|authors?|e-?mail|url|links?|see|version|licen[cs]e"
    r"|copyright|todo|fix(?:ed|es)?|feat(?:ure)?s?|added|changed|removed|deprecated|security|chore|docs|bugs?|test|refactor|style"
    r"|improvements?|info|error|debug|warn|fatal|arg(?:uments|s)|param(?:eter)?s|returns?|raises|yields|attributes|usage"
    r"|input|output|default|type|description|steps?|objectives?|results|methods|background|conclusions?|purpose|findings"
    r"|id|name|status|created|files?|comments?|format|reference|licen[cs]e-\w+|upstream-\w+|motivation|solution|problem|issue|p\.s\.?|n\.?b\.?|i\.e|e\.g|namely|https?|website|phone|tel"
    r"|fax|address|translation|definition|proof|theorem|lemma|remark|pros|cons|advantages|disadvantages|ingredients"
    r"|directions|instructions|requirements",
    re.IGNORECASE,
)
"""Labels before a colon that are not speakers."""

_TIME = r"[\[(]?\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d{1,3})?[\])]?"
_NAME = r"[^\W\d_](?:[^\n:<>{}\[\]()|=!?;]|:(?=\S)){0,47}?"
_ROLE = r"(?:[^\S\n]*+[\[(][^\])\n]{1,60}[\])])?"
_NAMED = re.compile(
    rf"^[^\S\n]*+(?:>>+[^\S\n]*+|[-–—][^\S\n]+)?\*{{0,2}}_?(?:{_TIME}[^\S\n]*+[-–—|]?[^\S\n]*+)?\*{{0,2}}"
    rf"(?P<name>{_NAME})(?P<role>{_ROLE})[^\S\n]*+(?:{_TIME}[^\S\n]*+)?(?:\*\*|_)?[^\S\n]*+[:：](?:\*\*|_)?"
    r"(?:[^\S\n]+(?=\S)|[^\S\n]*+(?P<line>$))",
    re.MULTILINE,
)
_OTHERS = re.compile(
    rf"^[^\S\n]*+(?:{_TIME}[^\S\n]*+)?<(?P<nick>[^<>\s]{{1,30}})>[^\S\n]+(?=\S)"
    r"|^[^\S\n]*+(?P<member>(?:Mr|Mrs|Ms|Dr|Senator|The|Chairman|Chairwoman|Representative)\.? "
    r"[A-Z][A-Z’'-]+(?: [A-Z][A-Z.’'-]*| of [A-Z]\w+)*)\.[^\S\n]+(?=\S)"
    rf"|^[^\S\n]*+(?P<timed>[^\W\d_][^\n:<>]{{0,47}}?)[^\S\n]+{_TIME}[^\S\n]*+$"
    r"|^[^\S\n]*+(?P<titled>[^\W\d_][\w.’' ]{1,40}?)[^\S\n]+(?:--|—|–)[^\S\n]+[A-Z][^\n.!?]{1,80}$"
    r"|^[^\S\n]*+(?P<actor>[A-Z][A-Z ’'-]{1,30})\.[^\S\n]*+$",
    re.MULTILINE,
)
_BARE = re.compile(r"[A-Z][\w.’'-]*(?: [A-Z][\w.’'-]*){0,3}")
_NOT_A_NAME = re.compile(r".*[.](?!$)(?<!\bMr.)(?<!\bMrs.)(?<!\bMs.)(?<!\bDr.)(?<!\bSt.)(?<!\b[A-Z].)(?<!\bProf.)\s")
_SMALL = re.compile(r"an?|and|of|the|in|on|for|to|is|are|was|were|with|that|this|it|by|as|at|or|from")
_TAG = re.compile(
    r"\A[^\S\n]*/me[^\S\n]+"
    r"|(?<![^\S\n])[^\S\n]*+(?:\{[a-z][a-z_ -]{1,24}\}|[\[(](?:laughter|laughs|laughing|applause|crosstalk|inaudible"
    rf"|unintelligible|pause|music|silence|coughs?|sighs?|chuckles|cheering|indiscernible)(?:[^\S\n]+{_TIME})?[\])])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The beginning of a turn in a block: its line at `start`, its words at `words`.

    `alone` if the name has its own line; `sure` if that line is a name by its form.
    """

    start: int
    words: int
    name: str
    alone: bool = False
    sure: bool = False


def with_turns(blocks: Sequence[Block]) -> list[Block]:
    """Returns the turns of a dialogue as separate blocks, without the speaker's name in the words."""
    turns_by_block = [list(beginnings(block.text)) if block.kind in {"paragraph", "item"} else [] for block in blocks]
    turns_by_block = _with_bare_names(blocks, turns_by_block)
    speakers, share = _dialogue(blocks, turns_by_block)
    if not speakers:
        return list(blocks)
    return _with_speakers(
        blocks, [[turn for turn in turns if turn.name in speakers] for turns in turns_by_block], share
    )


def without_tags(blocks: Sequence[Block]) -> list[Block]:
    """Removes corpus tags ("{vocalsound}"), stage notes ("(laughter)") and the "/me" of chats from turns."""
    return [
        replace(block, body=block.body.edited((match.start(), match.end(), "") for match in _TAG.finditer(block.text)))
        if block.kind == "turn" and _TAG.search(block.text)
        else block
        for block in blocks
    ]


def beginnings(text: str) -> Iterator[Turn]:
    """Yields the lines of a text that begin with a name, whether or not it is a dialogue."""
    for match in _NAMED.finditer(text):
        name = match["name"].strip(" *_,-–—.")
        if _is_name(name) and (match["line"] is None or (_is_proper(name) and not _is_indented(text, match.end()))):
            yield Turn(match.start(), match.end(), name, match["line"] is not None)
    for match in _OTHERS.finditer(text):
        group = match.lastgroup or ""
        name = match[group].strip()
        if _is_name(name):
            alone, sure = group in {"timed", "titled", "actor"}, group in {"timed", "titled"}
            yield Turn(match.start(), match.end(), name, alone, sure)


def _with_bare_names(blocks: Sequence[Block], turns_by_block: list[list[Turn]]) -> list[list[Turn]]:
    """If names have their own lines with roles, also accepts names without a role."""
    if sum(turn.sure for turns in turns_by_block for turn in turns) < FEWEST:
        return turns_by_block
    lines = [block.text.strip() for block in blocks]
    bare = {line for line, count in Counter(lines).items() if count > 1 and _BARE.fullmatch(line)}
    return [
        [Turn(0, len(block.text), line, alone=True, sure=True)] if line in bare and not turns else turns
        for block, line, turns in zip(blocks, lines, turns_by_block, strict=True)
    ]


def _is_indented(text: str, end: int) -> bool:
    """Whether the line below a name is indented, as in code and lists of terms, unlike speech."""
    start = text.rfind("\n", 0, end) + 1
    above, below = text[start:end], text[end + 1 :].split("\n", 1)[0]
    return len(below) - len(below.lstrip()) > len(above) - len(above.lstrip()) + 1


def _is_name(name: str) -> bool:
    words = [word for word in name.split() if word not in {"and", "&"}]
    if not words or len(words) > 6 or LABELS.fullmatch(name) or _NOT_A_NAME.match(f"{name} "):
        return False
    return len(words) == 1 or (not _SMALL.fullmatch(words[-1]) and sum(word.islower() for word in words) < 2)


def _dialogue(blocks: Sequence[Block], turns_by_block: list[list[Turn]]) -> tuple[set[str], float]:
    """Returns the speakers of a dialogue and their share of it; no speakers if it is not one."""
    counts = Counter(turn.name for turns in turns_by_block for turn in turns)
    repeated = [[turn for turn in turns if counts[turn.name] > 1] for turns in turns_by_block]
    turns = [turn for some in repeated for turn in some]
    if len({turn.name for turn in turns}) < 2 or len(turns) < FEWEST:
        return set(), 0.0
    alone = sum(turn.alone for turn in turns)
    total = sum(len(block.text) for block in blocks if block.kind != "boilerplate") or 1
    if 2 * alone > len(turns):
        least = 1 if sum(turn.sure for turn in turns) > FEWEST else 2
        frequent = {name for name, count in counts.items() if count > least}
        enough = len(frequent) > 1 and alone >= (ALONE if least > 1 else FEWEST)
        dense = total < LONGEST * alone and len(blocks) < BETWEEN * alone
        first = next(index for index, some in enumerate(repeated) if some)
        late = sum(len(block.text) for block in blocks[:first]) > total / 2
        return (set(_once_too(counts, turns_by_block, 1.0)) if enough and dense and not late else set()), 1.0
    characters = _spoken_characters(blocks, repeated)
    spoken = sum(_is_speech(block.text, turn) for block, some in zip(blocks, repeated, strict=True) for turn in some)
    if characters < SHARE * total or 2 * spoken < len(turns):
        return set(), 0.0
    return set(_once_too(counts, turns_by_block, characters / total)), characters / total


def _spoken_characters(blocks: Sequence[Block], turns_by_block: list[list[Turn]]) -> int:
    """Counts the characters from the first turn of a block on, and of following blocks without a blank line."""
    characters, speaking = 0, False
    for index, (block, turns) in enumerate(zip(blocks, turns_by_block, strict=True)):
        speaking = bool(turns) or (speaking and _is_close(blocks, index))
        characters += (len(block.text) - turns[0].start if turns else len(block.text)) if speaking else 0
    return characters


def _is_close(blocks: Sequence[Block], index: int) -> bool:
    return index > 0 and blocks[index].body.start <= blocks[index - 1].body.end + 1


def _once_too(counts: Counter[str], turns_by_block: list[list[Turn]], share: float) -> Iterator[str]:
    """Yields the repeated names; if nearly everything is dialogue, also those that speak once, like a guest.

    If all names of a chat are lower-case, that of a guest may be too.
    """
    small = all(name.islower() for name, count in counts.items() if count > 1)
    for turns in turns_by_block:
        for turn in turns:
            proper = _is_proper(turn.name) or (small and turn.name.islower() and len(turn.name.split()) == 1)
            named = proper and (not turn.alone or turn.sure or turn.start == 0)
            if counts[turn.name] > 1 or (share > CLOSED and named):
                yield turn.name


def _is_proper(name: str) -> bool:
    return all(word[0].isupper() or word == "and" for word in name.split())


def _is_speech(text: str, turn: Turn) -> bool:
    """Whether the words after a name are speech instead of the value of a field."""
    line = text[turn.words : turn.words + 200].split("\n")[0].rstrip()
    return count_words(line) >= 4 or line.endswith((".", "?", "!", "…", "}", ")", "]", "-"))


def _with_speakers(blocks: Sequence[Block], turns_by_block: list[list[Turn]], share: float) -> list[Block]:
    pieces: list[Block] = []
    last = max((index for index, turns in enumerate(turns_by_block) if turns), default=-1)
    speaker, goes_on, close = None, False, False
    for index, (block, turns) in enumerate(zip(blocks, turns_by_block, strict=True)):
        turns = sorted(turns, key=lambda turn: turn.start)
        close = close and _is_close(blocks, index)
        before = replace(block, body=block.body.part(0, turns[0].start)) if turns else block
        if before.text.strip():
            said = speaker and (goes_on or close) and block.kind in {"paragraph", "item"} and _is_said(before.text)
            pieces.append(replace(before, kind="turn", speaker=speaker, level=0) if said else before)
        for turn, end in zip(turns, [*(turn.start for turn in turns[1:]), len(block.text)], strict=False):
            speaker = turn.name
            if block.text[turn.words : end].strip():
                pieces.append(Block(kind="turn", body=block.body.part(turn.words, end), speaker=speaker))
        if turns:
            close, goes_on = True, turns[-1].alone or (share > CLOSED and index < last)
    return pieces


def _is_said(text: str) -> bool:
    """Whether a paragraph below a turn continues it, instead of being a heading or a stage direction."""
    line = text.strip()
    noted = line[:1] in "([" and line[-1:] in ")]"
    return not (noted or is_title(line) or (is_shouted(line) and "\n" not in line))
