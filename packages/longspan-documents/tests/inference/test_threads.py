"""How many threads compute: one in small work, as many as before behind it, and always those that the user chose."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from longspan_documents.inference.encoders import CHOSEN_BY, one_thread


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What PyTorch begins with on a machine of four processors, where nobody has chosen."""
    for name in CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def counted_elsewhere() -> int:
    """With how many threads a thread that begins now would compute."""
    counts: list[int] = []
    other = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    other.start()
    other.join()
    return counts[0]


def test_one_thread_inside_and_as_many_as_before_behind(threads: int) -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        assert counted_elsewhere() == threads
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == counted_elsewhere() == threads


def test_an_error_gives_the_threads_back(threads: int) -> None:
    with pytest.raises(ValueError, match="of the block"), one_thread():
        raise ValueError("of the block")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", CHOSEN_BY)
def test_a_number_in_the_environment_wins(threads: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(threads))
    with one_thread():
        assert torch.get_num_threads() == threads


def test_a_number_that_was_set_wins(threads: int) -> None:
    torch.set_num_threads(3)
    with one_thread():
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 3


def test_cores_of_two_processors_each_are_no_choice(threads: int) -> None:
    """MKL, by which PyTorch begins, counts cores."""
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


COUNTED = """
import os
import subprocess
import sys
from longspan_documents.inference.summarize import summarize
text = "It was a warm day in June. Birds sang in the tall trees. A dog ran past the old house. " * 200
summarize(text, 2)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux lists the threads of a process")
def test_a_summary_is_computed_by_the_thread_that_asks_for_it() -> None:
    """As the system lists threads, loading included; numpy and tokenizers are told to start none."""
    others = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
    env = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY} | others
    done = subprocess.run([sys.executable, "-c", COUNTED], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
