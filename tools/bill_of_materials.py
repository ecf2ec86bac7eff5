"""Writes what the packages and the site bundle beside their code, with licence and origin of each part.

    python tools/bill_of_materials.py

`packages/*/*.cdx.json` are bills of materials (CycloneDX 1.6) that wheels hold in `.dist-info/sboms` (PEP 770), and
`docs/licences.md` is the page of all of them. A test fails where a file has no part, or where these are out of date.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from source_paths import version_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
VERSION = version_of(ROOT / "packages/longspan/src/longspan/version.py")
BUNDLED = "packages/longspan-documents/src/longspan_documents/bundled"
MINILM = ("all-MiniLM-L6-v2", "Apache-2.0", "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2")
BERT = ("bert-base-uncased, vocabulary", "Apache-2.0", "https://huggingface.co/google-bert/bert-base-uncased")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is bundled together: some files of one origin.

    `files` are patterns relative to the checkout; of others' work, `made_from` has name, licence (an SPDX identifier)
    and address; `data` are weights and tables, whose checksums are listed.
    """

    name: str
    files: tuple[str, ...]
    about: str
    licence: str = "Apache-2.0"
    made_from: tuple[str, str, str] | None = None
    data: str = ""


PARTS = (
    Part(
        name="encoder of documents",
        files=(f"{BUNDLED}/encoder/model.safetensors", f"{BUNDLED}/encoder/config.json"),
        about="trained by this project to give the vectors of all-MiniLM-L6-v2, whose vectors of words it began with",
        made_from=MINILM,
        data="machine-learning-model",
    ),
    Part(
        name="encoder of passages",
        files=(f"{BUNDLED}/passages/model.safetensors", f"{BUNDLED}/passages/config.json"),
        about="all-MiniLM-L6-v2 in four bits, with fewer entries, trained on by this project",
        made_from=MINILM,
        data="machine-learning-model",
    ),
    Part(
        name="vocabularies of the encoders",
        files=(f"{BUNDLED}/*/tokenizer*.json",),
        about="entries of BERT's vocabulary, and common words of the training texts",
        made_from=BERT,
        data="data",
    ),
    Part(
        name="weights of summaries and answers",
        files=(f"{BUNDLED}/summary.safetensors", f"{BUNDLED}/answers.json"),
        about="trained by this project",
        data="machine-learning-model",
    ),
    Part(
        name="cards of the bundled models",
        files=(f"{BUNDLED}/README.md", f"{BUNDLED}/*/README.md"),
        about="training data with their licences, measurements, limits",
    ),
    Part(
        name="web page and API",
        files=(
            "packages/longspan-documents/src/longspan_documents/serve/static/*",
            "packages/longspan-documents/src/longspan_documents/pictures/*.css",
        ),
        about="written by this project, without libraries of others",
    ),
    Part(
        name="style of reports",
        files=("packages/longspan/src/longspan/compare/*.css",),
        about="written by this project",
    ),
    Part(
        name="table of launches",
        files=("packages/longspan/src/longspan/planning/launches.json",),
        about="counted by this project",
        data="data",
    ),
    Part(
        name="abbreviations",
        files=("packages/longspan/src/longspan/data/text/abbreviations.toml",),
        about="collected by this project",
        data="data",
    ),
    Part(
        name="recipes",
        files=("packages/*/src/*/recipes/*/*.yaml",),
        about="written by this project, after the papers that each names",
    ),
    Part(name="marks of typed packages", files=("packages/*/src/*/py.typed",), about="empty files"),
    Part(
        name="font for equations",
        files=("docs/fonts/*",),
        about="a subset with the signs that equations use",
        licence="OFL-1.1",
        made_from=("Noto Sans Math, © 2022 Google LLC", "OFL-1.1", "https://github.com/notofonts/math"),
    ),
    Part(
        name="style, scripts and pictures of the site",
        files=("docs/css/*", "docs/js/*", "docs/img/*"),
        about="written, drawn or taken by this project",
    ),
)
THEME = "Material for MkDocs"
"""What the built site has from elsewhere; it is in no checkout and no package."""


def tracked(*folders: str) -> list[str]:
    """Returns the files of folders that git knows and that are no code of Python, relative to the checkout."""
    command = ["git", "ls-files", "--", *folders]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(file for file in files if not file.endswith(".py"))


def files_of(part: Part, folder: str = "") -> list[str]:
    """Returns the files of a part below a folder."""
    found = {path.relative_to(ROOT).as_posix() for pattern in part.files for path in ROOT.glob(pattern)}
    return sorted(file for file in found if file.startswith(folder))


def bill(package: str) -> dict[str, Any]:
    """Returns the bill of materials of a package."""
    sources = f"packages/{package}/src/"
    component = {"type": "library", "name": package, "version": VERSION, "licenses": licences("Apache-2.0")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component | {"purl": f"pkg:pypi/{package}@{VERSION}"}},
        "components": [entry(part, files, sources) for part in PARTS if (files := files_of(part, sources))],
    }


def entry(part: Part, files: list[str], sources: str) -> dict[str, Any]:
    """Returns a part with its files, named as in the wheel."""
    made: dict[str, Any] = {
        "type": part.data or "file",
        "name": part.name,
        "description": part.about,
        "licenses": licences(part.licence),
        "components": [{"type": "file", "name": file.removeprefix(sources), **hashes(part, file)} for file in files],
    }
    if part.made_from is not None:
        name, licence, address = part.made_from
        ancestor = {"type": made["type"], "name": name, "licenses": licences(licence)}
        reference = {"type": "distribution", "url": address}
        made["pedigree"] = {"ancestors": [ancestor | {"externalReferences": [reference]}]}
    return made


def hashes(part: Part, file: str) -> dict[str, Any]:
    if not part.data:
        return {}
    return {"hashes": [{"alg": "SHA-256", "content": hashlib.sha256((ROOT / file).read_bytes()).hexdigest()}]}


def licences(identifier: str) -> list[dict[str, Any]]:
    return [{"license": {"id": identifier}}]


def page() -> str:
    """Returns the page of all parts."""
    rows = []
    for part in PARTS:
        places = sorted({file.split("/")[1] if file.startswith("packages/") else "site" for file in files_of(part)})
        origin = part.about
        if part.made_from is not None:
            name, licence, address = part.made_from
            origin += f"; made from [{name}]({address}) ({licence})"
        rows.append(f"| {part.name} | {', '.join(places)} | {part.licence} | {origin} |")
    return "\n".join(
        [
            "# Licences",
            "",
            "The code is under [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0). Beside it, packages and site",
            "bundle the following; each wheel has the list of its files, with checksums of weights and tables, as a",
            "CycloneDX file in its `.dist-info/sboms`. The cards of the bundled models name the training data.",
            "",
            "| part | bundled in | licence | origin |",
            "|---|---|---|---|",
            *rows,
            f"| {THEME} | the built site only | MIT | the theme, with icons under Apache-2.0, CC BY 4.0 and MIT |",
            "",
            "This page is written by `python tools/bill_of_materials.py`.",
            "",
        ]
    )


def written() -> dict[Path, str]:
    """Returns the files that this tool writes, with their content."""
    packages = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    bills = {ROOT / "packages" / name / f"{name}.cdx.json": bill(name) for name in packages}
    return {path: json.dumps(found, indent=1, ensure_ascii=False) + "\n" for path, found in bills.items()} | {
        PAGE: page()
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
