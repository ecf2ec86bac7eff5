"""Summaries by `longspan summarize` of READMEs, manual pages and descriptions of packages that are installed here,
against other ways to pick sentences. Only packages that `tools/bundled/lead_weights.py` never learns from.

LONGSPAN_DATA=… python benchmarks/summary_packages.py [--weights FILE] [--sites FOLDER …] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools" / "bundled"))

from lead_weights import LINE, Package, debian_packages, is_training, python_packages

from longspan_documents.inference.summarize import WEIGHTS
from longspan_documents.summaries.picker import Picker
from longspan_documents.text.reading import read, sentences_of
from measure import machine, table, write_page
from summarize import header, means_of, measured, row_of, verdict
from summary_methods import ORACLE, OURS, Method, Ours, encoder_of, longest, oracle, peers_of
from summary_sets import Case

WORDS = 60
"""Of a summary that is compared with the description of a package."""
NAMES = {"README": "READMEs", "manual": "manual pages", "description": "descriptions"}
ABOUT = f"""\
Texts of packages that are installed on one machine and were never trained on (two of five, by a hash of the name):
READMEs and manual pages of Debian packages, against the description of the package in {WORDS} words, and the long
descriptions of Python packages, which mostly are READMEs too, against their one line in {LINE} words. Methods, lengths
and columns as in [summarize.md](summarize.md)."""


def cases_of(packages: Iterable[Package]) -> dict[str, list[Case]]:
    """The packages to measure on, by what kind of text they bring; texts of fewer than four sentences are left out."""
    found: dict[str, list[Case]] = {name: [] for name in NAMES.values()}
    with tempfile.TemporaryDirectory() as folder:
        for one in packages:
            if is_training(one.name):
                continue
            file = Path(folder, f"text{one.suffix}")
            file.write_text(one.text)
            document = read(file)
            sentences = tuple(sentences_of(document))
            case = Case(
                id=one.name,
                document=document,
                found=sentences,
                texts=tuple(sentence.text for sentence in sentences),
                references=(one.summary,),
                words=LINE if one.kind == "description" else WORDS,
            )
            if len(sentences) > 3:
                found[NAMES[one.kind]].append(case)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--sites", type=Path, nargs="*", default=(), help="site-packages of other environments")
    parser.add_argument("--quick", action="store_true", help="two texts of each kind")
    options = parser.parse_args(arguments)
    ours = Ours(Picker.load(options.weights), encoder_of(None))
    methods: dict[str, Method] = {OURS: ours, **peers_of(), "longest": longest, ORACLE: oracle}
    sets = cases_of([*python_packages(options.sites), *debian_packages()])
    sets = {name: chosen[: 2 if options.quick else None] for name, chosen in sets.items() if chosen}
    everything = {name: measured(chosen, methods) for name, chosen in sets.items()}
    rows = [row_of(name, sets[name], everything[name]) for name in sets]
    parts = [ABOUT, verdict(everything), table(header(), rows), "## All means", means_of(everything), f"{machine()}."]
    title = "Summaries of READMEs, manual pages and descriptions of packages"
    write_page("summarize-packages-quick" if options.quick else "summarize-packages", title, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
