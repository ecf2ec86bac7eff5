"""How many threads PyTorch computes with, where several would only wait for each other.

An operation on several threads ends when the last of them has, and until then the others wait, spinning. A small
operation is over sooner than they have met; and where another process wants the same processors, one of them does not
run at all while the others spin, in every one of thousands of operations. So what consists of small operations is
computed by one thread, unless its user has chosen a number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables of the environment by which a user chooses a number of threads."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this thread compute alone in a block, and with as many threads as before behind it.

    A number that the user has chosen stays: in the environment, or by `torch.set_num_threads` (where it is not the one
    that PyTorch begins with, which cannot be told from a choice). Other threads of the process keep theirs.
    """
    import torch

    before = torch.get_num_threads()
    if before == 1 or not torch.backends.openmp.is_available() or _is_chosen(before):
        yield
        return
    _set_here(1, elsewhere=before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_chosen(count: int) -> bool:
    """Whether a number of threads is the user's own, and not what PyTorch begins with: a thread for each processor that
    this process may run on, or for each core, of which a processor may be half."""
    if any(os.environ.get(name) for name in CHOSEN_BY):
        return True
    everywhere = os.cpu_count() or 1
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else everywhere
    return count not in {everywhere, here, everywhere // 2, here // 2}


def _set_here(count: int, *, elsewhere: int) -> None:
    """Let this thread compute with `count` threads, and those that begin later with as many as before.

    PyTorch keeps the number by thread, and the last one that was set anywhere for threads that are new: so another
    thread sets it again.
    """
    import torch

    torch.set_num_threads(count)
    other = threading.Thread(target=torch.set_num_threads, args=(elsewhere,))
    other.start()
    other.join()
