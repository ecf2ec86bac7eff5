"""Sources of rows and documents: the lookup of names in recipes and commands, for every kind of data.

A name is looked up in this order:

1. `"synthetic"`: generated rows, so that a smoke run needs no files;
2. an existing path, a file or a folder; a pattern such as `shards/*.jsonl.gz`;
3. a named data set, whose files are in the folder of the environment variable LONGSPAN_DATA;
4. a reader registered with `longspan.register`;
5. a file or folder of LONGSPAN_DATA.

In a folder, the files of the split are read in alphabetical order: those in a folder named after the split, otherwise
those whose names begin with it (`train-large.jsonl.xz`, `val.txt`), otherwise record files that have it among the parts
of their names (`nq-train-00.jsonl.gz`); if no file names any split, all of them, which is logged.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from longspan.data.catalogue import KNOWN, missing
from longspan.errors import InputError
from longspan.imports import find
from longspan.settings import check_kind, check_several, show

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

SYNTHETIC = "synthetic"
"""The name of generated data."""

MOST_MADE_UP = 10_000
"""Maximum number of generated rows."""

READERS: dict[str, Callable[[str], Iterator[Any]]] = {}
"""Name → registered reader: a function from the name of a split to rows."""

ALIASES = {"validation": ("validation", "valid", "val", "dev"), "dev": ("dev", "validation", "valid", "val")}
"""Aliases of splits."""

_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
_TEXT = re.compile(r"\.te?xt(\.gz|\.xz)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A named data set: its files in LONGSPAN_DATA for each split, and options for reading them."""

    splits: Mapping[str, Sequence[str]]
    choice: Any = None

    @classmethod
    def sample(cls, file: str) -> Self:
        """Returns a data set with one file for both splits: its score only shows that training works."""
        return cls(splits=dict.fromkeys(("train", "validation"), (file,)))


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[Row]):
    """One kind of data.

    Attributes:
        row: the class of its rows.
        named: its named data sets.
        made_up: generates rows, from their number, or None for a few, and a seed.
        suffixes: suffixes of its files in a folder, also with `.gz` and `.xz`.
        deep: whether subfolders are searched.
        is_one: whether a folder is read as a single source.
        hint: other possible names, as the end of an error message.
    """

    row: type[Row]
    named: Mapping[str, DataSet]
    made_up: Callable[[int | None, int], Iterable[Row]]
    suffixes: tuple[str, ...]
    deep: bool = False
    is_one: Callable[[Path], bool] = field(default=lambda _: False)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The result of a lookup: files and options for reading them; or a reader; or neither, for generated rows."""

    name: str
    files: tuple[Path, ...] = ()
    choice: Any = None
    reader: Callable[[str], Iterator[Any]] | None = None


def read(
    data: str | Path | Sequence[str | Path],
    split: str,
    kind: Kind[Row],
    read_file: Callable[[Path, Any], Iterator[Row]],
    limit: int | None = None,
) -> Iterator[Row]:
    """Yields the rows of one source or of several, in order; nothing is read before the first row is requested.

    Args:
        data: names or paths.
        split: the split of a folder, a data set or a reader; a single file is read for every split.
        kind: the kind of data.
        read_file: yields the rows of a file, given the `choice` of its data set, or None.
        limit: maximum number of rows.

    Raises:
        InputError: a source is not found, or the limit is negative (immediately); a reader returns a row of another
            kind.
    """
    if not isinstance(data, str | Path):
        check_several(data, "data", "a path, a name, or a list of these")
        data = list(data)
        for source in data:
            check_kind(source, "data", (str, Path), "a path or a name")
    check_kind(split, "split", str, "the name of a split, such as 'train'")
    if limit is not None:
        check_kind(limit, "limit", int, "a number of rows, or None for all of them")
    if limit is not None and limit < 0:
        raise InputError(f"limit={show(limit)} is negative; give a number of rows, or None for all of them")
    sources = [find_source(source, split, kind) for source in ([data] if isinstance(data, str | Path) else data)]

    def rows() -> Iterator[Row]:
        for source in sources:
            for path in source.files:
                yield from read_file(path, source.choice)
            yield from rows_without_files(source, split, kind, limit)

    return islice(rows(), limit)


def rows_without_files(source: Source, split: str, kind: Kind[Row], limit: int | None) -> Iterator[Row]:
    """Yields the rows of a source without files: generated ones, with different rows for "train" and other splits, or a
    reader's."""
    if source.name == SYNTHETIC:
        if limit is not None and limit > MOST_MADE_UP:
            raise InputError(f"{limit:,} made-up rows are asked for; {SYNTHETIC!r} has at most {MOST_MADE_UP:,}")
        yield from kind.made_up(limit, 0 if split == "train" else 1)
    for number, row in enumerate(source.reader(split) if source.reader else (), 1):
        if not isinstance(row, kind.row):
            raise InputError(
                f"row {number} of reader {source.name!r} is a {type(row).__name__}; this task reads {kind.row.__name__}"
            )
        yield row


