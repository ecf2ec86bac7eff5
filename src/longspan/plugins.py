"""Names that others bring: packages that announce modules to be imported.

A package says in its metadata which of its modules register something, and nobody needs to import it by hand::

    [project.entry-points."longspan.plugins"]
    anything = "my_package.my_module"

Such modules are imported the first time that a name is asked for which the library itself does not have. What they call
is `longspan.register`, in `longspan.registering`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from longspan.errors import InputError

GROUP = "longspan.plugins"
"""The group of entry points that packages use."""

_loaded: set[str] = set()


def find(table: Mapping[str, Any], name: str) -> Any:
    """The entry of a table, after loading the plugins where the table itself does not have it; None without one."""
    if name not in table:
        load_plugins()
    return table.get(name)


def load_plugins() -> None:
    """Import what installed packages announce under `longspan.plugins`, each once.

    Raises:
        InputError: one of them cannot be loaded; the sentence names its package.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (_package(entry), entry.name)):
        key = f"{_package(entry)}:{entry.name}={entry.value}"
        if key in _loaded:
            continue
        _loaded.add(key)  # before loading: its own look-ups may come back here
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            _loaded.discard(key)  # so that the next call says so again
            reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(". :")
            raise InputError(
                f"the plugin {entry.name!r} of package {_package(entry)!r} cannot be loaded ({reason}); repair or "
                "uninstall that package"
            ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
