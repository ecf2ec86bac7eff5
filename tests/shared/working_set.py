"""The tests of one package to run while working on it: every test function, but not all of its cases."""

from __future__ import annotations

import pytest

LAW = pytest.StashKey[str]()
"""Of a test: the mechanism it checks, if its function checks the same property of every mechanism."""


def mark_further_cases(items: list[pytest.Item]) -> None:
    """Marks as `variant` all cases but the first of each test function; of a law, but the first of each mechanism."""
    seen: set[tuple[str, str]] = set()
    for item in items:
        if not {"variant", "slow"} & set(item.keywords):
            function = item.nodeid.split("[")[0], item.stash.get(LAW, "")
            if function in seen:
                item.add_marker("variant")
            seen.add(function)
