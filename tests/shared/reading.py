"""What a reader of the code meets: the files and functions of the packages through which a call passes."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import longspan
import longspan_documents
import longspan_papers

ROOTS = tuple(str(Path(package.__file__).parent) for package in (longspan, longspan_documents, longspan_papers))


def functions_crossed(call: Callable[[], object]) -> dict[str, set[str]]:
    """File → functions that run in `call`, in all threads; bodies of classes, comprehensions and lambdas are parts of
    what they stand in."""
    crossed: defaultdict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(ROOTS):
            crossed[code.co_filename.rpartition("/src/")[2]].add(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return dict(crossed)
