"""Conversations in the formats of chat programs: speakers are known exactly, and times are not words.

`FORMS` is the table of these formats: one or two lines that begin a turn, by a regular expression with the group
`name`. A document has a format if enough of its lines match; then every turn is known, including those of people who
speak once. Other documents are left to `longspan_documents.text.tidying.turns`, which guesses.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from longspan_documents.text.blocks import Block
from longspan_documents.text.tidying.turns import LABELS

FEWEST, SAMPLED = 3, 2_000
"""Minimum turns of a conversation; number of lines used for detection."""

_DATE = (
    r"(?:\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{1,2}[-. ][A-Z][a-z]{2,8}[-. ]\d{2,4}|[A-Z][a-z]{2,8} \d{1,2},? \d{4}"
    r"|(?:Today|Yesterday|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)(?: at)?)"
)
_TIME = r"\d{1,2}[:.]\d{2}(?:[:.]\d{2})?(?:[.,]\d{1,3})?(?:\s?[AaPp]\.?\s?[Mm]\.?)?"
_WHEN = rf"(?:{_DATE},?\s(?:at\s)?)?{_TIME}"
_LONG = rf"{_DATE},?\s(?:at\s)?{_TIME}"
_NAME = r"(?P<name>[^\s:\[\]<>][^\n:\[\]<>]{0,59}?)"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?(?:\.\d{1,3})?"


@dataclass(frozen=True, kw_only=True)
class Form:
    """The format of turns in one program.

    Attributes:
        program: its name; several formats of one program may be mixed in a document.
        example: two example turns.
        start: the beginning of a turn at the beginning of a line, with a group `name`, or without one for unnamed
            turns.
        notice: a system line without a speaker: joins and leaves, date separators.
        guest: a further beginning of turns, used if the others have shown that the document has this format.
        share: minimum share of the lines, without blank ones, that begin turns.
    """

    program: str
    example: str
    start: str
    notice: str | None = None
    guest: str | None = None
    share: float = 0.2

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Pattern for the beginning of a turn."""
        return re.compile(rf"^[^\S\n]*\u200e?(?:{self.start})", re.MULTILINE)

    @cached_property
    def guests(self) -> re.Pattern[str] | None:
        """Pattern for the further beginnings of turns."""
        return None if self.guest is None else re.compile(rf"^[^\S\n]*(?:{self.guest})", re.MULTILINE)

    @cached_property
    def notices(self) -> re.Pattern[str] | None:
        """Pattern of system lines without a speaker."""
        return None if self.notice is None else re.compile(rf"^[^\S\n]*\u200e?(?:{self.notice})[^\n]*$", re.MULTILINE)


_MOVES = r"\S+ (?:\([^)\n]{0,80}\) )?(?:has )?(?:joined|left|quit|parted)\b"

