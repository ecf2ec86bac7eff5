"""Progress bars: on a terminal only, and none for a model's files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from transformers.utils import logging

from longspan.progress import bars_on_terminals_only, progress_bar, without_file_bars


def test_a_bar_counts_without_a_trace_in_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress_bar(iter("abc"), doing="spelling", unit=" letters")) == ["a", "b", "c"]
    with progress_bar(doing="counting") as bar:
        bar.update(3)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_says_what_is_done(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    was_shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        list(progress_bar(range(3), doing="spelling", unit=" letters", mininterval=0))
    finally:
        if not was_shown:
            logging.disable_progress_bar()
    assert "spelling" in capfd.readouterr().err


def test_bars_of_other_libraries_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that tqdm reads when it is imported."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with bars_on_terminals_only():
        assert os.environ["TQDM_DISABLE"] == "1"
    assert "TQDM_DISABLE" not in os.environ
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with bars_on_terminals_only():
        assert "TQDM_DISABLE" not in os.environ
    monkeypatch.setenv("TQDM_DISABLE", "0")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with bars_on_terminals_only():
        assert os.environ["TQDM_DISABLE"] == "0"


@pytest.mark.parametrize("shown", [True, False])
def test_bars_of_files_come_back_only_where_they_were(shown: bool) -> None:
    was_shown = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    try:
        with without_file_bars():
            assert not logging.is_progress_bar_enabled()
        assert logging.is_progress_bar_enabled() == shown
    finally:
        (logging.enable_progress_bar if was_shown else logging.disable_progress_bar)()


DRIVER = """
import logging, sys, time, warnings
from longspan.progress import logs_beside_bars
from tqdm.auto import tqdm
own = logging.getLogger("other.library")
own.addHandler(logging.StreamHandler())
own.propagate = False
with logs_beside_bars():
    with tqdm(total=4, desc="training", mininterval=0) as bar:
        for step in range(4):
            bar.update(1)
            if step == 1:
                logging.getLogger("longspan.data").warning("log line \\x1b[31m of ours")
                own.warning("log line of another")
                warnings.warn("a warning line")
logging.getLogger("longspan.data").warning("after it")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_log_lines_tear_no_bar_on_a_terminal(on_a_terminal: Callable[..., str]) -> None:
    """On a terminal of 80 columns, as it would show it: each line whole, on a row of its own, the bar below."""
    text = on_a_terminal([sys.executable, "-W", "always", "-c", DRIVER])
    rows = [row.rpartition("\r")[2].rstrip() for row in text.replace("\r\n", "\n").split("\n")]
    assert "log line \ufffd[31m of ours" in rows
    assert "log line of another" in rows
    assert any(row.endswith("UserWarning: a warning line") for row in rows)
    assert "after it" in rows
    assert [row for row in rows if "training:" in row] == [rows[-3]]  # one bar, whole, at the end
    assert rows[-3].startswith("training: 100%")
