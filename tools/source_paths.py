"""Prints what PYTHONPATH must be for the packages to work from this checkout where they are not installed.

    PYTHONPATH="$(python tools/source_paths.py)" python -m longspan …

These are the folders of their sources, and one with the metadata that an installation would write: without it Python
does not know their entry points, by which commands, tasks, heads and recipes are found.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def source_paths(root: Path = ROOT) -> list[Path]:
    """The folders of a checkout; the one of metadata, `build/metadata`, is written anew."""
    sources, written = [], root / "build" / "metadata"
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, version = project["name"].replace("-", "_"), project["version"]
        folder = written / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
        groups = project.get("entry-points", {})
        lines = []
        for group, names in groups.items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in names.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources.append(file.parent / "src")
    return [*sources, written]


if __name__ == "__main__":
    print(os.pathsep.join(map(str, source_paths())))
