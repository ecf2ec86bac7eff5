"""Progress bars: shown for training, not for reading and writing a model's files, which is quick."""

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
    """Hides our own progress bars within the context."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def bars_on_terminals_only() -> Iterator[None]:
    """Hides the tqdm bars of all libraries unless standard error is a terminal, by `TQDM_DISABLE`, which tqdm reads on
    its first import; processes started within the context inherit it."""
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
    """Hides the bars of transformers, such as for reading and writing model files, but not Trainer's."""
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
    """Hides transformers' log while it loads a model or a tokenizer: problems are reported as errors."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def progress_bar(things: Iterable[Any] | None = None, *, doing: str, **options: Any) -> Any:
    """Returns a bar that disappears when it is done; shown only on a terminal, so that logs stay clean.

    Args:
        things: the items to iterate over; None counts by `update`.
        doing: the label of the bar.
        options: options of tqdm.
    """
    from tqdm import tqdm

    return tqdm(things, desc=doing, leave=False, disable=True if _hidden.get() else None, **options)


class BesideBars:
    """A stream whose lines are printed above the bars, which are redrawn below; control characters are replaced."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Writes whole lines."""
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream):
            self.stream.write(shown(text))

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def logs_beside_bars() -> Iterator[None]:
    """Prints log lines and warnings for standard output or error above the bars within the context.

    It affects all existing handlers, whichever library created them, and Python's own for lines without a handler.
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
    """Returns a handler that prints above the bars for one that writes to a standard stream; others unchanged."""
    if not isinstance(handler, logging.StreamHandler) or handler.stream not in (sys.stdout, sys.stderr):
        return handler
    above_bars = logging.StreamHandler(BesideBars(handler.stream))
    above_bars.setLevel(handler.level)
    above_bars.setFormatter(handler.formatter)
    above_bars.filters = handler.filters
    return above_bars
