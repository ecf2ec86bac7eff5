"""Everything that is written goes through here: what was there stays, and what is new appears whole or not at all.

A folder counts as empty only if it is: nothing in it but temporary names of our own (`.longspan-<digest>.lock`,
`.part`, `.partial`). Beside each of them lies a lock that ends with its process, so that what a killed process left is
cleared by the next one that writes there, and what a living one is writing is never touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from longspan.errors import REASONS, InputError, write_errors
from longspan.settings import show

PIPES = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")
"""Names of pipes that a shell makes for a command, as by `<(…)`; they end with what writes to them."""
OWN = re.compile(r"\.longspan-[0-9a-f]{12}\.(lock|part|partial)")
"""Temporary names, as `temporary` makes them."""
WHOLE = ""
"""Stands for a folder itself among the names in it."""
PATIENCE = 10.0
"""Seconds to wait for another process that writes the very same file."""

_held: dict[object, int] = {}
"""A token of each lock that this process holds → its descriptor; a forked process holds none of its parent's."""


# What may be written to ----------------------------------------------------------------------------------------------


def output_folder(given: str | os.PathLike[str], argument: str = "output") -> Path:
    """The folder that is meant, absolute, `~` expanded and links followed; it need not exist. Nothing is written.

    Raises:
        InputError: a file or a link to nowhere is in the way, or the folder could not be written.
    """
    folder = _resolved(given, argument)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{argument} {str(given)!r} is a file; give a folder")
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{argument} {str(given)!r} cannot be made: {str(nearest)!r} is a file; give another place")
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(
            f"{argument} {str(given)!r} cannot be written: {str(nearest)!r} is read-only; give another place"
        )
    return folder


def output_file(
    given: str | os.PathLike[str], argument: str = "output", reads: Iterable[str | os.PathLike[str] | None] = ()
) -> Path:
    """The file that is meant, absolute, `~` expanded and links followed, in a folder that exists. Nothing is written.

    Args:
        given: the path.
        argument: what it is called in errors.
        reads: what is read meanwhile: files, folders such as a model's, "-" for standard input; what does not exist,
            such as the name of a model, is no matter.

    Raises:
        InputError: a folder, a device or a link to nowhere is in the way, or the folder is missing or read-only; or it
            is what is read, by whatever name, or a file in a folder that is.
    """
    file = _resolved(given, argument)
    if (source := next((one for one in reads if one is not None and _is_read(file, os.fspath(one))), None)) is not None:
        raise InputError(
            f"{argument} {str(given)!r} would overwrite what is read from {str(source)!r}; give another name"
        )
    if file.exists() and not file.is_file():
        reason = "it is a folder" if file.is_dir() else "it is no regular file"
    elif not file.parent.is_dir():
        reason = f"{str(Path(given).parent)!r} is no folder"
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        reason = "its folder is read-only"
    else:
        return file
    raise InputError(f"{argument} {str(given)!r} cannot be written ({reason}); choose another place")


def _is_read(file: Path, source: str) -> bool:
    """Whether a file that exists is a source, by the same or another name, or lies in it."""
    try:
        there, read = file.stat(), os.fstat(sys.stdin.fileno()) if source == "-" else os.stat(source)
        return os.path.samestat(there, read) or any(map(Path(source).samefile, file.parents if source != "-" else ()))
    except (OSError, ValueError, AttributeError):  # not there, no name of a file, standard input that is none
        return False


def new_folder(given: str | os.PathLike[str]) -> Path:
    """`output_folder`, where nothing lies yet.

    Raises:
        InputError: as `output_folder`; there is something in it.
    """
    folder = output_folder(given)
    if not is_empty(folder):
        raise InputError(f"output {str(given)!r} exists already and is not empty; give another place, or empty it")
    return folder


def is_empty(folder: Path) -> bool:
    """Whether a folder is missing, or holds nothing but temporary names of our own."""
    return not folder.exists() or all(OWN.fullmatch(name) for name in os.listdir(folder))


