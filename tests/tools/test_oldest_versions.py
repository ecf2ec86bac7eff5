"""The constraints of `make test-oldest` are the lower bounds, and what is tested with lies within the ranges."""

from __future__ import annotations

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="runs in a checkout, not from an installed package"
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_file_location("oldest_versions", ROOT / "tools" / "oldest_versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def projects() -> list[dict]:
    files = sorted((ROOT / "packages").glob("*/pyproject.toml"))
    return [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]


def test_bounds_become_pins_and_tools_of_developers_stay(tool: ModuleType) -> None:
    project = {
        "name": "ours",
        "dependencies": ["torch>=2.11", "transformers>=5.17,<6"],
        "optional-dependencies": {
            "serve": ["fastapi>=0.115", "python-multipart>=0.0.18"],
            "ray": ["ray[data]>=2.40"],
            "triton": ["triton>=3.6; sys_platform == 'linux'"],
            "all": ["ours[serve]"],
            "docs": ["mkdocs>=1.6"],
            "dev": ["ours[all,docs]", "pre-commit>=3.7", "ray[data]>=2.40"],
        },
    }
    tested = "# comment\ntorch==2.13.0+cpu\nmkdocs==1.6.1\npre_commit==4.7.0\nnumpy==2.4.6\nray==2.60.0\n"
    assert tool.oldest([project], tested) == [
        "fastapi==0.115",
        "mkdocs==1.6.1",
        "pre_commit==4.7.0",
        "python-multipart==0.0.18",
        "ray==2.40",
        "torch==2.11",
        "transformers==5.17",
        "triton==3.6; sys_platform == 'linux'",
    ]


def test_a_range_without_a_lower_bound_is_refused(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="'torch<3' has no lower bound"):
        tool.oldest([{"name": "ours", "dependencies": ["torch<3"], "optional-dependencies": {}}], "")


def test_every_range_of_ours_has_one_and_holds_what_is_tested(tool: ModuleType, projects: list[dict]) -> None:
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = {_normal(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)$", tested)}
    lines = {_normal(Requirement(line).name): line for line in tool.oldest(projects, tested)}
    assert not {"longspan", "longspan-documents", "longspan-papers"} & set(lines)
    needs = [need for one in projects for need in one["dependencies"]]
    needs += [need for one in projects for extra in one.get("optional-dependencies", {}).values() for need in extra]
    for requirement in map(Requirement, needs):
        name = _normal(requirement.name)
        if not name.startswith("longspan"):
            assert name in lines or any(Requirement(line).name == name for line in tool.BESIDE)
            assert requirement.specifier.contains(pins[name]), f"constraints.txt pins {name} outside its range"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