FORMS: tuple[Form, ...] = (
    Form(
        program="WhatsApp, Android",
        example="03/05/2021, 10:00 - Ada: Good.\n03/05/2021, 10:01 - Bo: Yes.",
        start=rf"{_LONG}\s[-–]\s{_NAME}:\s",
        notice=rf"{_LONG}\s[-–]\s(?![^:\n]{{1,60}}:\s)",
    ),
    Form(
        program="WhatsApp, iOS",
        example="[03.05.21, 10:00:12] Ada: Good.\n[03.05.21, 10:01:12] Bo: Yes.",
        start=rf"\[{_LONG}\]\s{_NAME}:\s",
        notice=rf"\[{_LONG}\]\s(?![^:\n]{{1,60}}:\s)",
    ),
    Form(
        program="WhatsApp, older",
        example="03.05.21 10:00:12: Ada: Good.\n03.05.21 10:01:12: Bo: Yes.",
        start=rf"{_LONG}:\s{_NAME}:\s",
        notice=rf"{_LONG}:\s(?![^:\n]{{1,60}}:\s)",
    ),
    Form(
        program="Zoom, chat",
        example="10:00:05\t From Ada to Everyone:\n\tGood.\n10:01:05 From Bo : Yes.",
        start=rf"{_WHEN}\s+[Ff]rom\s+{_NAME}\s*(?:\sto\s+[^:\n]{{1,80}})?:\s*",
        notice=r"Reacted to |Replying to ",
    ),
    Form(
        program="Zoom, saved chat",
        example="10:00:05\tAda:\tGood.\n10:01:05\tBo:\tYes.",
        start=rf"{_CLOCK}\t\s*{_NAME}:\t",
        notice=r"Reacted to |Replying to ",
    ),
    Form(
        program="Zoom, transcript",
        example="[Ada] 10:00:05\nGood.\n\n[Bo] 10:01:05\nYes.",
        start=rf"\[(?P<name>[^\n\[\]]{{1,60}})\]\s{_CLOCK}[^\S\n]*\n?",
    ),
    Form(
        program="WhisperX",
        example="[SPEAKER_00]: Good.\n[SPEAKER_01]: Yes.",
        start=rf"(?:\[?{_CLOCK}(?:\s*(?:-->|-|–)\s*{_CLOCK})?\]?:?\s+)?\[(?P<name>[^\n\[\]]{{1,40}})\]:\s",
    ),
    Form(
        program="pyannote",
        example="[00:00:01.000 --> 00:00:02.000] [SPEAKER_00] Good.\n[00:00:02.000 --> 00:00:03.000] [SPEAKER_01] Yes.",
        start=rf"\[{_CLOCK}\s*(?:-->|-)\s*{_CLOCK}\]\s+(?:\[(?P<name>[^\n\[\]]{{1,40}})\]:?\s|(?P<label>SPEAKER_\d+):?\s)",
        share=0.3,
    ),
    Form(
        program="Whisper",
        example="[00:00.000 --> 00:03.000]  Good.\n[00:03.000 --> 00:05.000]  Yes.",
        start=rf"\[{_CLOCK}\s*-->\s*{_CLOCK}\]\s+",
        share=0.5,
    ),
    Form(
        program="Teams, older",
        example="0:0:0.0 --> 0:0:3.450\nAda Example\nGood.\n0:0:3.450 --> 0:0:5.0\nBo Sample\nYes.",
        start=r"\d{1,2}:\d{1,2}:\d{1,2}[.,]\d{1,3} --> \d{1,2}:\d{1,2}:\d{1,2}[.,]\d{1,3}\s+"
        r"(?P<name>[^\W\d_][^\n:]{0,59}?)[^\S\n]*(?:\n|\s{2,})",
    ),
    Form(
        program="Teams",
        example="Ada Example   0:03\nGood.\nBo Sample   0:10\nYes.",
        start=rf"(?P<name>[^\W\d_][^\n:\[\]<>|]{{0,59}}?)[^\S\n]+{_CLOCK}"
        r"(?:[^\S\n]*\n|[^\S\n]+(?![AaPp]\.?[Mm]\b)(?=\S))",
        notice=r"[^\n]{0,80}(?:started|stopped) transcription\s*",
        share=0.3,
    ),
    Form(
        program="Teams, chat",
        example="[03/05/2021 10:00] Ada Example\nGood.\n[03/05/2021 10:01] Bo Sample\nYes.",
        start=rf"\[{_WHEN}\]\s(?P<name>[^\W\d_][^\n:<>]{{0,59}}?)(?:#\d{{4}})?[^\S\n]*\n",
        share=0.3,
    ),
    Form(
        program="Telegram",
        example="Ada Example, [03.05.21 10:00]\nGood.\n\nBo Sample, [03.05.21 10:01]\nYes.",
        start=rf"{_NAME},\s\[{_LONG}\]:?[^\S\n]*\n?",
    ),
    Form(
        program="Discord",
        example="Ada — 03/05/2021 10:00 AM\nGood.\nBo — Today at 10:01 AM\nYes.",
        start=rf"{_NAME}\s+[—–]\s+{_WHEN}[^\S\n]*\n",
        share=0.25,
    ),
    Form(
        program="Slack",
        example="Ada Example  [10:00 AM]\nGood.\nBo Sample  [10:01 AM]\nYes.",
        start=rf"(?P<name>[^\W\d_][^\n:\[\]<>]{{0,59}}?)(?:[^\S\n]+|[^\S\n]*\n[^\S\n]*)\[?{_WHEN}\]?[^\S\n]*\n",
        share=0.3,
    ),
    Form(
        program="IRC",
        example="10:00 <@ada> Good.\n10:01 * bo nods.",
        start=rf"\[?(?:(?:{_WHEN}|\d{{4}}-\d\d-\d\dT{_TIME}\S*)\]?\s+"
        rf"(?:<[@+~&% ]?(?P<name>[^<>\s]{{1,32}})>\s|\*\s(?!{_MOVES})(?P<label>[^\s*]{{1,32}})\s)"
        r"|<[@+~&% ]?(?P<nick>[^<>\s]{1,32})>\s)",
        notice=rf"\[?(?:{_WHEN}\]?\s+)?(?:(?:-!-|\*\*\*|---|-->|<--|==)\s|\*\s{_MOVES})",
        guest=rf"\*\s(?!{_MOVES})(?P<label>[^\s*]{{1,32}})\s",
    ),
    Form(
        program="WeeChat",
        example="2021-05-03 10:00:05\tada\tGood.\n2021-05-03 10:01:05\tbo\tYes.",
        start=rf"{_LONG}\t[@+]?(?P<name>[^\s<>*-][^\s]{{0,31}})\t",
        notice=rf"{_LONG}\t(?:-->|<--|--|=!=|\s*\*)\t",
    ),
    Form(
        program="deposition",
        example="Q.   Good?\nA.   Yes.\nQ.   Why?",
        start=r"(?:\d{1,2}\s+)?"
        r"(?:(?P<name>[QA])(?:\.|:|\s{2,})\s*|(?P<label>(?:THE|MR|MS|MRS|DR)\b\.?[ A-Z.’'-]{2,40}):\s)",
        notice=r"(?:\d{1,2}\s+)?(?:BY (?:MR|MS|MRS|DR)\.|(?:DIRECT|CROSS|REDIRECT|RECROSS)(?:-| )?EXAMINATION)",
        guest=r"(?:\d{1,2}\s+)?(?P<name>[A-Z][A-Z’'-]{2,30}(?: [A-Z][A-Z’'-]*){0,5}):\s",
        share=0.15,
    ),
)

