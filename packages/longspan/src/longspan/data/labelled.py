"""Labelled documents, by name, file or folder, as a stream of `LabelledRow`.

- `read_labelled("hyperpartisan", "validation")`: one of `DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_labelled("reviews.csv")`: CSV, TSV, JSON Lines or Parquet with a text and a label column
- `read_labelled("aclImdb", "test")`: folders of texts named after their labels, as in IMDB (aclImdb/train/pos/*.txt)
- `read_labelled("synthetic", limit=64)`: generated
- `read_texts("mails.csv")`: only the texts of a table, for prediction

`clean` removes addresses and repeated characters from news articles.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from longspan.characters import check_characters
from longspan.data.fields import (
    ROW_FIELDS,
    Record,
    Skipped,
    check_on_error,
    joined_text,
    kind_of,
    name_of,
    parsed,
    without_remedy,
)
from longspan.data.jsonl import LONGEST, UNREADABLE, read_bytes, unreadable
from longspan.data.sources import ALIASES, DataSet, Kind, read
from longspan.data.tables import RECORDS, read_records, unit_of
from longspan.errors import InputError

PARTS = {"train": (0, 80), "validation": (80, 90), "test": (90, 100)}
"""Split → range of percents of the documents, if the split is determined by a hash of the text: 80/10/10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """A labelled document.

    Attributes:
        id: as in the file, or file and line.
        text: the document, as in the file.
        label: as text; numbers and booleans in JSON notation.
    """

    id: str
    text: str
    label: str


def percent_of(text: str) -> int:
    """Returns a hash of the text from 0 to 99, equal on every machine, so that equal texts are in the same split."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 100


def is_in(text: str, split: str) -> bool:
    """Whether a text belongs to the split `split` of `PARTS`."""
    first, end = PARTS[split]
    return first <= percent_of(text) < end


def synthetic_labelled(count: int, *, seed: int) -> list[LabelledRow]:
    """Returns reviews of fictional things with alternating labels that only the last sentence expresses, so that the
    task can be learned.

    The same arguments give the same rows on every machine.
    """
    draw = random.Random(seed)
    words = {
        "good": ("splendid", "delightful", "wonderful", "superb"),
        "bad": ("dreadful", "tiresome", "terrible", "useless"),
    }
    things, parts = ("lamp", "chair", "kettle", "clock"), ("handle", "colour", "box", "lid", "cable")
    rows = []
    for index in range(count):
        label = ("good", "bad")[index % 2]
        body = [f"The {draw.choice(parts)} of the {draw.choice(things)} is there ." for _ in range(12)]
        verdict = f"All in all it is {draw.choice(words[label])} and {draw.choice(words[label])} ."
        rows.append(LabelledRow(id=f"synthetic-{seed}-{index}", text=" ".join([*body, verdict]), label=label))
    return rows


_ADDRESS = re.compile(r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.)[^\s<>\"”’)\]]+", re.IGNORECASE)
_SAME_MARK = re.compile(r"([^\w\s])(?:\s*\1)+")
_SAME_LETTER = re.compile(r"([^\W\d_])\1{3,}")


def clean(text: str) -> str:
    """Cleans a text as in Longformer's experiment on Hyperpartisan: no addresses, no repetitions, single spaces.

    Web addresses are removed. A repeated punctuation mark, with or without spaces in between, becomes one; a letter
    repeated four times or more becomes one ("soooo" → "so"); digits are kept, because 10000 is a number. Runs of white
    space become one space.
    """
    text = _ADDRESS.sub(" ", text)
    text = _SAME_LETTER.sub(r"\1", _SAME_MARK.sub(r"\1", text))
    return " ".join(text.split())


def cleaning() -> Any:
    """Returns `clean` as a normaliser of the tokenizers library, so that it is applied by the tokenizer itself.

    Its regular expressions do not support groups in replacements: all but the last of repeated marks are removed, and
    all but the first of repeated letters.
    """
    from tokenizers import Regex, normalizers

    word = r"\p{L}\p{N}_"
    space = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
    address = rf"(?<![{word}])(?:[A-Za-z][A-Za-z0-9+.-]{{1,20}}://|[Ww]{{3}}\.)[^{space}<>\"”’)\]]+"
    steps = (
        (address, " "),
        (rf"([^{word}{space}])[{space}]*(?=\1)", ""),
        (r"([\p{L}\p{Nl}\p{No}])\K\1{3,}", ""),
        (rf"[{space}]+", " "),
    )
    replace = [normalizers.Replace(Regex(pattern), text) for pattern, text in steps]
    return normalizers.Sequence([*replace, normalizers.Strip()])


logger = logging.getLogger(__name__)

UNLABELLED = frozenset({"unsup"})
"""Folders of unlabelled texts: IMDB's for pre-training."""


