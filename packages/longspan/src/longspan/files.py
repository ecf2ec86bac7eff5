"""Safe writing of files: existing files are not overwritten by accident, and new ones appear complete or not at all.

A folder counts as empty if it contains nothing but temporary names of Longspan (`.longspan-<digest>.lock`, `.part`,
`.partial`). Each of them has a lock that ends with its process, so that the next process that writes there deletes what
a killed process left, and never touches what a running one is writing.
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
"""Names of pipes that a shell creates for a command, as by `<(…)`; they end with the process that writes to them."""
OWN = re.compile(r"\.longspan-[0-9a-f]{12}\.(lock|part|partial)")
"""Temporary names, as `temporary` creates them."""
WHOLE = ""
"""Represents a folder itself among the names in it."""
PATIENCE = 10.0
"""Seconds to wait for another process that writes the same file."""

_held: dict[object, int] = {}
"""A token of each lock that this process holds → its descriptor; a forked process holds none of its parent's."""


# Output paths --------------------------------------------------------------------------------------------------------


def output_folder(path: str | os.PathLike[str], argument: str = "output") -> Path:
    """Returns an output folder as an absolute path, with `~` expanded and links resolved; it need not exist. Nothing is
    written.

    Raises:
        InputError: the path is a file or a broken link, or the folder cannot be written.
    """
    folder = _resolved(path, argument)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{argument} {str(path)!r} is a file; give a folder")
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{argument} {str(path)!r} cannot be made: {str(nearest)!r} is a file; give another place")
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(
            f"{argument} {str(path)!r} cannot be written: {str(nearest)!r} is read-only; give another place"
        )
    return folder


def output_file(
    path: str | os.PathLike[str], argument: str = "output", reads: Iterable[str | os.PathLike[str] | None] = ()
) -> Path:
    """Returns an output file as an absolute path, with `~` expanded and links resolved, in an existing folder. Nothing
    is written.

    Args:
        path: the path.
        argument: its name in errors.
        reads: inputs that must not be overwritten: files, folders such as a model's, "-" for standard input; paths that
            do not exist, such as the name of a model, are ignored.

    Raises:
        InputError: the path is a folder, a device or a broken link; the folder is missing or read-only; or the file is
            an input, under any name, or in a folder that is.
    """
    file = _resolved(path, argument)
    if (
        source := next(
            (
                source_path
                for source_path in reads
                if source_path is not None and _is_read(file, os.fspath(source_path))
            ),
            None,
        )
    ) is not None:
        raise InputError(
            f"{argument} {str(path)!r} would overwrite what is read from {str(source)!r}; give another name"
        )
    if file.exists() and not file.is_file():
        reason = "it is a folder" if file.is_dir() else "it is no regular file"
    elif not file.parent.is_dir():
        reason = f"{str(Path(path).parent)!r} is no folder"
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        reason = "its folder is read-only"
    else:
        return file
    raise InputError(f"{argument} {str(path)!r} cannot be written ({reason}); choose another place")


def _is_read(file: Path, source: str) -> bool:
    """Whether an existing file is a source, under any name, or in it."""
    try:
        there, read = file.stat(), os.fstat(sys.stdin.fileno()) if source == "-" else os.stat(source)
        return os.path.samestat(there, read) or any(map(Path(source).samefile, file.parents if source != "-" else ()))
    except (OSError, ValueError, AttributeError):  # missing, no file name, or standard input that is closed
        return False


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Returns `output_folder`, which must be empty or missing.

    Raises:
        InputError: as `output_folder`; or the folder contains files.
    """
    folder = output_folder(path)
    if not is_empty(folder):
        raise InputError(f"output {str(path)!r} exists already and is not empty; give another place, or empty it")
    return folder


def is_empty(folder: Path) -> bool:
    """Whether a folder is missing, or contains nothing but temporary names of Longspan."""
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
    except (OSError, RuntimeError) as error:  # a name too long, a link to itself, `~nobody`
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{argument} {show(text)} cannot be used ({reason.lower()}); give another place") from error


# Atomic writing ------------------------------------------------------------------------------------------------------


@contextmanager
def claimed(folder: Path) -> Iterator[Callable[..., None]]:
    """Context manager for exclusive use of a folder: created with its parents, and locked against other processes.

    Yields a function that deletes entries by name, except those that existed at the beginning. New folders that are
    still empty at the end are removed, so a caller that fails only deletes its own files.

    Raises:
        InputError: another process uses the folder, or the disk is full.
    """
    with _ours(folder, WHOLE, folder):
        before = set(os.listdir(folder))

        def remove(*names: str) -> None:
            for name in set(names) - before:
                _delete(folder / name)

        yield remove


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Context manager for a temporary folder that becomes `folder` at the end, or is deleted after an error.

    A new folder appears in one step. An existing, empty one (it may be a mount point or a current directory) gets the
    finished files, `*config.json` and `index.json` last.

    Raises:
        InputError: the folder is not empty, another process is writing it, or the disk is full.
    """
    folder = output_folder(folder)
    place, name = (folder, WHOLE) if folder.is_dir() else (folder.parent, folder.name)
    with part_of(place, name, "partial", folder) as partial:
        new_folder(folder)
        partial.mkdir()
        yield partial
        new_folder(folder)  # again, since another process may have written there meanwhile
        if place == folder:
            _move_into(partial, folder)
        else:
            partial.rename(folder)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Context manager for an empty, private folder in the system's temporary directory, deleted at the end.

    The folder of a process that was killed is removed by the next one that creates such a folder.

    Raises:
        InputError: the disk is full, or the temporary directory cannot be written.
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
    """Context manager for a temporary path that becomes `file` at the end, atomically and flushed, or is deleted after
    an error.

    Missing folders are created. A file that is replaced keeps its permissions; until then, only this user can read it.

    Raises:
        InputError: another process keeps writing the same file, or the disk is full.
    """
    with part_of(file.parent, file.name, "part", file, PATIENCE) as part:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if file.is_file() else 0o666))
        yield part
        flush(part)
        put_in_place(part, file)


