"""Dialogues by name, file or directory: a stream of `Dialogue` from any format.

- `read_dialogues("qmsum", "validation")`: one of `DIALOGUE_DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_dialogues("talks.jsonl")`: records, see `formats`
- `read_dialogues("MediaSum/", "train")`: as published, `news_dialogue.json` with `train_val_test_split.json`
- `read_dialogues("subtitles/")`: one film per file, see `formats`
- `read_dialogues("meeting.txt")`: a document that `longspan_documents.text.reading.read` reads, lines of "Speaker:
  text"
- `read_dialogues("synthetic", limit=8)`: generated
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan.characters import counted
from longspan.data.fields import Skipped, check_on_error
from longspan.data.sources import DataSet, Kind, read, split_of
from longspan.data.tables import RECORDS, holds_records, read_records, unit_of
from longspan.data.turns import Dialogue, Turn
from longspan.errors import InputError, last_line
from longspan_documents.text.reading import read as read_document
from longspan_papers.dialogue.formats import FILES, dialogue_of, document_dialogue, read_subtitles

logger = logging.getLogger(f"longspan.{__name__}")


def _folder(name: str) -> DataSet:
    return DataSet(splits={split: (f"{name}/{split}.jsonl.gz",) for split in ("train", "validation")})


DIALOGUE_DATA_SETS: dict[str, DataSet] = {"qmsum": _folder("qmsum"), "crd3": _folder("crd3")}
"""Name → files under LONGSPAN_DATA."""

DIALOGUES = Kind(
    row=Dialogue,
    named=DIALOGUE_DATA_SETS,
    made_up=lambda count, seed: synthetic_dialogues(8 if count is None else count, seed=seed),
    suffixes=(*RECORDS, "txt", "md", "html", "docx", "pdf", "srt", "vtt", "xml"),
    deep=True,
)
"""The data source of dialogues."""

MEDIASUM, MEDIASUM_SPLITS = "news_dialogue.json", "train_val_test_split.json"
"""The files of MediaSum: all its interviews, and their splits."""

_XML = re.compile(r"\.xml(\.gz|\.xz)?$", re.IGNORECASE)


def read_dialogues(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
    encoding: str | None = None,
) -> Iterator[Dialogue]:
    """Yields the dialogues of a data set, one in memory at a time; dialogues without words are dropped.

    Args:
        data: a file of records (JSON Lines, a JSON array, CSV, TSV, Parquet, plain, gzip or xz), of subtitles, or a
            document; a directory, the name of one of `DIALOGUE_DATA_SETS` or of a registered reader, "synthetic", or
            several of these.
        split: split of a directory or a named data set; a single file is read for every split.
        limit: maximum number of dialogues.
        on_error: "raise" stops at a malformed dialogue; "skip" drops it and logs the count.
        encoding: of documents and subtitles, as in `longspan_documents.text.reading.read`; see `has_own_encoding`.

    Raises:
        InputError: no data is found or an option is invalid (immediately); a dialogue is malformed (when reached).
    """
    check_on_error(on_error)

    def read_file(path: Path, _: Any) -> Iterator[Dialogue]:
        skipped = Skipped(str(path), on_error)
        if path.name == MEDIASUM_SPLITS:
            return _of_split(path, split, skipped)
        return _records(path, skipped) if holds_records(path.name) else _document(path, skipped, encoding)

    return read(data, split, DIALOGUES, read_file, limit)


def is_of_dialogues(name: str) -> bool:
    """Whether a file name is that of dialogues in records or subtitles, as opposed to a document."""
    return holds_records(name) or bool(FILES.search(name))


def has_own_encoding(name: str) -> bool:
    """Whether the encoding is fixed by the file type: records are UTF-8, and XML declares its own."""
    return holds_records(name) or bool(_XML.search(name))


def _records(path: Path, skipped: Skipped) -> Iterator[Dialogue]:
    stem, unit, empty = path.name.split(".")[0], unit_of(path), 0
    for number, record in read_records(path, skipped.add):
        try:
            dialogue = dialogue_of(record, f"{stem}:{number}")
        except (InputError, AttributeError, TypeError) as error:
            skipped.add(number, InputError(skipped.with_remedy(f"{path}, {unit} {number}: {last_line(error)}")))
            continue
        if dialogue.turns:
            yield dialogue
        empty += not dialogue.turns
    skipped.report()
    if empty:
        some = counted(empty, "dialogue without words is", "dialogues without words are")
        logger.warning("%s: %s left out", path, some)


def _document(path: Path, skipped: Skipped, encoding: str | None) -> Iterator[Dialogue]:
    """Yields the one dialogue of a document or film."""
    try:
        subtitles = FILES.search(path.name)
        dialogue = (
            read_subtitles(path, encoding) if subtitles else document_dialogue(read_document(path, encoding=encoding))
        )
    except InputError as error:
        skipped.add(1, error)
        skipped.report()
        return
    if dialogue.turns:
        yield dialogue
    else:
        logger.warning("%s has no turn with words and is left out", path)


def _of_split(path: Path, split: str, skipped: Skipped) -> Iterator[Dialogue]:
    """Yields the interviews of MediaSum that the split file in the same folder assigns to a split."""
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        listed = split_of(lists, split)
        wanted = None if listed is None else frozenset(lists[listed])
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is no list of ids for each split ({last_line(error)}); get the file again") from None
    if wanted is None:
        raise InputError(f"split={split!r} is not in {path}; it has {', '.join(lists)}")
    everything = path.with_name(MEDIASUM)
    return (dialogue for dialogue in _records(everything, skipped) if dialogue.id in wanted)


NAMES = ("Ada", "Carl", "Emmy", "Hugo", "Rosa")
TOPICS = 3


def synthetic_dialogues(count: int, *, seed: int) -> list[Dialogue]:
    """Generates talks of two to four people about three topics, each with its own vocabulary.

    The same arguments give the same dialogues.
    """
    draw = random.Random(seed)
    return [_dialogue(f"synthetic-{seed}-{number}", 24 + number % 5, draw) for number in range(count)]


def _dialogue(name: str, count: int, draw: random.Random) -> Dialogue:
    people = draw.sample(NAMES, k=draw.randint(2, 4))
    borders = tuple(count * topic // TOPICS for topic in range(1, TOPICS))
    turns: list[Turn] = []
    words: list[str] = []
    for index in range(count):
        if index == 0 or index in borders:
            words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(12)]
        sentences = (" ".join(draw.choices(words, k=draw.randint(3, 8))) for _ in range(draw.randint(1, 3)))
        speaker = draw.choice([person for person in people if not turns or person != turns[-1].speaker])
        turns.append(Turn(speaker, " ".join(f"{sentence.capitalize()}." for sentence in sentences)))
    return Dialogue(id=name, turns=tuple(turns), topics=borders)
