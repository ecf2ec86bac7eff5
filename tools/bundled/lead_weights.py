"""The weights that tell when a document's opening summarises it: `lead.*` of `bundled/summary.safetensors`.

    LONGSPAN_DATA=… python tools/bundled/lead_weights.py $LONGSPAN_DATA [--sites FOLDER …] [--output FILE]

A README, a manual page or a description of a package says in its first paragraph what the thing is; a paper, a
proposal or a meeting does not. Of each kind of document it is measured by how much ROUGE-1 of its first sentences lies
above that of the sentences which the other weights pick, against what people wrote of it. A logistic regression then
tells from a document alone whether it is of a kind whose first sentences are better. (A regression on the difference of
each document by itself, most of which is noise where a reference is one line, missed half of the manual pages.)

Beside the documents of `summary_weights.py` it learns from packages that are installed here, in this environment and in
those whose `site-packages` are named: the long description that each brings, against the one line by which its authors
announce it; of Debian packages their README and manual page against the description, and their other manual pages,
without the line under NAME, against that line. Only packages whose licence is permissive are read, and of these only
those that `is_training` names; `packages.tsv` beside this file records which they were, with version and licence.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from summary_weights import KINDS, OUTPUT, Taught, logistic, taught

from longspan.data.text.sentences import split_words
from longspan.progress import progress_bar
from longspan.tasks.metrics.rouge import Rouge
from longspan_documents.inference.embed import Encoder, load_encoder
from longspan_documents.inference.summarize import embedded_sentences
from longspan_documents.summaries.picker import BOUND, Picker, lead_features, leading
from longspan_documents.summaries.selection import fill, word_table
from longspan_documents.text.reading import read, sentences_of

RECORD = Path(__file__).with_name("packages.tsv")
MOST = 10
"""Documents of a kind."""
HELD_OUT = 0.4
"""Share of packages that are not trained on, by their name."""
LINE, FEWEST, MOST_WORDS = 30, 100, 8_000
"""Words of a summary that is compared with one line; of a document at least and at most."""
PAGES = 6
"""Manual pages of a package that are not named like it."""
CLIP, PENALTY = 20.0, 1e-2
"""Points beyond which a difference counts no more; of the regression."""
PERMISSIVE = re.compile(
    r"(?:MIT(?:-\w+|/X11)?|Expat|X11|BSD(?:-\d-clause)?|0BSD|Apache(?:-2(?:\.0)?)?|ISC|Zlib|PSF(?:-2\.0)?|CC0(?:-1\.0)?"
    r"|public-domain|Unlicense|curl|PostgreSQL)(?: license)?",
    re.IGNORECASE,
)
"""Licences that let a model be shipped which was trained on the text."""
_LONG = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
}
_PAGE = re.compile(r"/usr/share/man/man[1-8]/.*\.gz")
NAMED = re.compile(
    r"^NAME\n(?:\s+[^\n]*?\s(?:-{1,2}|[\u2010-\u2014])\s)(?P<line>.+?)\n(?=\S|\s*\n)", re.MULTILINE | re.DOTALL
)
_TOO_GENERAL = re.compile(r"This (?:package|is the|metapackage|dummy)|\* ?")


@dataclass(frozen=True)
class Package:
    """A text of a package, what its makers say of it in a few words, and under what licence."""

    name: str
    version: str
    licence: str
    kind: str
    text: str
    suffix: str
    summary: str


def is_training(name: str) -> bool:
    """Whether a package is one to learn from; the others are to measure on. The same on every machine."""
    plain = re.sub(r"[-_.]+", "-", re.sub(r"^python3?-", "", name)).lower()
    return int(hashlib.md5(plain.encode()).hexdigest(), 16) % 100 >= 100 * HELD_OUT


def is_permissive(licence: str) -> bool:
    """Whether every part of a licence, or one of several to choose from, is permissive."""
    choices = re.split(r"\s+or\s+", licence, flags=re.IGNORECASE)
    return any(
        all(PERMISSIVE.fullmatch(part.strip(" ()")) for part in re.split(r"\s+and\s+|[;,]", choice, flags=re.I))
        for choice in choices
    )


def python_packages(sites: Sequence[Path] = ()) -> Iterator[Package]:
    """Descriptions of the distributions of this environment, and of further folders, each with its one line."""
    names: set[str] = set()
    further = importlib.metadata.distributions(path=[str(site) for site in sites])
    for one in [*importlib.metadata.distributions(), *further]:
        data: Any = one.metadata
        name = (data["Name"] or "").lower()
        line, text = (data["Summary"] or "").strip(), str(data.get_payload() or data.get("Description") or "")
        named = [
            value.split("::")[-1].strip() for value in data.get_all("Classifier", []) if value.startswith("License")
        ]
        licence = data.get("License-Expression") or "; ".join(str(_LONG.get(value, value)) for value in named)
        suffix = ".md" if "markdown" in (data.get("Description-Content-Type") or "") else ".txt"
        if name not in names and len(line.split()) > 3 and FEWEST <= len(text.split()) <= MOST_WORDS:
            names.add(name)
            yield Package(name, one.version, licence or "unknown", "description", text, suffix, line)


def debian_packages() -> Iterator[Package]:
    """READMEs and manual pages of the Debian packages that are installed, each with its description."""
    form = "${Package}\x01${source:Package}\x01${Version}\x01${Description}\x02"
    listed = subprocess.run(["dpkg-query", "-W", f"-f={form}"], capture_output=True, text=True, check=True).stdout
    done: set[str] = set()
    for record in listed.split("\x02")[:-1]:
        name, source, version, described = record.strip("\n").split("\x01")
        licence = _debian_licence(Path("/usr/share/doc", name, "copyright"))
        line, _, rest = described.partition("\n")
        parts = [" ".join(part.split()) for part in re.sub(r"\n \.\n", "\n\n", rest).split("\n\n")]
        parts = [part for part in parts if part and not _TOO_GENERAL.match(part)] or parts
        summary = "\n".join([f"{line}.", *parts])
        for kind, suffix, text in (("README", ".txt", _readme(name)), ("manual", ".txt", _manual(name))):
            if (
                f"{kind} {source}" not in done
                and FEWEST <= len(text.split()) <= MOST_WORDS
                and len(summary.split()) > 24
            ):
                done.add(f"{kind} {source}")
                yield Package(name, version, licence, kind, text, suffix, summary)


def manual_pages() -> Iterator[Package]:
    """Manual pages of the Debian packages that are installed, `PAGES` of a package at most, each without the line under
    NAME and with that line."""
    form = "${db:Status-Status}\x01${Package}\x01${Version}\n"
    listed = subprocess.run(["dpkg-query", "-W", f"-f={form}"], capture_output=True, text=True, check=True).stdout
    for record in listed.splitlines():
        status, name, version = record.split("\x01")
        licence = _debian_licence(Path("/usr/share/doc", name, "copyright"))
        if status != "installed" or not is_permissive(licence):
            continue
        files = subprocess.run(["dpkg-query", "-L", name], capture_output=True, text=True, check=True).stdout
        pages = [file for file in files.splitlines() if _PAGE.fullmatch(file) and Path(file).stem.split(".")[0] != name]
        found = 0
        for page in sorted(pages):
            text = _printed(page) if found < PAGES else ""
            named = NAMED.search(text)
            if named and FEWEST <= len(text.split()) <= MOST_WORDS and len(named["line"].split()) > 2:
                found += 1
                line, rest = " ".join(named["line"].split()), text[: named.start()] + text[named.end() :]
                yield Package(name, version, licence, f"page {Path(page).stem}", rest, ".txt", line)


def _debian_licence(file: Path) -> str:
    """Of the program and of its packaging, joined by "and", as the machine-readable copyright file says."""
    text = file.read_text(errors="replace") if file.exists() else ""
    found = [re.search(rf"^Files: {files}\n(?:.+\n)*?License: *(\S.*)", text, re.M) for files in (r"\*", r"debian/\*")]
    return " and ".join(dict.fromkeys(one[1].strip() for one in found if one)) if found[0] else "unknown"


def _readme(name: str) -> str:
    for file in sorted(Path("/usr/share/doc", name).glob("README*")):
        if re.fullmatch(r"README(?:\.txt|\.gz|\.txt\.gz)?", file.name):
            data = file.read_bytes()
            return (gzip.decompress(data) if file.suffix == ".gz" else data).decode(errors="replace")
    return ""


def _manual(name: str) -> str:
    """The manual page that is named like the package, as `man` prints it."""
    return _printed(name) if any(Path("/usr/share/man").glob(f"man[1578]/{name}.*")) else ""


def _printed(page: str) -> str:
    setting = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    return subprocess.run(["man", "-P", "cat", page], capture_output=True, text=True, env=setting, check=False).stdout


def packages(sites: Sequence[Path] = ()) -> list[Package]:
    """The permissive ones to learn from."""
    found = [*python_packages(sites), *debian_packages(), *manual_pages()]
    return [one for one in found if is_training(one.name) and is_permissive(one.licence)]


def gathered_packages(chosen: Sequence[Package], encoder: Encoder) -> list[Taught]:
    """The packages as documents that were read."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for one in progress_bar(chosen, doing="reading packages"):
            file = Path(folder, f"text{one.suffix}")
            file.write_text(one.text)
            document = read(file)
            sentences = embedded_sentences(document, sentences_of(document), encoder)[0]
            if len(sentences) > 3:
                found.append(Taught("packages", sentences, word_table(sentences), (one.summary,), 1 / len(chosen)))
    return found


