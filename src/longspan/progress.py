"""Progress bars where they help: training has one; reading and writing a model's files is too quick for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

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
def without_file_bars() -> Iterator[None]:
    """Hide the bars that transformers draws, such as for every model file it reads or writes; Trainer's own stays."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def progress_bar(things: Iterable[Any] | None = None, *, doing: str, **options: Any) -> Any:
    """A bar that goes away when it is done; on a terminal only, so that a log stays clean.

    Args:
        things: what is counted as it is gone through; None counts by `update`.
        doing: the word before the bar.
        options: of tqdm.
    """
    from tqdm import tqdm

    return tqdm(things, desc=doing, leave=False, disable=True if _hidden.get() else None, **options)
