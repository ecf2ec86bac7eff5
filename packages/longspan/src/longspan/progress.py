"""Progress bars where they help: training has one; reading and writing a model's files is too quick for one."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from longspan.characters import shown

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide our own bars: what is done inside is too quick for one."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def bars_on_terminals_only() -> Iterator[None]:
    """Unless standard error is a terminal, hide the bars of every library that draws them by tqdm, which reads
    `TQDM_DISABLE` when it is first imported; processes that are started meanwhile have it too."""
    if sys.stderr.isatty() or "TQDM_DISABLE" in os.environ:
        yield
        return
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        os.environ.pop("TQDM_DISABLE", None)


@contextmanager
def without_file_bars() -> Iterator[None]:
    """Hide the bars that transformers draws, such as for every model file it reads or writes; Trainer's own stays."""
    from transformers.utils import logging as transformers_logging

    were_shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def without_loading_notes() -> Iterator[None]:
    """Hide what transformers logs while it loads a model or a tokenizer: what is wrong is said once, as an error."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def progress_bar(things: Iterable[Any] | None = None, *, doing: str, **options: Any) -> Any:
    """A bar that goes away when it is done; on a terminal only, so that a log stays clean.

    Args:
        things: what is counted as it is gone through; None counts by `update`.
        doing: the word before the bar.
        options: of tqdm.
    """
    from tqdm import tqdm

    return tqdm(things, desc=doing, leave=False, disable=True if _hidden.get() else None, **options)


class BesideBars:
    """A stream whose lines stand above the bars, which are drawn again below; nothing in them steers the terminal."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Write whole lines."""
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream):
            self.stream.write(shown(text))

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


@contextmanager
def logs_beside_bars() -> Iterator[None]:
    """While the block runs, log lines and warnings that go to standard output or error tear no bar.

    Handlers that exist by then are looked at, whichever library made them, and Python's own for lines without any.
    """
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    before = [(logger, logger.handlers) for logger in loggers]
    for logger, handlers in before:
        logger.handlers = [_beside_bars(handler) for handler in handlers]
    last, show = logging.lastResort, warnings.showwarning
    logging.lastResort = None if last is None else _beside_bars(last)

    def show_beside(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        BesideBars(sys.stderr if file is None else file).write(text)

    warnings.showwarning = show_beside
    try:
        yield
    finally:
        logging.lastResort, warnings.showwarning = last, show
        for logger, handlers in before:
            logger.handlers = handlers


def _beside_bars(handler: Any) -> Any:
    """A handler that writes beside bars what this one would write to a standard stream; others as they are."""
    if not isinstance(handler, logging.StreamHandler) or handler.stream not in (sys.stdout, sys.stderr):
        return handler
    beside = logging.StreamHandler(BesideBars(handler.stream))
    beside.setLevel(handler.level)
    beside.setFormatter(handler.formatter)
    beside.filters = handler.filters
    return beside
