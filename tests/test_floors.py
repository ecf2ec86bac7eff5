"""The floors of the house: what is lower imports nothing that is higher, and nothing goes round in circles.

Every import counts, also those inside functions and those that only type checkers read: an arrow is an arrow. The roof
(`longspan` itself, `registering`) gathers the names of all rooms, and no room imports it. A module of the ground floor
may import others of it, but no room.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "longspan"
FLOORS = (
    "roof",
    "cli",
    "compare",
    "pictures",
    "inference",
    "training",
    "tasks",
    "checkpoints",
    "models",
    "stacks",
    "attention",
    "ops",
    "patterns",
    "data",
    "ground",
)
"""From the top to the ground."""
ROOF = {"longspan", "longspan.registering"}

pytestmark = pytest.mark.skipif(not PACKAGE.is_dir(), reason="runs in a checkout, not from an installed package")


def module_of(path: Path) -> str:
    parts = ("longspan", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    """Our modules that a module names: in imports of any kind, and in texts by which it imports what is asked for."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            assert not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(modules) or {node.module}
            if names - set(modules):
                found.add(str(node.module))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} & set(modules) - {"longspan"}
    return found


ARROWS = {
    name: imports_of(ast.parse(path.read_text(encoding="utf-8")), MODULES) - {name} for name, path in MODULES.items()
}


def room_of(module: str) -> str:
    if module in ROOF:
        return "roof"
    room = module.split(".")[1]
    return room if room in FLOORS else "ground"


def test_every_folder_is_on_a_floor() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders <= set(FLOORS)


def test_nothing_lower_imports_anything_higher() -> None:
    up = [
        f"{module} imports {other}"
        for module, others in ARROWS.items()
        for other in sorted(others)
        if FLOORS.index(room_of(other)) < FLOORS.index(room_of(module))
    ]
    assert not up, up


def test_no_modules_go_round_in_a_circle() -> None:
    try:
        TopologicalSorter({module: others for module, others in ARROWS.items() if module not in ROOF}).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")


def test_the_reader_of_imports_sees_every_kind() -> None:
    code = """
import longspan.errors
from longspan import files
from longspan.ops.attend import attend
if TYPE_CHECKING:
    from longspan.data import SummaryRow
def late():
    from longspan.settings import check
TASKS = {"a": "longspan.tasks.base:Task"}
"""
    seen = imports_of(ast.parse(code), MODULES)
    assert seen == {
        "longspan.errors",
        "longspan.files",
        "longspan.ops.attend",
        "longspan.data",
        "longspan.settings",
        "longspan.tasks.base",
    }