LEAST = min(form.share for form in FORMS)
_A_TIME = re.compile(r"\d:\d|\d\.\d\d")
_NO_TIME = re.compile(
    r"^[^\S\n]*\u200e?(?:(?:\d{1,2}\s+)?(?:[QA](?:[.:]|\s\s)|THE\b|MR\b|MS\b|MRS\b|DR\b)|\[[^\n\[\]]{1,40}\]:"
    r"|\[?<[^<>\s]{1,36}>\s)",
    re.MULTILINE,
)
"""Present in every turn: a time, or the beginning in formats without times."""

_LEFT_OUT = re.compile(
    r"\s*(?:<(?:media|image|video|audio|sticker|gif|attached|Medien)[^<>\n]{0,80}>|\u200e?(?:image|video|audio|sticker|GIF"
    r"|document|contact card) omitted|(?:this message was|you) deleted(?: this message)?\.?"
    r"|[^\n]{1,80}\(file attached\)|missed (?:voice|video) call|null)\s*",
    re.IGNORECASE,
)
"""Placeholders for pictures, sounds, or deleted messages."""
_MARKS = re.compile(r"[^\S\n]*<this message was edited>|\u200e", re.IGNORECASE)
_ONLY_TIME = re.compile(
    rf"[^\S\n]*\[?{_WHEN}\]?[^\S\n]*(?:\n|$)|[^\S\n]*[-–—]{{2,}}[^\n]{{0,60}}[-–—]{{2,}}[^\S\n]*(?:\n|$)"
)
"""A line within a turn with only the time or the day."""


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a turn, or of a notice, in the text of all blocks; its words begin at `words`."""

    start: int
    words: int
    name: str | None
    is_notice: bool = False


def with_conversation(blocks: Sequence[Block]) -> list[Block]:
    """Returns the turns of a program's conversation as separate blocks; other documents unchanged."""
    texts = [block.text if block.kind in {"paragraph", "item"} else "" for block in blocks]
    whole = "\n".join(texts)
    if (form := form_of(whole)) is None:
        return list(blocks)
    starts = deque(beginnings(form, whole))
    pieces: list[Block] = []
    place = words = 0  # the start of the block, and of the words of a turn
    turn: Start | None = None
    for block, text in zip(blocks, texts, strict=True):
        if not text:
            pieces.append(block)
        end = place + len(text)
        while place + len(text) and words < end:
            following = starts[0].start if starts and starts[0].start < end else end
            if words < following:
                pieces += _pieces(block, max(words, place) - place, following - place, turn)
            words = following
            if following < end:
                start = starts.popleft()
                if start.is_notice:
                    notice = block.body.part(start.start - place, min(start.words, end) - place)
                    pieces.append(Block(kind="boilerplate", body=notice))
                else:
                    turn = start
                words = start.words
        place = end + 1
        words = max(words, place)
    return pieces


