"""The documents in a folder, by the endings of their names."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from longspan.characters import counted, on_one_line
from longspan.data.text.kinds.table import endings
from longspan.errors import InputError
from longspan.imports import load_plugins


def documents_in(folder: Path) -> tuple[list[Path], str | None]:
    """The documents of a folder by name, those of its folders too, and what was passed over, in words.

    Hidden files and folders are passed over, links to folders are not followed.

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
    """What of a folder was not read: "12 files passed over (7 .py, 3 .png, 2 hidden)"; None where that is nothing."""
    total = others.total()
    if not total:
        return None
    kinds = [f"{count} {on_one_line(name)}" for name, count in others.most_common(4) if count]
    more = "" if len(+others) <= 4 else ", …"
    return f"{counted(total, 'file')} passed over ({', '.join(kinds)}{more})"
