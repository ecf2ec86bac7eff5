"""Prints what PYTHONPATH must be for the packages to work from this checkout where they are not installed.

    PYTHONPATH="$(python tools/source_paths.py)" python -m longspan …

These are the folders of their sources, and one with the metadata that an installation would write: without it Python
does not know their entry points, by which commands, tasks, heads and recipes are found.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def source_paths(root: Path = ROOT) -> list[Path]:
    """The folders of a checkout; the one of metadata, `build/metadata`, is written anew."""
    files = sorted((root / "packages").glob("*/pyproject.toml"))
    for file in files:
        write_metadata(file, root / "build" / "metadata")
    return [*(file.parent / "src" for file in files), root / "build" / "metadata"]


def write_metadata(file: Path, where: Path) -> None:
    """Write what an installation of a package would say of it: its name, its version and its entry points.

    Args:
        file: the package's `pyproject.toml`.
        where: a folder of the search path of Python.
    """
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    project = settings["project"]
    version = project.get("version") or version_of(file.parent / settings["tool"]["hatch"]["version"]["path"])
    name = project["name"].replace("-", "_")
    for stale in where.glob(f"{name}-*.dist-info"):
        if stale.name != f"{name}-{version}.dist-info":
            shutil.rmtree(stale, ignore_errors=True)
    folder = where / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    known = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    (folder / "METADATA").write_text(known, encoding="utf-8")
    lines = []
    for group, names in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in names.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def version_of(file: Path) -> str:
    """The value of `__version__` in a file of Python."""
    match = re.search(r'^__version__ = "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None, f"{file} has no line __version__ = ..."
    return match[1]


if __name__ == "__main__":
    print(os.pathsep.join(map(str, source_paths())))