def find_source(data: str | Path, split: str, kind: Kind[Any]) -> Source:
    """Looks up a name, see the module; raises `InputError` if there is nothing, or nothing of the split."""
    name, path = str(data), Path(data)
    if name == SYNTHETIC:
        return Source(name=name)
    if os.path.exists(path):
        return Source(name=name, files=_files(path, split, kind))
    if glob.has_magic(name):
        paths = sorted(Path(one) for one in glob.glob(name, recursive=True) if Path(one).is_file())
        if not paths:
            raise InputError(f"no file matches {name!r}; check the pattern")
        return Source(name=name, files=tuple(paths))
    if name in kind.named:
        return Source(name=name, files=_named_files(name, kind.named[name], split), choice=kind.named[name].choice)
    if (reader := find(READERS, name)) is not None:
        return Source(name=name, reader=reader)
    root = os.environ.get("LONGSPAN_DATA") or ""
    if root and not path.is_absolute() and (Path(root) / path).exists():
        return Source(name=name, files=_files(Path(root) / path, split, kind))
    raise missing(name) or _unknown(name, root, kind)


def split_of(splits: Iterable[str], split: str) -> str | None:
    """Returns the name of a split among `splits`, considering aliases, or None."""
    known = set(splits)
    return next((name for name in ALIASES.get(split, (split,)) if name in known), None)


def _unknown(name: str, root: str, kind: Kind[Any]) -> InputError:
    folders = [path.name for path in Path(root).iterdir()] if root and Path(root).is_dir() else []
    siblings = [str(path) for path in Path(name).parent.iterdir()] if Path(name).parent.is_dir() else []
    near = get_close_matches(name, [SYNTHETIC, *kind.named, *READERS, *folders, *siblings, *KNOWN], n=1, cutoff=0.75)
    first, *inside = Path(name).parts
    made = f"{first}/{inside[0]} is what an earlier step writes: do that first" if first == "runs" and inside else ""
    ends = [made, f"did you mean {near[0]!r}?" if near else "", kind.hint]
    return InputError(
        f"data={name!r} is no file, directory or pattern, here or in LONGSPAN_DATA={root!r}, and none of the data sets "
        + "; ".join(filter(None, [", ".join((*kind.named, SYNTHETIC)), *ends]))
    )


def _named_files(name: str, known: DataSet, split: str) -> tuple[Path, ...]:
    root = os.environ.get("LONGSPAN_DATA")
    if not root:
        raise missing(name) or InputError(
            f"data={name!r} names a data set, but the environment variable LONGSPAN_DATA is not set; "
            "set it to the folder of data sets, or give a file or directory"
        )
    names = split_of(known.splits, split)
    if names is None:
        raise InputError(f"split={split!r} is not in data set {name!r}; it has {', '.join(known.splits)}")
    files = tuple(Path(root) / file for file in known.splits[names])
    for file in files:
        if not file.is_file():
            raise missing(name, f"lacks {file.relative_to(root)}") or InputError(
                f"data set {name!r} lacks {file}; check LONGSPAN_DATA={root!r}"
            )
    return files


def _files(path: Path, split: str, kind: Kind[Any]) -> tuple[Path, ...]:
    """Returns the path itself if it is a file, otherwise the files of the split in a folder."""
    if not path.is_dir() or kind.is_one(path):
        return (path,)
    names = ALIASES.get(split, (split,))
    inside = next((path / name for name in names if (path / name).is_dir()), None)
    if inside is not None:
        return tuple(_listed(inside, kind))
    files = _listed(path, kind)
    for begins in (True, False):
        for name in names:
            if chosen := tuple(file for file in files if _names(file, name, begins)):
                return chosen
    if any(_names(file, name, begins) for file in files for name in _SPLITS for begins in (True, False)):
        there = ", ".join(file.name for file in files[:10])
        raise InputError(f"{path} has no file of split={split!r}; it has {there}")
    _note(path, split)
    return tuple(files)


def _listed(folder: Path, kind: Kind[Any]) -> list[Path]:
    """Returns the readable files in a folder, in alphabetical order."""
    wanted = re.compile(rf"[^.].*\.({'|'.join(kind.suffixes)})(\.gz|\.xz)?", re.IGNORECASE)
    try:
        paths = folder.rglob("*") if kind.deep else folder.iterdir()
        files = sorted(file for file in paths if wanted.fullmatch(file.name) and file.is_file())
    except OSError as error:
        reason = f"{error.filename}: {(error.strerror or str(error)).lower()}"
        raise InputError(f"{folder} cannot be searched ({reason}); name the folder that has the data") from None
    if not files:
        known = ", ".join(f".{suffix}" for suffix in kind.suffixes)
        raise InputError(f"{folder} has no file that can be read ({known}, .gz and .xz too); name the folder that does")
    return files


def _names(file: Path, split: str, begins: bool) -> bool:
    """Whether a file's name begins with the split's, or, for records, has it among its parts."""
    first, *others = re.split(r"[-_.]", file.name)
    return first == split if begins else split in others and not _TEXT.search(file.name)


@cache
def _note(folder: Path, split: str) -> None:
    """Logs once that training and validation may be the same."""
    logger.warning("%s: no file names a split, so all of them are read for split=%r", folder, split)