def _resolved(given: str | os.PathLike[str], argument: str) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{argument} is {show(given)}, of type {type(given).__name__}; give a path")
    text = os.fspath(given)
    if not isinstance(text, str):  # a path of bytes
        raise InputError(f"{argument} {text!r} is bytes; give a text")
    if not text.strip():
        raise InputError(f"{argument} is {show(text)}, which names nothing; give a path")
    if "\0" in text:
        raise InputError(f"{argument} {text!r} holds a NUL character; give a plain path")
    try:
        path = Path(given).expanduser()
        for place in (path, *path.parents):
            if place.is_symlink() and not place.exists():
                raise InputError(
                    f"{argument} {text!r}: {str(place)!r} is a link to {os.readlink(place)!r}, which does not exist; "
                    "make that folder first, or give another place"
                )
        return path.resolve()
    except UnicodeEncodeError as error:
        raise InputError(f"{argument} {text!r} holds half a character; give a plain path") from error
    except (OSError, RuntimeError) as error:  # a name too long, a link that points to itself, `~nobody`
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{argument} {show(text)} cannot be used ({reason.lower()}); give another place") from error


# Whole or not at all -------------------------------------------------------------------------------------------------


@contextmanager
def claimed(folder: Path) -> Iterator[Callable[..., None]]:
    """A folder that is ours while the block runs: made with its parents, and locked against other processes.

    Gives a function that deletes entries by their names, except those that were there when the claim began. Folders
    that were made and are still empty at the end are gone again, so that whoever fails only removes his own files.

    Raises:
        InputError: another process has the folder, or the disk is full.
    """
    with _ours(folder, WHOLE, folder):
        before = set(os.listdir(folder))

        def remove(*names: str) -> None:
            for name in set(names) - before:
                _delete(folder / name)

        yield remove


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill: it becomes `folder` at the end, or is gone on an error.

    A new folder appears in one step. One that exists already (empty: it may be a mount point, or where somebody
    stands) gets the finished files, `*config.json` and `index.json` last.

    Raises:
        InputError: the folder is not empty, another process is filling it, or the disk is full.
    """
    folder = output_folder(folder)
    place, name = (folder, WHOLE) if folder.is_dir() else (folder.parent, folder.name)
    with part_of(place, name, "partial", folder) as partial:
        new_folder(folder)
        partial.mkdir()
        yield partial
        new_folder(folder)  # it took a while: somebody else may have put something there
        if place == folder:
            _move_into(partial, folder)
        else:
            partial.rename(folder)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder for this user alone among the system's temporary ones, gone at the end.

    That of a process that was killed is removed by the next one that takes such a folder.

    Raises:
        InputError: the disk is full, or the folder of temporary files cannot be written.
    """
    place = Path(tempfile.gettempdir())
    name = f"{os.getpid()} {secrets.token_hex(8)}"
    folder = place / temporary(name, "partial")
    with lock(place / temporary(name, "lock"), str(place), PATIENCE) as held:
        try:
            with write_errors(place):
                clear_stale(place)
                folder.mkdir(mode=0o700)
            yield folder
        finally:
            if held():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A path to write to: it becomes `file` at the end, in one step and on disk, or is gone on an error.

    Missing folders are made. A file that is replaced keeps its permissions; nobody else reads the new one before.

    Raises:
        InputError: another process keeps writing the same file, or the disk is full.
    """
    with part_of(file.parent, file.name, "part", file, PATIENCE) as part:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if file.is_file() else 0o666))
        yield part
        flush(part)
        put_in_place(part, file)


def put_in_place(part: Path, file: Path) -> None:
    """Rename a file that is whole, in one step, with the permissions of the one that it replaces, if there is one."""
    with suppress(FileNotFoundError):
        part.chmod(file.stat().st_mode & 0o777)
    part.replace(file)


def write_whole(texts: Mapping[Path, str]) -> None:
    """Write text files (UTF-8), each whole or not at all, in this order; none of them unless there is room for all."""
    with ExitStack() as stack:
        for file, text in reversed(list(texts.items())):  # they appear as the stack is unwound
            stack.enter_context(whole_file(file)).write_text(text, encoding="utf-8")


def flush(file: Path) -> None:
    """Return once a file's contents are on disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