def advantage(each: Taught, picker: Picker, rouge: Rouge) -> float:
    """ROUGE-1 of the first sentences less that of the sentences that are picked."""
    words = max(LINE, int(np.median([len(split_words(reference)) for reference in each.references])))
    texts = each.document.texts
    picked = picker.order(each.document, words).indices
    first = [*leading(texts, words), *picked]
    summaries = ["\n".join(fill(texts, list(dict.fromkeys(order)), words)) for order in (first, picked)]
    values = rouge.rows(summaries, [each.references] * 2)["rouge1"]
    return float(np.clip(values[0] - values[1], -CLIP, CLIP))


def fit_lead(documents: Sequence[Taught], picker: Picker) -> dict[str, np.ndarray]:
    """Logistic regression on `lead_features` of whether a document is of a kind that gains by `advantage`.

    A document weighs as much as its kind gains or loses; packages weigh as much as all other kinds together.
    """
    plain = Picker({name: value for name, value in picker.weights.items() if not name.startswith("lead.")})
    rouge = Rouge(stemmer=True)
    gains = np.array([advantage(each, plain, rouge) for each in progress_bar(documents, doing="comparing")])
    kinds = [each.kind for each in documents]
    mean_gains = {kind: gains[[kind == other for other in kinds]].mean() for kind in dict.fromkeys(kinds)}
    print(", ".join(f"{kind} {gain:+.1f}" for kind, gain in mean_gains.items()))
    gain = np.array([mean_gains[kind] for kind in kinds])
    weight = abs(gain) * [each.weight * (len(KINDS) if each.kind == "packages" else 1) for each in documents]
    known = np.array([lead_features(each.document) for each in documents])
    mean, spread = known.mean(0), known.std(0) + 1e-6
    known = np.c_[np.clip((known - mean) / spread, -BOUND, BOUND), np.ones(len(known))]
    fitted = logistic(known, gain > 0, weight / weight.mean(), PENALTY)
    return {"lead.mean": mean, "lead.spread": spread, "lead.weight": fitted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("--sites", type=Path, nargs="*", default=(), help="site-packages of other environments")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    encoder, picker, chosen = load_encoder(), Picker.load(OUTPUT), packages(options.sites)
    rows = ["\t".join(astuple(one)[:4]) for one in chosen]
    RECORD.write_text("\n".join(["package\tversion\tlicence\ttext", *sorted(rows), ""]))
    documents = [*taught(list(KINDS), encoder, options.data, MOST), *gathered_packages(chosen, encoder)]
    found = {name: np.ascontiguousarray(value, np.float32) for name, value in fit_lead(documents, picker).items()}
    save_file({**picker.weights, **found}, options.output)


if __name__ == "__main__":
    main()
