"""Long dialogues into the bundled models: what queries are worth, and two further ideas tried on kinds left out.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/dialogue_bundled.py [--only PART …] [--quick]

Three parts, each kept under `runs/bundled-arms` when it has ended; `results/dialogue-bundled.md` is written from those
that are there. `queries`: `summary_queries.py`. The others are arms of one comparison, the summariser's weights fitted
anew without each kind of document and measured on that kind: with the package's encoder (`shipped`), with this and a
tagger's clue (`tagger`, see `importance_clue.py`), and with encoders that were trained on (`own`, `denoising`, see
`bundled_arms.py`; the training of each takes about five minutes of one processor).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from bundled_arms import ARMS, DENOISING, MEETINGS, OWN, RATE, SHIPPED, STEPS, WORK, encoder_folder
from importance_clue import Tokens, separation, tokens_of, train_tagger, with_clue
from longspan.tasks.metrics.bootstrap import bootstrap_difference
from longspan_documents.summaries.picker import Picker
from measure import machine, shown, table, write_page
from summary_measures import MEASURES, summary_of, values_of
from summary_methods import KINDS, Ours, Taught, encoder_of, fit, taught  # pyright: ignore[reportAttributeAccessIssue]
from summary_queries import query_part
from summary_sets import SETS, Case, cases

TAGGER, QUERIES = "tagger", "queries"
EVERY = {**ARMS, TAGGER: "as it is, and a tagger's clue"}
DOCUMENTS, CASES = 24, 10
"""Of each kind that are fitted on, and of each source that are measured."""
READ = range(7, 237, 23)
"""Queries whose summaries are printed, to be read."""
QUERY_PART, AREA = "queries.md", "area: "
LEFT = tuple(name for name in SETS if SETS[name].kind in KINDS)
ABOUT = f"""\
The weights of the summariser are fitted anew for each arm without any document of a kind, on {DOCUMENTS} documents of
each other kind, and measured on at most {CASES} validation documents of each source of that kind; lengths, measures and
filling as in [summarize.md](summarize.md), which has ten times as many. The difference is to the shipped encoder fitted
on the same documents; intervals: 95 %, paired bootstrap over documents; ▲ surely better, ▼ surely worse."""
ABOUT_ENCODERS = f"""\
`own` and `denoising` went on from the shipped encoder for {STEPS} updates (AdamW, highest rate {RATE}) on the training
meetings among {MEETINGS} of QMSum (MIT; CRD3 is share-alike and was not used), about 8,000 tokens an update: on the
vectors of its teacher as before, and on restoring disturbed windows of 128 tokens in pieces of 1,024 with all five
noises of DialogLM, below a decoder of one layer that was thrown away."""


def measure_arm(arm: str, file: Path, documents: int, measured: int) -> dict[str, np.ndarray]:
    """By set `(N, 3)`, ours with weights that were fitted without its kind; kept in the file after each kind."""
    found: dict[str, np.ndarray] = dict(np.load(file)) if file.is_file() else {}
    missing = [kind for kind in reversed(KINDS) if any(SETS[name].kind == kind and name not in found for name in LEFT)]
    if not missing:
        return found
    encoder = encoder_of(encoder_folder(SHIPPED if arm == TAGGER else arm))
    data = Path(os.environ["LONGSPAN_DATA"])
    known = [one for kind in KINDS for one in taught([kind], encoder, data, documents)]  # pyright: ignore[reportArgumentType]
    sets = {name: list(cases(SETS[name], measured)) for name in LEFT if SETS[name].kind in missing}
    tagged = Tagged(known, sets, encoder.encoder) if arm == TAGGER else None
    for kind in missing:
        others = [one for one in known if one.kind != kind]
        with nullcontext() if tagged is None else with_clue(tagged.without(kind)):
            ours = Ours(Picker(fit(others)), encoder)
            for name in (name for name in LEFT if SETS[name].kind == kind):
                found[name] = values_of(sets[name], [summary_of(case, ours(case)) for case in sets[name]])
                print(arm, name, *(f"{mean:.2f}" for mean in found[name].mean(0)), flush=True)
        if tagged is not None:
            found[AREA + kind] = np.array(tagged.area)
        np.savez(file, **found)  # pyright: ignore[reportArgumentType]
    return found


class Tagged:
    """Taggers and what they say of the sentences of all documents.

    Attributes:
        area: how well the last ones told the tokens of the kind apart that was left out.
    """

    def __init__(self, known: list[Taught], sets: Mapping[str, list[Case]], encoder: object) -> None:
        self.known = known
        self.tokens = [tokens_of(one.document.texts, one.references, encoder) for one in known]
        self.sets = {
            name: [(case.texts, tokens_of(case.texts, case.references, encoder)) for case in each]
            for name, each in sets.items()
        }
        self.area = 0.0

    def without(self, kind: str) -> dict[tuple[str, ...], np.ndarray]:
        """By the sentences of a document their mean chances, from taggers that saw nothing of the kind."""
        pairs = [(one, tokens) for one, tokens in zip(self.known, self.tokens, strict=True) if one.kind != kind]
        halves = [pairs[0::2], pairs[1::2]]
        taggers = [
            train_tagger([tokens for _, tokens in half], [one.weight for one, _ in half], seed)
            for seed, half in enumerate(halves)
        ]
        found: dict[tuple[str, ...], np.ndarray] = {}
        for half, tagger in zip(halves, reversed(taggers), strict=True):
            found |= {tuple(one.document.texts): tokens.means(tagger) for one, tokens in half}
        asked: list[tuple[tuple[str, ...], Tokens]] = [
            each for name, of_set in self.sets.items() if SETS[name].kind == kind for each in of_set
        ]
        self.area = float(np.mean([separation(tagger, [each for _, each in asked]) for tagger in taggers]))
        both = {texts: np.mean([tokens.means(tagger) for tagger in taggers], axis=0) for texts, tokens in asked}
        return {**found, **both}


def difference(one: np.ndarray, other: np.ndarray, measure: int) -> str:
    """Of two arms on the same documents, with a mark where it is sure."""
    found = bootstrap_difference(one[:, measure].tolist(), other[:, measure].tolist())
    return shown(found, signed=True) + (" ▲" if found.low > 0 else " ▼" if found.high < 0 else "")


def arms_part(found: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    """The tables of the arms against the shipped encoder, each on the sets that it has been measured on."""
    arms = [arm for arm in EVERY if arm in found]
    names = {arm: [name for name in LEFT if name in found[arm] and name in found[SHIPPED]] for arm in arms}
    rows = []
    for arm in arms:
        own, base = (np.concatenate([found[each][name] for name in names[arm]]) for each in (arm, SHIPPED))
        row = [f"{arm}: {EVERY[arm]}", f"{len(own)} of {len(names[arm])} sets"]
        for measure in range(len(MEASURES)):
            gap = "" if arm == SHIPPED else difference(own, base, measure)
            row += [f"{own[:, measure].mean():.2f}", gap]
        rows.append(row)
    header = ["encoder", "documents", *(cell for name in MEASURES for cell in (name, "less shipped"))]
    parts = [ABOUT, table(header, rows)]
    others = [arm for arm in arms if arm != SHIPPED]
    for measure, title in enumerate(MEASURES):
        rows = []
        for name in names[SHIPPED]:
            base = found[SHIPPED][name]
            gaps = [difference(found[arm][name], base, measure) if name in names[arm] else "" for arm in others]
            rows.append([SETS[name].kind, name, str(len(base)), f"{base[:, measure].mean():.1f}", *gaps])
        parts += [f"### {title}", table(["left out", "measured on", "documents", SHIPPED, *others], rows)]
    areas = [(kind, found[TAGGER][AREA + kind]) for kind in KINDS if AREA + kind in found.get(TAGGER, {})]
    if areas:
        shares = ", ".join(f"{kind} {float(area):.1f}" for kind, area in areas)
        parts.append(f"Area under the curve of the taggers' tokens on the kind that they never saw, %: {shares}.")
    return parts


def main() -> int:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[QUERIES, *EVERY], default=[QUERIES, *EVERY])
    parser.add_argument("--quick", action="store_true", help="few documents; writes no page")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    sizes = (3, 1) if options.quick else (DOCUMENTS, CASES)
    for part in options.only:
        start, file = time.process_time(), WORK / (QUERY_PART if part == QUERIES else f"{part}-{STEPS}.npz")
        if part != QUERIES:
            measure_arm(part, file.with_suffix(".quick.npz") if options.quick else file, *sizes)
        elif options.quick:
            print(query_part(1))
        elif not file.is_file():
            file.write_text(query_part(None, READ), encoding="utf-8")
        print(part, f"{time.process_time() - start:.0f} s", flush=True)
    if not options.quick:
        write()
    return 0


def write() -> None:
    """The page of what has been measured."""
    parts = []
    if (WORK / QUERY_PART).is_file():
        parts += ["## Summaries with a query and without", (WORK / QUERY_PART).read_text(encoding="utf-8")]
    files = {arm: WORK / f"{arm}-{STEPS}.npz" for arm in EVERY}
    found = {arm: dict(np.load(file)) for arm, file in files.items() if file.is_file()}
    if SHIPPED in found:
        about = ABOUT_ENCODERS if {OWN, DENOISING} & found.keys() else ""
        missing = ", ".join(arm for arm in EVERY if arm not in found)
        about += f"\n\nNot measured yet: {missing}." if missing else ""
        parts += ["## On kinds left out of the fit", *arms_part(found), about.strip()]
    parts.append(f"{machine()}.")
    write_page("dialogue-bundled", "Long dialogues and the bundled models", [part for part in parts if part])


if __name__ == "__main__":
    sys.exit(main())