def is_labelled_folder(folder: Path) -> bool:
    """Whether a folder contains label folders of texts, directly or for each split."""
    return bool(_splits_of(folder) or _label_folders(folder))


def folder_rows(folder: Path, split: str, skipped: Skipped) -> Iterator[LabelledRow]:
    """Yields the rows of one split, by label in alphabetical order.

    Without a validation split, a tenth of the training texts, selected by `percent_of`, is the validation split and the
    rest the training split; a folder without splits is divided by `PARTS`. Both are logged.
    """
    there = _splits_of(folder)
    if not there:
        _check_split(folder, split, list(PARTS))
        _note(folder, "has no splits, so a hash of each text puts it into train, validation or test (80/10/10)")
        part = next(name for name in PARTS if name in ALIASES.get(split, (split,)))
        yield from (row for row in _folder_rows(folder, skipped) if is_in(row.text, part))
        return
    names = ALIASES.get(split, (split,))
    folder_of_split = next((there[name] for name in names if name in there), None)
    held_out = "train" in there and not any(name in there for name in ALIASES["validation"])
    if folder_of_split is None and not (held_out and "validation" in names):
        _check_split(folder, split, [*there, *(["validation"] if held_out else [])])
    if held_out and folder_of_split in (None, there["train"]):
        _note(
            folder, "has no validation split, so a tenth of the training texts, by a hash of each, is held out for it"
        )
        for row in _folder_rows(there["train"], skipped):
            if (percent_of(row.text) < 10) == (folder_of_split is None):
                yield row
    elif folder_of_split is not None:
        yield from _folder_rows(folder_of_split, skipped)


def _check_split(folder: Path, split: str, known: list[str]) -> None:
    if not set(ALIASES.get(split, (split,))) & set(known):
        raise InputError(f"{folder} has no split={split!r}; it has {', '.join(known)}")


def _splits_of(folder: Path) -> dict[str, Path]:
    names = ("train", "validation", "valid", "val", "dev", "test")
    return {name: folder / name for name in names if (folder / name).is_dir() and _label_folders(folder / name)}


def _label_folders(folder: Path) -> dict[str, Path]:
    inside = (entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name not in UNLABELLED)
    return {entry.name: entry for entry in inside if any(entry.glob("*.txt"))}


def _folder_rows(folder: Path, skipped: Skipped) -> Iterator[LabelledRow]:
    for label, place in _label_folders(folder).items():
        for number, file in enumerate(sorted(place.glob("*.txt")), 1):
            try:
                text = read_bytes(file, LONGEST).decode("utf-8-sig")
                if not text.strip():
                    raise InputError(f"{file} is empty; remove it, or put its text back")
            except (InputError, *UNREADABLE) as error:
                sentence = str(error if isinstance(error, InputError) else unreadable(file, error))
                skipped.add(number, InputError(skipped.with_remedy(sentence)))
                continue
            yield LabelledRow(id=f"{folder.name}/{label}/{file.stem}", text=text, label=label)
    skipped.report()


@cache
def _note(folder: Path, what: str) -> None:
    """Logs once per folder."""
    logger.warning("%s %s", folder, what)


