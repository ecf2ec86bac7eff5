"""The documents in a folder, by suffix; and detection of file names passed as texts."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from longspan.characters import counted, on_one_line
from longspan.errors import InputError
from longspan.imports import load_plugins
from longspan.settings import show
from longspan_documents.text.kinds.table import endings

LONGEST_PATH = 4096
"""In characters; longer texts are not looked up as file names."""


def documents_in(folder: Path) -> tuple[list[Path], str | None]:
    """Returns the documents of a folder and its subfolders by name, and a description of skipped files.

    Hidden files and folders are skipped, and links to folders are not followed.

    Raises:
        InputError: there is none, or the folder cannot be read.
    """
    paths: list[Path] = []
    load_plugins()
    readable = endings()
    others: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        if Path(error.filename or "") == folder:
            raise InputError(f"{on_one_line(str(folder))} cannot be read ({error.strerror}); check its permissions")
        others["a folder that cannot be read"] += 1

    for base, folders, names in os.walk(folder, onerror=refuse):
        hidden = [name for name in (*folders, *names) if name.startswith(".")]
        others["hidden"] += len(hidden)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(set(names) - set(hidden)):
            path = Path(base, name)
            if path.suffix.lower() in readable:
                paths.append(path)
            else:
                others[path.suffix.lower() or "no extension"] += 1
    if not paths:
        kinds = ", ".join(sorted(readable))
        raise InputError(f"{on_one_line(str(folder))} holds no document ({kinds}); name a folder with some")
    return paths, passed_over(others)


def passed_over(others: Counter[str]) -> str | None:
    """Describes skipped files: "12 files passed over (7 .py, 3 .png, 2 hidden)"; None if there are none."""
    total = others.total()
    if not total:
        return None
    kinds = [f"{count} {on_one_line(name)}" for name, count in others.most_common(4) if count]
    more = "" if len(+others) <= 4 else ", …"
    return f"{counted(total, 'file')} passed over ({', '.join(kinds)}{more})"


def check_not_path(text: str, name: str, remedy: str = "give {path}", *, folders: bool = False) -> None:
    """Raises `InputError` for a text that is a file name, where the caller should have passed a `Path`.

    This is a single line without surrounding spaces that is an existing file, or a single word with the suffix of a
    document. A sentence that ends in a file name is a text, unless a file has the whole sentence as its name.

    Args:
        text: the text passed by the caller.
        name: name of the argument.
        remedy: what to do instead; `{path}` is replaced by the `Path`.
        folders: whether existing folders are refused too.

    Raises:
        InputError: it names a file, or a folder if `folders` is True.
    """
    if len(text) > LONGEST_PATH or text.strip() != text or len(text.splitlines()) != 1:
        return
    folder = folders and os.path.isdir(text)
    one_word = len(text.split()) == 1
    if not (folder or os.path.isfile(text) or (one_word and Path(text).suffix.lower() in endings())):
        return
    if "://" in text:
        remedy = "download the file and give its Path"
    raise InputError(
        f"{name} is {show(text)}, the name of a {'folder' if folder else 'file'}; "
        f"{remedy.format(path=f'Path({show(text)})')}, or end it with a line break if these words are the text"
    )
