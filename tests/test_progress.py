"""Progress bars: on a terminal only, and none for a model's files."""

from __future__ import annotations

import pytest
from transformers.utils import logging

from longspan.progress import progress_bar, without_file_bars


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
