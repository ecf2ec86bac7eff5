"""The floors of the house: what is lower imports nothing that is higher, and nothing goes round in circles."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from rooms import FLOORS, MODULES, PACKAGES, ROOF, arrows, draw_rooms, imports_of, lines_of_rooms, room_of

from longspan.pictures.patterns import save_picture

pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="runs in a checkout, not from an installed package")


def test_every_folder_is_on_a_floor() -> None:
    rooms = {room_of(name) for name, path in MODULES.items() if path.name == "__init__.py"}
    assert rooms <= set(FLOORS)


def test_nothing_lower_imports_anything_higher() -> None:
    up = [
        f"{module} imports {other}"
        for module, others in arrows().items()
        for other in sorted(others)
        if FLOORS.index(room_of(other)) < FLOORS.index(room_of(module))
    ]
    assert not up, up


def test_no_modules_go_round_in_a_circle() -> None:
    try:
        TopologicalSorter({module: others for module, others in arrows().items() if module not in ROOF}).prepare()
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
    assert imports_of(ast.parse(code), MODULES) == {
        "longspan.errors",
        "longspan.files",
        "longspan.ops.attend",
        "longspan.data",
        "longspan.settings",
        "longspan.tasks.base",
    }


def test_the_picture_has_every_room(tmp_path: Path) -> None:
    figure = draw_rooms()
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == list(lines_of_rooms())
    assert sum(lines_of_rooms().values()) == sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGES.glob("*/src/**/*.py")
    )
    save_picture(figure, tmp_path / "rooms.png")
    assert (tmp_path / "rooms.png").stat().st_size > 1000