def _pieces(block: Block, start: int, end: int, turn: Start | None) -> Iterator[Block]:
    """Yields parts of a block: the words of a turn, placeholders, or notices."""
    body = block.body.part(start, end)
    if not body.text.strip():
        return
    if turn is None:
        yield replace(block, body=body)
    elif _LEFT_OUT.fullmatch(body.text):
        yield Block(kind="boilerplate", body=body)
    else:
        edits = [
            (match.start(), match.end(), "") for match in (*_MARKS.finditer(body.text), *_ONLY_TIME.finditer(body.text))
        ]
        said = body.edited(sorted(edits)) if edits else body
        if said.text.strip():
            yield Block(kind="turn" if turn.name else "paragraph", body=said, speaker=turn.name)


def form_of(text: str) -> Form | None:
    """Returns the format of a program's conversation, by its first lines; None for any other text."""
    text = "\n".join(text[: 200 * SAMPLED].split("\n", SAMPLED)[:SAMPLED]) + "\n"
    lines = sum(1 for line in text.split("\n") if line.strip())
    if len(_A_TIME.findall(text)) + len(_NO_TIME.findall(text)) < max(FEWEST, LEAST * lines):
        return None  # the usual case, without trying every format
    counts = {form.program: _turns(form, text, lines) for form in FORMS}
    program = max(counts, key=lambda name: counts[name])
    return next(form for form in FORMS if form.program == program) if counts[program] else None


def _turns(form: Form, text: str, lines: int) -> int:
    """Returns the number of turns if a text of `lines` lines has a format; otherwise 0."""
    named = [_name_in(match) for match in form.pattern.finditer(text)]
    names = Counter(name for name in named if name)
    if len(named) < max(FEWEST, form.share * lines):
        return 0
    if "name" not in form.pattern.groupindex:
        return len(named)
    questions = names.keys() & {"Q", "A"}
    if questions and len(questions) < 2:
        return 0
    return names.total() if names.total() > len(names) else 0  # somebody speaks twice


def beginnings(form: Form, text: str) -> list[Start]:
    """Returns the turns and notices of a format, in order."""
    named = "name" in form.pattern.groupindex
    starts = [
        Start(match.start(), match.end(), name)
        for match in form.pattern.finditer(text)
        if (name := _name_in(match)) is not None or not named
    ]
    begun = {start.start for start in starts}
    guests = form.guests.finditer(text) if form.guests else ()
    starts += [
        Start(guest.start(), guest.end(), name)
        for guest in guests
        if guest.start() not in begun and (name := _name_in(guest)) is not None
    ]
    begun = {start.start for start in starts}
    notices = form.notices.finditer(text) if form.notices else ()
    starts += [
        Start(notice.start(), notice.end(), None, is_notice=True) for notice in notices if notice.start() not in begun
    ]
    return sorted(starts, key=lambda start: start.start)


def _name_in(match: re.Match[str]) -> str | None:
    """Returns the speaker; None if the line names nobody, or if the name is a sentence."""
    name = " ".join(next(filter(None, match.groupdict().values()), "").split()).strip("~\u202a\u202c")
    is_none = not name or len(name.split()) > 6 or re.search(r"[,;!?…]$|\w{3,}\.$", name) or LABELS.fullmatch(name)
    return None if is_none else name
