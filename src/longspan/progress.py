"""Progress bars where they help: training has one; reading and writing a model's files is too quick for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging


@contextmanager
def without_file_bars() -> Iterator[None]:
    """Hide the bars that transformers draws, such as for every model file it reads or writes; Trainer's own stays."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def progress_bar(things: Iterable[Any] | None = None, *, doing: str, **options: Any) -> Any:
    """A bar that goes away when it is done, as transformers draws it; on a terminal only, so that a log stays clean.

    Args:
        things: what is counted as it is gone through; None counts by `update`.
        doing: the word before the bar.
        options: of tqdm.
    """
    return logging.tqdm(things, desc=doing, leave=False, disable=None, **options)
