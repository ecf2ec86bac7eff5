"""Prints the oldest release that each range of the packages declares, as constraints for pip.

    python tools/oldest_versions.py > oldest.txt
    pip install -c oldest.txt '.[all]'

Dependencies of the package and of its extras are at the lower bound. What only develops it (the extras `dev` and
`docs`) stays as `constraints.txt` has it: nobody who uses the package installs it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_DEVELOPERS = frozenset({"dev", "docs"})
BESIDE = ("numpy<2.4", "typing-extensions>=4.15")
"""What the oldest releases need of others: none of them was tried with NumPy 2.4. And what tools of developers need:
selenium requires newer typing extensions than the packages do."""

_LOWER = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<version>[\w.]+)(?:,<[\w.]+)?(?P<marker> *;.*)?")
_PINNED = re.compile(r"(?P<name>[\w.-]+)==[\w.+]+")


def oldest(projects: list[dict], tested: str) -> list[str]:
    """The lines of a file of constraints.

    Args:
        projects: the table `project` of each package's `pyproject.toml`.
        tested: the text of `constraints.txt`.

    Raises:
        ValueError: a dependency declares no lower bound.
    """
    used, developers = [], set()
    for project in projects:
        used += project["dependencies"]
        for name, requirements in project.get("optional-dependencies", {}).items():
            if name in OF_DEVELOPERS:
                developers |= {_normal(re.split(r"[\[>=;]", requirement)[0]) for requirement in requirements}
            else:
                used += requirements
    ours = {_normal(project["name"]) for project in projects}
    lines = {}
    for requirement in used:
        if _normal(re.split(r"[\[=]", requirement)[0]) in ours:
            continue
        bound = _LOWER.fullmatch(requirement)
        if bound is None:
            raise ValueError(f"{requirement!r} has no lower bound of the form name>=version")
        lines[_normal(bound["name"])] = f"{bound['name']}=={bound['version']}{bound['marker'] or ''}"
    for line in tested.splitlines():
        pinned = _PINNED.fullmatch(line)
        if pinned is not None and _normal(pinned["name"]) in developers - set(lines):
            lines[_normal(pinned["name"])] = line
    beside = {_normal(re.split(r"[<>=]", requirement)[0]) for requirement in BESIDE}
    return sorted((line for name, line in lines.items() if name not in beside), key=str.lower)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    files = sorted((ROOT / "packages").glob("*/pyproject.toml"))
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    print(*oldest(projects, (ROOT / "constraints.txt").read_text(encoding="utf-8")), *BESIDE, sep="\n")


if __name__ == "__main__":
    main()