LABEL_FIELDS = ("label", "labels", "class", "category", "target", "sentiment", "polarity", "topic")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The text and label columns, if they have other names than the usual ones, and names for the labels."""

    text_field: str | None = None
    label_field: str | None = None
    called: dict[str, str] = field(default_factory=dict)


DATA_SETS: dict[str, DataSet] = {
    "hyperpartisan": DataSet(
        splits={split: (f"hyperpartisan/{split}.jsonl.gz",) for split in ("train", "validation")},
        choice=Choice(label_field="hyperpartisan", called={"true": "hyperpartisan", "false": "mainstream"}),
    ),
}

LABELLED = Kind(
    row=LabelledRow,
    named=DATA_SETS,
    made_up=lambda count, seed: synthetic_labelled(16 if count is None else count, seed=seed),
    suffixes=RECORDS,
    is_one=is_labelled_folder,
    hint="or a folder of folders of .txt files, one for each label",
)
"""Sources of labelled documents."""


def read_texts(path: Path, text_field: str | None = None) -> Iterator[tuple[str, str]]:
    """Streams `(id, text)` of each row of a CSV, TSV, JSON Lines or Parquet file, ignoring labels.

    Args:
        path: the file.
        text_field: the text column; None uses the first existing one of `ROW_FIELDS`.

    Raises:
        InputError: the file cannot be read; a row has no text (when it is reached; the message has file and line).
    """
    unit = unit_of(path)

    def parse(record: Record, number: int) -> tuple[str, str]:
        return name_of(record, "id", f"{unit} {number}"), _text(record, text_field, "text_field")

    with without_remedy():
        yield from parsed(read_records(path), parse, Skipped(str(path)), unit)


def read_labelled(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    *,
    text_field: str | None = None,
    label_field: str | None = None,
    by_hash: bool = False,
    limit: int | None = None,
    on_error: str = "raise",
) -> Iterator[LabelledRow]:
    """Streams the rows of a labelled data set; one record is in memory at a time.

    Args:
        data: a CSV, TSV, JSON Lines or Parquet file, a folder with files of the split, a folder of label folders, the
            name of one of `DATA_SETS` or of a registered reader, "synthetic", or several of these.
        split: the split of a folder or a named data set; a single file is read for every split, unless `by_hash`.
        text_field: the text column; None uses the first existing one of `ROW_FIELDS`.
        label_field: the label column; None uses the first existing one of `LABEL_FIELDS`.
        by_hash: divide a single file into splits by a hash of the text (80/10/10).
        limit: maximum number of rows.
        on_error: "raise" stops at a malformed row; "skip" skips it, and the number of skipped rows is logged.

    Raises:
        InputError: nothing is found, or an option is wrong (immediately); a row has no text or no label, or is not
            UTF-8 (when it is reached; the message has file and line).
    """
    check_on_error(on_error)
    part = next((name for name in PARTS if name in ALIASES.get(split, (split,))), None)
    if by_hash and part is None:
        raise InputError(f"split={split!r} is none that a hash divides into; give one of {', '.join(PARTS)}")
    options = {"text_field": text_field, "label_field": label_field}
    options = {name: value for name, value in options.items() if value is not None}

    def read_file(path: Path, choice: Choice | None) -> Iterator[LabelledRow]:
        skipped = Skipped(str(path), on_error)
        if path.is_dir():
            return folder_rows(path, split, skipped)
        fields, stem = replace(choice or Choice(), **options), path.name.split(".")[0]

        def parse(record: Record, number: int) -> LabelledRow:
            text = _text(record, fields.text_field)
            label = _label(record[_field(record, fields.label_field, LABEL_FIELDS, "task.label_field")])
            return LabelledRow(
                id=name_of(record, "id", f"{stem}:{number}"), text=text, label=fields.called.get(label, label)
            )

        rows = parsed(read_records(path, skipped.add), parse, skipped, unit_of(path))
        return (row for row in rows if not by_hash or is_in(row.text, str(part)))

    return read(data, split, LABELLED, read_file, limit)


def _text(record: Record, chosen: str | None, option: str = "task.text_field") -> str:
    """Returns the text of a record; raises `InputError` if there is none."""
    text = record[_field(record, chosen, ROW_FIELDS, option)]
    text = joined_text(text, "the text") if isinstance(text, list) else text
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the text is {'blank' if isinstance(text, str) else kind_of(text)}; give words to read")
    return check_characters(text, "the text")


def _field(record: Record, chosen: str | None, usual: tuple[str, ...], option: str) -> str:
    """Returns the name of the text or label field; raises `InputError`, with the option for it, if there is none."""
    field_name = next((name for name in ([chosen] if chosen else usual) if name in record), None)
    if field_name is None:
        there = ", ".join(sorted(map(str, record))) or "none"
        wanted = repr(chosen) if chosen else f"{', '.join(usual[:-1])} or {usual[-1]}"
        raise InputError(f"no column {wanted}; there is {there}; name the one of the {usual[0]}s in {option}")
    return field_name


def _label(value: Any) -> str:
    """Returns a label as text; raises `InputError` if it is not a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)  # tables store integers as floats if the column has gaps
    if isinstance(value, int) or (isinstance(value, str) and value.strip()):
        return check_characters(str(value).strip(), "the label")
    shown = "blank" if isinstance(value, str) else kind_of(value)
    raise InputError(f"the label is {shown}; give a word, a whole number or true or false")
