"""The rooms of the packages and the imports between them, read from the code; and their picture.

Every import counts, also those inside functions, those that only type checkers read, and texts by which a table imports
what is asked for: an arrow is an arrow. The roof (`longspan` itself, `registering`) gathers the names of all rooms.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.imports import require
from longspan.pictures.patterns import INK, PAPER, QUIET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = Path(__file__).parents[1] / "packages"
NAMES = {"longspan_papers": "papers", "longspan_documents": "documents", "longspan": ""}
"""Package → what the names of its rooms begin with, from the top to the ground."""
FLOORS = (
    "roof",
    "papers",
    *("documents cli", "documents serve", "documents integrations", "documents mapping", "documents pictures"),
    *("documents inference", "documents summaries", "documents questions", "documents text"),
    *("cli", "compare", "planning", "pictures", "inference", "training", "tasks", "checkpoints", "models", "stacks"),
    *("attention", "ops", "patterns", "data", "ground"),
)
"""From the top to the ground: no room imports from one above it, so no package from one that depends on it."""
ROOF = {"longspan", "longspan.__main__", "longspan.registering"}


def module_of(path: Path) -> str:
    """The name of the module in a file."""
    parts = path.relative_to(PACKAGES).with_suffix("").parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room that a module lies in."""
    package, _, inside = module.partition(".")
    if module in ROOF:
        return "roof"
    if package == "longspan_papers":
        return "papers"
    if not inside:  # a docstring
        return "documents text"
    room = f"{NAMES[package]} {inside.partition('.')[0]}".strip()
    return room if room in FLOORS else "ground"


def imports_of(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    """Our modules that a module names: in imports of any kind, and in texts by which it imports what is asked for."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            assert not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(modules)
            if names - set(modules):
                found.add(str(node.module))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} & set(modules) - set(NAMES)
    return found


MODULES = {module_of(path): path for path in sorted(PACKAGES.glob("*/src/**/*.py"))}


@cache
def arrows() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports; seconds, since every file is read."""
    return {
        name: imports_of(ast.parse(path.read_text(encoding="utf-8")), MODULES) - {name}
        for name, path in MODULES.items()
    }


def lines_of_rooms() -> dict[str, int]:
    """Room → lines of code, in the order of the floors."""
    lines: Counter[str] = Counter()
    for name, path in MODULES.items():
        lines[room_of(name)] += len(path.read_text(encoding="utf-8").splitlines())
    return {room: lines[room] for room in FLOORS if room in lines}


def draw_rooms() -> Figure:
    """A box for each room, higher ones above lower ones, as wide as it is long; beside it the rooms that it imports."""
    pyplot = require("matplotlib.pyplot", extra="pictures", purpose="drawing the rooms")
    lines = lines_of_rooms()
    used_by = {(room_of(one), room_of(other)) for one, others in arrows().items() for other in others}
    figure, axes = pyplot.subplots(figsize=(9.0, 0.36 * len(lines) + 0.5), facecolor=PAPER, layout="constrained")
    rooms = list(lines)
    axes.barh(rooms, list(lines.values()), height=0.72, color="#c9d8e6")
    for place, room in enumerate(rooms):
        used = [other for other in rooms if (room, other) in used_by and other not in {room, "ground"}]
        text = f"{lines[room]:,} lines" + (f"  →  {' · '.join(used)}" if used else "")
        axes.text(lines[room] + 40, place, text, va="center", fontsize=7.5, color=QUIET)
    axes.set_xlim(0, 3.2 * max(lines.values()))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    axes.set_xticks([])
    axes.set_frame_on(False)
    return figure
