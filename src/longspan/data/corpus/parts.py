"""A text that is one file, cut by position into training, validation and test part; enwik8 and text8 as published.

Both are 100 million bytes, of which the first 90 million are trained on, 5 million are for validation and the last 5
million are the test (Longformer, Beltagy et al. 2020, and all before it). A character belongs to the part in which its
first byte lies, so that every part is UTF-8.
"""

from __future__ import annotations

import codecs
import gzip
import logging
import lzma
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from longspan.characters import counted
from longspan.data.jsonl import UNREADABLE, check_regular, open_bytes, unreadable
from longspan.data.sources import split_of
from longspan.data.text.archives.archive import DAMAGED, PACKED
from longspan.errors import InputError

logger = logging.getLogger(__name__)

PUBLISHED = {"enwik8": 100_000_000, "text8": 100_000_000}
"""Files by name, and how many bytes they have; each may lie in NAME.zip, as it is published."""
PERCENT = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
"""Where each part begins and ends."""
READ = 1 << 18
"""Bytes read at once."""


def published_file(source: str) -> Path | None:
    """The file of enwik8 or text8 that a source names by itself, its folder or its folder in LONGSPAN_DATA."""
    given, root = Path(source), os.environ.get("LONGSPAN_DATA")
    for path in (given, *([Path(root) / given] if root and not given.is_absolute() else [])):
        name = path.name.removesuffix(".zip")
        if name in PUBLISHED:
            for found in (path, path.with_name(f"{name}.zip"), path / name, path / f"{name}.zip"):
                if found.is_file():
                    return found
    return None


def part_texts(path: Path, split: str, *, any_size: bool) -> Iterator[str]:
    """The texts of one part of a UTF-8 file, plain, `.zip`, `.gz` or `.xz`; line ends stay as they are.

    Args:
        path: the file.
        split: "train", "validation" or "test", or as these are called elsewhere.
        any_size: cut in proportion, whatever the size; False refuses all but that of the published file.

    Raises:
        InputError: another split, another size, bytes that are no UTF-8, an archive of several files, or a damaged one.
    """
    part = split_of(PERCENT, split)
    if part is None:
        raise InputError(f"split={split!r} is none of a text that is cut by position; give one of {', '.join(PERCENT)}")
    name = path.name.removesuffix(".zip")
    try:
        with _opened(path, name) as (file, size):
            if not any_size and size != PUBLISHED[name]:
                raise InputError(
                    f"{path} holds {size:,} bytes, but {name} as it is published has {PUBLISHED[name]:,}; get it "
                    "again, or set task.text_split=position to cut what is there in the same proportions"
                )
            start, end = (size * percent // 100 for percent in PERCENT[part])
            yield from _texts(file, start, end, path)
    except (*UNREADABLE, *DAMAGED) as error:
        raise unreadable(path, error) from None


@contextmanager
def _opened(path: Path, name: str) -> Iterator[tuple[Any, int]]:
    """The file, decompressed on the way, and how many bytes it has."""
    check_regular(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [each for each in archive.infolist() if not each.is_dir()]
            chosen = [each for each in inside if Path(each.filename).name == name] or inside
            if len(chosen) != 1:
                raise InputError(
                    f"{path} holds {counted(len(inside), 'file')}, none of them named {name}; unpack the one to read"
                )
            if chosen[0].compress_type not in PACKED:
                raise InputError(f"{path} is packed in a way that is not read piece by piece; unpack it")
            with archive.open(chosen[0]) as file:
                yield file, chosen[0].file_size
        return
    with open_bytes(path) as file:
        yield file, _count(path) if isinstance(file, gzip.GzipFile | lzma.LZMAFile) else path.stat().st_size


def _count(path: Path) -> int:
    """The bytes of a file that says only when it is read how many there are."""
    with open_bytes(path) as file:
        return sum(len(block) for block in iter(lambda: file.read(READ), b""))


def _texts(file: IO[bytes], start: int, end: int, path: Path) -> Iterator[str]:
    """The characters whose first byte is one of `start … end − 1`."""
    left = start
    while left and (block := file.read(min(READ, left))):
        left -= len(block)
    decoder, left, begun = codecs.getincrementaldecoder("utf-8")(), end - start, start == 0
    while left and (block := file.read(min(READ, left))):
        left -= len(block)
        if not begun:
            block, begun = _without_rest(block), True
        if text := decoder.decode(block):
            yield text
    behind = file.read(3)
    if rest := decoder.decode(behind[: len(behind) - len(_without_rest(behind))]):
        yield rest
    cut = len(decoder.getstate()[0])
    if cut and behind:
        decoder.decode(b"", final=True)  # raises
    elif cut:
        logger.warning("%s ends within a character, which is left out (%s)", path, counted(cut, "byte"))


def _without_rest(block: bytes) -> bytes:
    """Bytes without those in front that go on with a character."""
    first = next((place for place, byte in enumerate(block[:4]) if byte & 0xC0 != 0x80), min(len(block), 4))
    return block[first:] if first < 4 else block
