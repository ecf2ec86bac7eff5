"""The process that lays out a PDF file, ended from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from longspan import InputError
from longspan_documents.text.pdf.lines import lines_of_pages

psutil = pytest.importorskip("psutil", reason="the process is found with psutil, which comes with accelerate")


@contextmanager
def killing(times: int) -> Iterator[list[int]]:
    """While the block runs, kill so many of the processes that this one starts; gives the numbers of those killed."""
    killed: list[int] = []
    over = threading.Event()
    before = {child.pid for child in psutil.Process().children()}

    def watch() -> None:
        while len(killed) < times and not over.is_set():
            for child in psutil.Process().children():
                if child.pid not in before:
                    before.add(child.pid)
                    child.kill()
                    killed.append(child.pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_one_that_was_killed_is_started_again(make_pdf: Callable[..., bytes]) -> None:
    """Once, since what kills it may be the system, for want of memory that this file takes."""
    data = make_pdf("The roses were planted in 1921 by Anna Weber.")
    undisturbed = lines_of_pages(data, "a.pdf")
    with killing(1) as killed:
        assert lines_of_pages(data, "a.pdf") == undisturbed
    assert len(killed) == 1
    sentence = r"^a\.pdf cannot be read: the process that .* was ended by SIGKILL 2 times, .* memory runs out"
    with killing(2) as killed, pytest.raises(InputError, match=sentence):
        lines_of_pages(data, "a.pdf")
    assert len(killed) == 2
