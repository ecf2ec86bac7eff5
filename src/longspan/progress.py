"""Progress bars where they help: training has one; reading and writing a model's files is too quick for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def without_file_bars() -> Iterator[None]:
    """Hide the bar that transformers draws for every model file it reads or writes; Trainer's own stays."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
