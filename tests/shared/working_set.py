"""The tests of one package to run while working on it: every test function, but not all of its cases."""

from __future__ import annotations

import pytest

LAW = pytest.StashKey[str]()
"""Of a test: the mechanism it checks, if its function checks the same property of every mechanism."""
CASES = 2
"""The number kept of any other test function: its first and its last, which are mostly the plainest and the oddest."""


def mark_further_cases(items: list[pytest.Item]) -> None:
    """Marks as `variant` all cases of a law but the first of each mechanism, and of any other test function all but
    `CASES`."""
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if not {"variant", "slow"} & set(item.keywords):
            groups.setdefault((item.nodeid.split("[")[0], item.stash.get(LAW, "")), []).append(item)
    for (_, law), cases in groups.items():
        kept = {0} if law else {round(step * (len(cases) - 1) / (CASES - 1)) for step in range(CASES)}
        for index, item in enumerate(cases):
            if index not in kept:
                item.add_marker("variant")
