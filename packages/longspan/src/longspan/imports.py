"""Lazy imports: optional libraries, tables of names, plugins, and actions that wait for a library.

`require` imports an optional library on first use, with one clear error if it is missing or broken; `importing` wraps
code that imports libraries itself.

A `Table` maps names to values and imports each value on first use. Installed packages add to a table by entry points in
the group `longspan.TABLE`, so that no package imports another that depends on it::

    [project.entry-points."longspan.tasks"]
    my_task = "my_package.tasks:MyTask"

`late_names` imports the public names of a package on first use.

`find` and `load_plugins` import modules that packages announce in their metadata::

    [project.entry-points."longspan.plugins"]
    anything = "my_package.my_module"

Such a module is imported the first time that an unknown name is looked up. It calls `longspan.register`, in
`longspan.registering`.

`after_import` runs an action as soon as another library has been imported, without importing it: `import longspan` must
register its models with transformers, yet `longspan --help` must not wait for transformers. So the registration is
delayed until transformers itself is imported, by whatever module and in whatever order.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from longspan.errors import InputError, last_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


LONGEST_NAME = 80
"""Maximum characters of an unknown name in an error message."""


class MissingLibraryError(InputError):
    """An optional library is not installed, or cannot be imported."""


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Imports an optional library.

    Args:
        module: the module, such as "bs4".
        extra: the extra of this package that installs it.
        purpose: what needs it, as the subject of the sentence: "reading HTML".

    Raises:
        MissingLibraryError: see `importing`.
    """
    with importing(extra=extra, purpose=purpose, module=module):
        return import_module(module)


@contextmanager
def importing(*, extra: str, purpose: str, module: str | None = None) -> Iterator[None]:
    """Wraps code that imports libraries of an extra.

    Args:
        extra, purpose: as in `require`.
        module: the library that is imported; None for code that may import several.

    Raises:
        MissingLibraryError: instead of every `ImportError` from inside; the message names the library and what to
            install.
    """
    try:
        yield
    except ImportError as error:
        install = f"pip install 'longspan[{extra}]'"
        failed = (error.name or "").partition(".")[0]
        library = (module or failed).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and failed == library:
            problem = f"{purpose} needs the {extra!r} extra; install it with: {install}"
        elif isinstance(error, ModuleNotFoundError):  # a dependency of the library itself
            problem = f"{purpose} needs {failed or library}, which is missing; install it with: {install}"
        else:
            problem = (
                f"{purpose} needs {library or 'a library'}, which cannot be imported ({last_line(error)}); repair it "
                f"with: pip install --upgrade 'longspan[{extra}]' {library}".rstrip()
            )
        raise MissingLibraryError(problem) from error


Value = TypeVar("Value")


class UnknownNameError(InputError, KeyError):
    """An unknown name of a table, with the most similar known one; a `KeyError`, as for mappings."""

    def __init__(self, name: Any, table: Table[Any]) -> None:
        known = sorted(table)
        like = get_close_matches(name[:LONGEST_NAME], known, n=1) if isinstance(name, str) else []
        remedy = f"did you mean {like[0]!r}?" if like else f"choose one of {', '.join(known)}"
        shown = repr(name[:LONGEST_NAME]) if isinstance(name, str) else f"name of type {type(name).__name__}"
        super().__init__(f"{table.name} have no {shown}; {remedy}")

    __str__ = InputError.__str__  # that of `KeyError` puts quotes around it


class Table(MutableMapping[str, Value]):
    """A mapping of names to values; a value that is a path, "module:attribute", is imported on first use.

    Names of the table itself come first, then those that installed packages add by entry points in the group
    `longspan.NAME`, which are read when an unknown name is looked up or all names are listed. Listing names imports no
    value; `values` and `items` import all of them.

    Args:
        name: name of the table, such as "tasks".
        own: the entries of the package that defines the table.
    """

    def __init__(self, name: str, own: Mapping[str, Any]) -> None:
        self.name = name
        self._entries: dict[str, Any] = dict(own)
        self._added: dict[str, EntryPoint] | None = None

    def added(self) -> dict[str, EntryPoint]:
        """Returns the entry points of installed packages under names that the table itself does not have; read once."""
        if self._added is None:
            self._added = {entry.name: entry for entry in added(self.name) if entry.name not in self._entries}
        return self._added

    def __getitem__(self, name: str) -> Value:
        try:
            if name not in self._entries:
                self._entries[name] = load(self.added()[name])
        except (KeyError, TypeError):  # TypeError: an unhashable key
            raise UnknownNameError(name, self) from None
        value = self._entries[name]
        if isinstance(value, str):
            value = self._entries[name] = imported(value)
        return value

    def __setitem__(self, name: str, value: Value) -> None:
        self._entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        later = self.added()  # in the table's order, whatever has been imported already
        return iter([*(name for name in self._entries if name not in later), *later])

    def __len__(self) -> int:
        return len({**self._entries, **self.added()})

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.added()

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]  # not `Mapping.get`, which hides a KeyError of an import


