"""`longspan noise`."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longspan.characters import counted
from longspan.cli.terminal import COLOURS, say, say_coloured, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import Encoding, what_is_read

epilog = what_is_read

if TYPE_CHECKING:
    from longspan.data.turns import Dialogue, Turn
    from longspan_papers.dialogue.noises import NoiseConfig
    from longspan_papers.dialogue.noising import Noised, Trace

Pieces = Iterator[tuple[str, str]]


def noise(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A dialogue; - is standard input.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 1,
    setting: Annotated[Literal["paper", "script"], typer.Option(help="How much noise.")] = "paper",
    only: Annotated[
        list[str] | None,
        typer.Option(help="This noise alone: speakers, split, merge, infill or permute; can be repeated."),
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Not this noise; likewise.")] = None,
    dialogue: Annotated[int, typer.Option(min=1, help="Which one, of a file of several.")] = 1,
    around: Annotated[int, typer.Option(min=0, help="Turns to show on each side of the window.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print source, target and what was done.")] = False,
    encoding: Encoding = None,
) -> None:
    """Show the noise of dialogue pre-training: a window of a dialogue before and after it is disturbed.

    Speakers are masked, a turn is split or several are merged, words are hidden, and the turns are shuffled (DialogLM).
    Each turn of the window has a colour, by which it can be followed; masks are shown in reverse. Dialogues are
    transcripts of "Speaker: text" in any document, subtitles, and records such as those of QMSum and MediaSum.

    Examples: `longspan noise meeting.txt`, `longspan noise talks.jsonl --dialogue 3 --seed 7`, `longspan noise
    interview.docx --setting script --only infill --json`.
    """
    from random import Random

    from longspan_papers.dialogue.noises import NOISES, NoiseConfig
    from longspan_papers.dialogue.noising import noise as disturbed

    config = NoiseConfig.published(setting)
    config.without(*(only or ()), *(without or ()))  # raises for names that are no noise
    both = sorted({*(only or ())} & {*(without or ())})
    if both:
        raise InputError(f"--only {both[0]} and --without {both[0]} contradict each other; leave one of them out")
    left_out = {*(without or ()), *((NOISES.keys() - only) if only else ())}
    config = NoiseConfig.published(setting, **config.without(*sorted(left_out)))
    dialogue_row = _read(file, dialogue, encoding)
    noised = disturbed(dialogue_row.turns, Random(seed), config)
    if json:
        say_json([_record(file, seed, setting, noised)])
        return
    first, end = noised.trace.window
    before, after = dialogue_row.turns[max(0, first - around) : first], dialogue_row.turns[end : end + around]
    colours = {first + index: COLOURS[index % len(COLOURS)] for index in range(end - first)}
    window = [(turn.line, colours[first + index]) for index, turn in enumerate(dialogue_row.turns[first:end])]
    lines = noised.trace.lines(config)
    changed = [(line, colours[origin]) for line, (origin, _) in zip(lines, noised.trace.origins, strict=True)]
    for title, shown in (("before", window), ("after", changed)):
        say_coloured([(f"== {title} ==\n", "bold"), *_pieces(before, shown, after, config)])
        say()
    say(f"[{_told(dialogue_row, noised.trace)}]", error=True)


def _read(file: str, number: int, encoding: str | None) -> "Dialogue":
    """Returns the dialogue with index `number` of a file."""
    from itertools import islice

    from longspan.data.fields import without_remedy
    from longspan_documents.text.reading import read
    from longspan_papers.dialogue.formats import document_dialogue
    from longspan_papers.dialogue.reading import has_own_encoding, is_of_dialogues, read_dialogues

    if encoding is not None and has_own_encoding(file):
        raise InputError(
            f"--encoding {encoding} is for texts and subtitles, but {file} holds records or XML, whose encoding is "
            "known; leave it out"
        )
    if is_of_dialogues(file):
        with without_remedy():
            dialogue_row = next(islice(read_dialogues(Path(file), encoding=encoding), number - 1, None), None)
        if dialogue_row is None and number == 1:
            raise InputError(f"{file} has no dialogue with words; give one that has some")
        if dialogue_row is None:
            raise InputError(f"--dialogue {number} is more than {file} has; give a lower number")
        return dialogue_row
    if number > 1:
        raise InputError(f"--dialogue {number} is given, but {file} is one dialogue; leave it out")
    dialogue_row = document_dialogue(read(file, encoding=encoding))
    if not dialogue_row.turns:
        raise InputError(f"{file} has no turn with words; give a dialogue, such as lines of 'Speaker: text'")
    return dialogue_row


def _pieces(
    before: "Sequence[Turn]", window: list[tuple[str, str]], after: "Sequence[Turn]", config: "NoiseConfig"
) -> Pieces:
    """Returns lines with their styles; masks and marks are shown in reverse."""
    marks = "|".join(map(re.escape, (config.mask, config.speaker_mask, config.start, config.end)))
    yield from ((f"{turn.line}\n", "dim") for turn in before)
    for line, colour in window:
        for index, piece in enumerate(re.split(f"({marks})", line)):
            yield piece, f"{colour} reverse" if index % 2 else colour
        yield "\n", ""
    yield from ((f"{turn.line}\n", "dim") for turn in after)


def _told(dialogue: "Dialogue", trace: "Trace") -> str:
    """Describe the noise in words."""
    first, end = trace.window
    which = f"turn {end:,}" if end - first == 1 else f"turns {first + 1:,} to {end:,}"
    parts = [f"{which} of {len(dialogue.turns):,}"]
    if not dialogue.speakers:
        parts.append("nobody is named, so no speaker can be masked")
    elif trace.masked:
        parts.append(f"{counted(len(trace.masked), 'speaker')} masked")
    if trace.split:
        parts.append(f"turn {first + trace.split[0] + 1:,} split into {trace.split[1]}")
    if trace.merged:
        parts.append(f"{trace.merged[1]} turns merged from turn {first + trace.merged[0] + 1:,} on")
    if trace.hidden:
        words = sum(length for _, _, length in trace.hidden)
        parts.append(f"{counted(words, 'word')} hidden by {counted(len(trace.hidden), 'mask')}")
    if list(trace.order) != sorted(trace.order):
        parts.append("turns shuffled")
    return "; ".join(parts)


def _record(file: str, seed: int, setting: str, noised: "Noised") -> dict[str, object]:
    trace = noised.trace
    return {
        "file": file,
        "seed": seed,
        "setting": setting,
        "source": noised.source,
        "target": noised.target,
        **{
            name: getattr(trace, name) for name in ("window", "masked", "split", "merged", "hidden", "order", "origins")
        },
    }
