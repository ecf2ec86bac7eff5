"""Optional libraries: every one that is asked for is brought by the extra that the error names."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan.imports import require

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))

pytestmark = pytest.mark.skipif(
    not (ROOT / "packages").is_dir(), reason="runs in a checkout, not from an installed package"
)


def _project(name: str = "longspan") -> dict:
    return tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _extras() -> dict[str, list[str]]:
    """Extra of `longspan` → what it installs, of the other packages too."""
    extras: dict[str, list[str]] = dict(_project()["optional-dependencies"])
    documents = _project("longspan-documents")
    extras["documents"] = documents["dependencies"][1:]
    return extras | documents["optional-dependencies"]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def _calls() -> list[tuple[str, str | None, str]]:
    """File, module (None where it is no constant) and extra of every call of `require`."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                module = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                extra = next(keyword.value for keyword in node.keywords if keyword.arg == "extra")
                assert isinstance(extra, ast.Constant)
                found.append((path.name, module, extra.value))
    return found


@pytest.mark.slow
def test_every_library_is_in_the_extra_that_is_named() -> None:
    extras, distributions = _extras(), packages_distributions()
    core = _names(_project()["dependencies"])
    calls = _calls()
    assert len(calls) > 10
    for file, module, extra in calls:
        assert extra in extras, f"{file} names the extra {extra!r}, which does not exist"
        if module is not None:
            brought = {name.lower().replace("_", "-") for name in distributions[module.partition(".")[0]]}
            direct = _names(extras[extra])
            along = set().union(*(_names(requires(name) or []) for name in direct))
            assert brought & (direct | along), f"{file}: the extra {extra!r} does not bring {module}"
            assert not brought & core, f"{file}: {module} comes with the package, so nothing is to be installed"


def test_every_extra_that_a_message_names_exists() -> None:
    extras = _project()["optional-dependencies"]
    for path in SOURCES:
        for name in re.findall(r"longspan\[([\w,]+)\]", path.read_text(encoding="utf-8")):
            assert set(name.split(",")) <= set(extras) | {"extra"}, f"{path.name} names the extra {name!r}"


def test_what_is_missing_is_said_with_its_extra() -> None:
    with pytest.raises(InputError, match=r"reading PDF needs the 'documents' extra; .*'longspan\[documents\]'"):
        require("no_such_library", extra="documents", purpose="reading PDF")
