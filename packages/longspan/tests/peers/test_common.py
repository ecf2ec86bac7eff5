"""transformers' own tests of models and configurations, on ours: whatever does not pass stands in a table with why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import transformers

from .expected import FAILING, PASSING, SKIPPED, VERSION, page
from .sdist import NotThere, imported, unpacked
from .testers import CAUSAL, KINDS, MECHANISMS, Outcomes, run

PAGE = Path(__file__).parents[4] / "docs" / "transformers.md"


@pytest.fixture(autouse=True)
def _their_warnings() -> Iterator[None]:
    """Some of their tests read what is logged, whatever level another test has left."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def their_tests(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    """transformers' files of common tests; pytest's cache keeps them."""
    if transformers.__version__ != VERSION:
        pytest.skip(f"the tables are about the tests of transformers {VERSION}, here is {transformers.__version__}")
    cache = request.config.cache
    if cache is None:
        pytest.skip("pytest has no cache to keep transformers' tests in (-p no:cacheprovider)")
    try:
        folder = unpacked(Path(cache.mkdir("transformers_tests")))
    except NotThere as error:
        pytest.skip(str(error))
    files = ("test_modeling_common", "test_configuration_common")
    for file in files:
        for name in re.findall(
            r"^ *@(?:pytest\.)?mark\.(\w+)$", (folder / f"{file}.py").read_text("utf-8"), re.MULTILINE
        ):
            request.config.addinivalue_line("markers", f"{name}: of transformers' own tests")
    modeling, configuration = (imported(folder, file) for file in files)
    return modeling, configuration


@cache
def results(kind: str, mechanism: str, *files: ModuleType) -> tuple[Outcomes, int]:
    """Each run once in a process."""
    return run(kind, mechanism, *files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [(mechanism, kind) for mechanism in MECHANISMS for kind in KINDS if kind != "causal" or mechanism in CAUSAL],
)
def test_transformers_tests_pass_but_for_those_in_the_table(mechanism, kind, their_tests):
    outcomes, passed = results(kind, mechanism, *their_tests)
    wanted = {test for of, test in FAILING if of == kind}
    surprises = {test: text for test, text in outcomes.faults.items() if test not in wanted}
    assert not surprises, "\n\n".join(surprises.values())
    assert wanted <= outcomes.faults.keys(), "these pass now: take them out of the table"
    unexplained = [reason for reason in outcomes.skips.values() if not any(re.search(each, reason) for each in SKIPPED)]
    assert not unexplained
    assert passed == PASSING[kind]


@pytest.mark.slow
def test_no_reason_is_left_over(their_tests):
    """Each kind once, with the mechanism that is quickest."""
    found = {reason for kind in KINDS for reason in results(kind, "full", *their_tests)[0].skips.values()}
    assert not [each for each in SKIPPED if not any(re.search(each, reason) for reason in found)]


def test_the_page_says_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page()