def put_in_place(part: Path, file: Path) -> None:
    """Rename a complete file atomically, with the permissions of the file that it replaces, if there is one."""
    with suppress(FileNotFoundError):
        part.chmod(file.stat().st_mode & 0o777)
    part.replace(file)


def write_whole(texts: Mapping[Path, str]) -> None:
    """Write text files (UTF-8) in this order, each atomically; none of them unless there is room for all."""
    with ExitStack() as stack:
        for file, text in reversed(list(texts.items())):  # they appear when the stack is unwound
            stack.enter_context(whole_file(file)).write_text(text, encoding="utf-8")


def flush(file: Path) -> None:
    """Flush a file's contents to disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


# Implementation -----------------------------------------------------------------------------------------------------


def temporary(name: str, kind: str) -> str:
    """Returns the temporary name for `name`, which is short and matches `OWN`."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()
    return f".longspan-{digest}.{kind}"


@contextmanager
def _ours(place: Path, name: str, what: Path, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Context manager for a folder in which `name` may be written: created with its parents, locked, and cleared of old
    files.

    `what` is the name in errors. Yields what `lock` yields.
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
    """Context manager for a temporary path for `name`, which does not exist at the beginning and is deleted at the
    end."""
    with _ours(place, name, what, patience) as held:
        part = place / temporary(name, kind)
        _delete(part)
        try:
            yield part
        finally:
            if held():
                _delete(part)


def make_folders(folder: Path) -> list[Path]:
    """Create a folder with its parents; returns those that were missing, innermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_empty(missing)
        raise _refused(str(folder), error) from error
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove folders that are empty, innermost first."""
    for folder in folders:
        with suppress(OSError):  # not empty: another process has written there
            folder.rmdir()


def clear_stale(folder: Path) -> None:
    """Remove temporary files and folders whose process has ended; those of running processes are locked, and stay."""
    for name in os.listdir(folder):
        if OWN.fullmatch(name):
            with suppress(InputError, OSError), lock(folder / f"{name.rpartition('.')[0]}.lock", name):
                _delete(folder / f"{name.rpartition('.')[0]}.part")
                _delete(folder / f"{name.rpartition('.')[0]}.partial")


@contextmanager
def lock(file: Path, what: str, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Context manager for a lock file, which the system unlocks when the process ends; deleted at the end.

    Yields a function that returns whether this process holds the lock. In a forked process, which also leaves the block
    when it exits, it returns False, so that the files of the parent are kept.

    Raises:
        InputError: another process holds it for longer than `patience`, in seconds.
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
            file.unlink(
                missing_ok=True
            )  # deleted while locked: a process that has opened it meanwhile notices that it is gone
            del _held[token]
            os.close(descriptor)


def _take(file: Path, what: str) -> int | None:
    """Returns the descriptor of the locked file; None if another process holds the lock."""
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except OSError as error:
            if file.is_symlink():  # an attack: the file would be created or opened elsewhere
                raise InputError(f"{what!r} cannot be written: {str(file)!r} is a link; remove it") from error
            raise _refused(what, error) from error
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(file)):
                return descriptor
        os.close(descriptor)  # removed by its holder between opening and locking


def _refused(what: str, error: OSError) -> InputError:
    reason = REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
    return InputError(f"{what!r} cannot be written: {reason}; choose another place")


def try_lock(descriptor: int) -> bool:
    """Lock an open file until its process ends or closes it; returns False if another process holds the lock."""
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
    """Release the parent's locks in a forked process, such as a data loader."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _move_into(partial: Path, folder: Path) -> None:
    """Rename the entries of `partial` into `folder`; after an error, those that had been moved are deleted."""
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