def added(table: str) -> tuple[EntryPoint, ...]:
    """Returns the entry points that installed packages add to a table, ordered by package and name."""
    from importlib.metadata import entry_points  # late: `import longspan` need not wait for it

    return tuple(sorted(entry_points(group=f"longspan.{table}"), key=lambda entry: (_package(entry), entry.name)))


def imported(place: str) -> Any:
    """Imports the object at "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def late_names(package: str, places: Iterable[str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package that imports objects at "module:attribute" when their names are
    accessed."""
    by_name = {place.partition(":")[2]: place for place in places}

    def get(name: str) -> Any:
        if name not in by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = imported(by_name[name])
        setattr(sys.modules[package], name, value)
        return value

    return get


_loaded: set[str] = set()


def find(table: Mapping[str, Any], name: str) -> Any:
    """Returns the entry of a table, loading plugins if the table does not have it; None if there is none."""
    if name not in table:
        load_plugins()
    return table.get(name)


def load_plugins() -> None:
    """Imports the modules that installed packages announce under `longspan.plugins`, each once.

    Raises:
        InputError: one of them cannot be loaded; the message names its package.
    """
    for entry in added("plugins"):
        key = f"{_package(entry)}:{entry.name}={entry.value}"
        if key in _loaded:
            continue
        _loaded.add(key)  # before loading: its own look-ups may come back here
        try:
            load(entry)
        except InputError:
            _loaded.discard(key)  # so that the next call says so again
            raise


def load(entry: EntryPoint) -> Any:
    """Loads the object of an entry point.

    Raises:
        InputError: it cannot be loaded; the message names its package.
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(". :")
        raise InputError(
            f"the plugin {entry.name!r} of package {_package(entry)!r} cannot be loaded ({reason}); repair or "
            "uninstall that package"
        ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def after_import(modules: Sequence[str], action: Callable[[], object]) -> None:
    """Calls `action` once, when one of these modules has been imported: immediately if one already is.

    It is called when no module of their packages or of this one is partially imported any more, so that the action may
    import anything from them: a lazy package such as transformers imports its parts from within each other. Exceptions
    of `action` propagate from the import that triggered it, and it is not called again.

    Args:
        modules: full names.
        action: without arguments; a second call with an action of the same name has no effect while the first waits.
    """
    if any(name in sys.modules for name in modules):
        action()
    elif not any(isinstance(finder, _Watch) and finder.name == action.__qualname__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch(modules, action))


class _Watch(MetaPathFinder):
    """A finder that finds nothing itself, but observes when modules of some packages finish importing."""

    def __init__(self, modules: Sequence[str], action: Callable[[], object]) -> None:
        self.modules, self.action, self.name = modules, action, action.__qualname__
        self.packages = {__name__.partition(".")[0], *(name.partition(".")[0] for name in modules)}
        self.running = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Returns the spec of the other finders for modules of the packages, wrapped; None for any other module."""
        package = name.partition(".")[0]
        if package not in self.packages and not package.startswith("longspan_"):
            return None
        # Those before it have been asked, and of two watches the first asks the second, not each the other.
        finders = list(sys.meta_path)
        others = finders[finders.index(self) + 1 :] if self in finders else finders
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(spec)
        return spec

    def _wrap(self, spec: ModuleSpec) -> None:
        """Counts the nesting depth of imports while the module runs; back at depth 0, all of them are complete."""
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader is as it was
            self.running.depth = getattr(self.running, "depth", 0) + 1
            try:
                run(module)
            finally:
                self.running.depth -= 1
            if not self.running.depth and self in sys.meta_path and any(name in sys.modules for name in self.modules):
                sys.meta_path.remove(self)
                self.action()

        loader.exec_module = exec_module
