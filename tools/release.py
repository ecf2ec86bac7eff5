"""Builds the source distributions and wheels of a release, and checks them.

    python tools/release.py dist

It needs the packages of `tools/release.txt`. Everything is built twice with the date of the newest commit
(`SOURCE_DATE_EPOCH`), and the two builds must be equal to the byte. A wheel is built from its source distribution, and
must hold the files that git knows, the licence and the bill of materials, and nothing else. `make release-check` then
installs the wheels in empty environments and tries them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from bill_of_materials import VERSION

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("longspan", "longspan-documents", "longspan-papers")
"""In the order of publication: each needs those before it."""


def build(package: str, folder: Path) -> list[Path]:
    """Returns the source distribution and the wheel of a package, built into a folder."""
    date = run("git", "log", "-1", "--format=%ct").strip()
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), f"packages/{package}")
    run(*command, SOURCE_DATE_EPOCH=date)
    stem = f"{package.replace('-', '_')}-{VERSION}"
    return [folder / f"{stem}.tar.gz", folder / f"{stem}-py3-none-any.whl"]


def run(*command: str, **environment: str) -> str:
    """Returns what a command prints; ends with what it reports if it fails."""
    result = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def wrong_contents(package: str, archive: Path) -> list[str]:
    """Returns the names that an archive lacks (-) or has beside what it should (+)."""
    home = f"packages/{package}/"
    sources = {file.removeprefix(home) for file in run("git", "ls-files", f"{home}src").splitlines()}
    stem = f"{package.replace('-', '_')}-{VERSION}"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = set(wheel.namelist())
        info = ["licenses/LICENSE", f"sboms/{package}.cdx.json", "METADATA", "RECORD", "WHEEL", "entry_points.txt"]
        wanted = {file.removeprefix("src/") for file in sources} | {f"{stem}.dist-info/{name}" for name in info}
    else:
        with tarfile.open(archive) as sdist:
            found = {member.name.removeprefix(f"{stem}/") for member in sdist.getmembers()}
        wanted = sources | {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", f"{package}.cdx.json"}
        wanted.add(".gitignore")  # which the build backend always adds
    return [f"- {name}" for name in sorted(wanted - found)] + [f"+ {name}" for name in sorted(found - wanted)]


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"a release is built from a commit; commit or remove these first:\n{changed}")
    with tempfile.TemporaryDirectory() as again:
        for package in ORDER:
            for file, same in zip(build(package, folder / package), build(package, Path(again)), strict=True):
                if digest(file) != digest(same):
                    sys.exit(f"{file.name}: two builds of the same commit differ")
                if wrong := wrong_contents(package, file):
                    sys.exit("\n".join([f"{file.name} has other contents than it should:", *wrong]))
                print(f"{digest(file)}  {package}/{file.name}  {file.stat().st_size / 1e6:.1f} MB")
    files = [str(file) for package in ORDER for file in sorted((folder / package).iterdir())]
    print(run(sys.executable, "-m", "twine", "check", "--strict", *files), end="")
    print(f"release: {len(files)} files, equal in two builds, with the contents of the commit")


if __name__ == "__main__":
    main()