# How -----------------------------------------------------------------------------------------------------------------


def temporary(name: str, kind: str) -> str:
    """The temporary name that belongs to `name`: short whatever its length, and known as ours by `OWN`."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()
    return f".longspan-{digest}.{kind}"


@contextmanager
def _ours(place: Path, name: str, what: Path, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """A place where `name` is ours to write: made with its parents, locked, and cleared; `what` stands in errors.

    Yields what `lock` yields.
    """
    made = make_folders(place)
    try:
        with write_errors(what), lock(place / temporary(name, "lock"), str(what), patience) as held:
            clear_stale(place)
            yield held
    finally:
        remove_empty(made)


@contextmanager
def part_of(place: Path, name: str, kind: str, what: Path, patience: float = 0.0) -> Iterator[Path]:
    """A path that belongs to `name` and where nothing is, for what becomes `what`; gone at the end."""
    with _ours(place, name, what, patience) as held:
        part = place / temporary(name, kind)
        _delete(part)
        try:
            yield part
        finally:
            if held():
                _delete(part)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder with its parents; return those that were missing, innermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_empty(missing)
        raise _refused(str(folder), error) from error
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, as far as they are empty."""
    for folder in folders:
        with suppress(OSError):  # not empty: somebody has moved in
            folder.rmdir()


def clear_stale(folder: Path) -> None:
    """Remove temporary files and folders whose process has ended; those of a living one are locked, and stay."""
    for name in os.listdir(folder):
        if OWN.fullmatch(name):
            with suppress(InputError, OSError), lock(folder / f"{name.rpartition('.')[0]}.lock", name):
                _delete(folder / f"{name.rpartition('.')[0]}.part")
                _delete(folder / f"{name.rpartition('.')[0]}.partial")


@contextmanager
def lock(file: Path, what: str, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Hold a lock file, which the system unlocks when the process ends, however it ends; gone afterwards.

    Yields a function that returns whether this process holds it: a forked one, which ends the block too where it
    discards what it inherited, does not, and leaves what belongs to its parent alone.

    Raises `InputError` where another process holds it for longer than `patience`, in seconds.
    """
    until = time.monotonic() + patience
    while (descriptor := _take(file, what)) is None:
        if time.monotonic() > until:
            raise InputError(f"another process is writing {what!r}; wait until it has ended, or give another place")
        time.sleep(0.05)
    token = object()
    _held[token] = descriptor
    try:
        yield lambda: token in _held
    finally:
        if token in _held:
            file.unlink(missing_ok=True)  # while it is locked: whoever opened it meanwhile sees that it is gone
            del _held[token]
            os.close(descriptor)


def _take(file: Path, what: str) -> int | None:
    """The descriptor of the lock file, locked; None where somebody else has it."""
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except OSError as error:
            if file.is_symlink():  # somebody wants us to make or open a file elsewhere
                raise InputError(f"{what!r} cannot be written: {str(file)!r} is a link; remove it") from error
            raise _refused(what, error) from error
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(file)):
                return descriptor
        os.close(descriptor)  # it was removed by its holder between opening and locking


def _refused(what: str, error: OSError) -> InputError:
    reason = REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
    return InputError(f"{what!r} cannot be written: {reason}; choose another place")


def try_lock(descriptor: int) -> bool:
    """Lock an open file until its process ends or closes it; whether nobody had locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _let_go() -> None:
    """A forked process (a worker that loads data) does not keep its parent's locks alive."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _move_into(partial: Path, folder: Path) -> None:
    """Rename what is in `partial` into `folder`; on an error what had been moved is gone again."""
    moved: list[Path] = []
    try:
        for file in sorted(
            partial.iterdir(), key=lambda path: (path.name.endswith(("config.json", "index.json")), path)
        ):
            file.rename(folder / file.name)
            moved.append(folder / file.name)
    except BaseException:
        for path in moved:
            _delete(path)
        raise


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
