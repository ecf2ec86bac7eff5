"""Summaries by `longspan summarize` against other ways to pick sentences, on every validation set of the data folder.

LONGSPAN_DATA=… python benchmarks/summarize.py [--weights FILE] [--only [left-out picks queries]] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from longspan.tasks.metrics.bootstrap import Interval, bootstrap_difference
from longspan_documents.inference.summarize import WEIGHTS
from longspan_documents.summaries.picker import Picker
from measure import machine, table, write_page
from summary_measures import MEASURES, reading, summary_of, values_of
from summary_methods import (
    DRAWS,
    LONGEST,
    ORACLE,
    OURS,
    PEERS,
    RANDOM,
    Fits,
    Method,
    Ours,
    encoder_of,
    lexical,
    longest,
    nearest,
    oracle,
    peers_of,
    random,
)
from summary_sets import SETS, Case, cases, specific_queries

Values = Mapping[str, np.ndarray]
"""By method `(N, 3)`: the measures of each document."""
LEFT_OUT = ("papers", "python", "chains", "clouds", "languages", "meetings", "stories")
PARTS = ("left-out", "picks", "queries")
READ = (OURS, "lead", "LexRank", ORACLE)
"""Methods whose picks are looked at."""
ABOUT = f"""\
Every method ranks the same sentences, those that `longspan summarize` finds in the document. A summary is filled in the
order of the ranks up to the same number of words (the median of the references of the training split, or of the
validation split for GovReport and patents, which have no other), its last sentence is cut there, and the sentences
are put into the document's order. So no method gains by being longer.

- **ours**: the weights and the encoder of the package, fitted by `tools/bundled/summary_weights.py` on training splits
  alone. Some constants (how sentences are charged for their length, when centrality steps in) were chosen in view of
  some of these sets and of kinds left out, so a little of the lead may be luck of that choice.
- **peers**: the document's lead; TextRank, LexRank and LSA as `sumy` ranks (with English stems and stop words);
  MiniLM centroid: the cosine of a sentence's vector by all-MiniLM-L6-v2 and the mean of all. The best peer is the one
  with the best mean in this very row, chosen for each measure.
- **random**: the mean of {DRAWS} draws. **oracle**: sentences ranked by what they share with the references.
- **ROUGE-1, ROUGE-2**: F1 in percent by `rouge_score` with Porter stems. **content words**: F1 of Porter stems without
  function words and numbers. Of several references the best counts.
- **ours − it**: with its interval (95 %, bootstrap over documents, in pairs); ▲ it lies above 0, ▼ below."""

ABOUT_LEFT_OUT = """\
The weights fitted anew without any document of a kind, and measured on that kind: how far it holds up on what it never
saw. The encoder, which was never told what a summary is, has read training documents of every kind but those of
PubMed and SciSummNet."""
READING = """\
Of all picks, the one that is cut included: **hanging**, it begins with a pronoun or connective, and the sentence before
is not in the summary; **roadmap**, it tells where something stands; **fragment**, it does not end as a sentence, begins
in lower case or has fewer than four words. All three by word lists of the benchmark, not those of the package. Last,
Spearman's correlation of a method's scores with the share of function words, mean over documents."""


def measured(chosen: Sequence[Case], methods: Mapping[str, Method]) -> dict[str, np.ndarray]:
    """Each method on these documents, random and oracle too."""

    def values(rank: Method) -> np.ndarray:
        return values_of(chosen, [summary_of(case, rank(case)) for case in chosen])

    found = {name: values(rank) for name, rank in methods.items()}
    return {**found, RANDOM: np.mean([values(partial(random, draw=draw)) for draw in range(DRAWS)], axis=0)}


def best_peer(values: Values, measure: int, names: Sequence[str] = PEERS) -> str:
    """The peer with the best mean."""
    return max((name for name in names if name in values), key=lambda name: values[name][:, measure].mean())


def lead_over(values: Values, other: str, measure: int) -> Interval:
    """Ours less another."""
    return bootstrap_difference(values[OURS][:, measure].tolist(), values[other][:, measure].tolist())


def shown(interval: Interval) -> str:
    """ "+1.2 (0.3, 2.1) ▲" """
    mark = " ▲" if interval.low > 0 else " ▼" if interval.high < 0 else ""
    return f"{interval.mean:+.1f} ({interval.low:+.1f}, {interval.high:+.1f}){mark}"


def row_of(name: str, chosen: Sequence[Case], values: Values) -> list[str]:
    """One set: ours, the best peer and the difference, for each measure."""
    row = [name, str(len(chosen)), words_of_set(chosen)]
    for measure in range(len(MEASURES)):
        best = best_peer(values, measure)
        ours, peer, low, high = (values[each][:, measure].mean() for each in (OURS, best, RANDOM, ORACLE))
        row += [f"{ours:.1f}", f"{best} {peer:.1f}", shown(lead_over(values, best, measure)), f"{low:.1f}, {high:.1f}"]
    return row


def words_of_set(chosen: Sequence[Case]) -> str:
    """ "213", or "150 to 240" where sources of different lengths are pooled."""
    lengths = sorted({case.words for case in chosen})
    return str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"


def header() -> list[str]:
    """Of the main table."""
    columns = [column for name in MEASURES for column in (f"{name}: ours", "best peer", "ours − it", "random, oracle")]
    return ["documents", "", "words", *columns]


def verdict(everything: Mapping[str, Values]) -> str:
    """Where ours is surely below and surely above the best peer."""
    lines = []
    for measure, name in enumerate(MEASURES):
        leads = {each: lead_over(values, best_peer(values, measure), measure) for each, values in everything.items()}
        below = "; ".join(each for each, lead in leads.items() if lead.high < 0) or "nowhere"
        above = "; ".join(each for each, lead in leads.items() if lead.low > 0) or "nowhere"
        lines.append(f"- **{name}**: surely below the best peer: {below}. Surely above it: {above}.")
    return "\n".join(lines)


def means_of(everything: Mapping[str, Values]) -> str:
    """All methods' means, "ROUGE-1 / ROUGE-2 / content words"."""
    names = [OURS, *PEERS, LONGEST, RANDOM, ORACLE]
    rows = []
    for each, values in everything.items():
        cells = [" / ".join(f"{mean:.1f}" for mean in values[name].mean(0)) if name in values else "" for name in names]
        rows.append([each, *cells])
    return table(["documents", *names], rows)


def kind_of_reading(name: str) -> str:
    """The kind under which the picks of a set are shown."""
    kind = SETS[name].kind
    return "proposals" if kind in ("python", "chains", "clouds", "languages") else kind


def reading_of(sets: Mapping[str, list[Case]], methods: Mapping[str, Method]) -> str:
    """How the picks read, kind by kind."""
    rows = []
    for kind in dict.fromkeys(map(kind_of_reading, sets)):
        chosen = [case for name, each in sets.items() if kind_of_reading(name) == kind for case in each]
        for name in READ:
            *shares, correlation = reading(chosen, [methods[name](case) for case in chosen])
            rows.append([kind, name, *(f"{share:.1f}" for share in shares), f"{correlation:+.2f}"])
    columns = ["hanging, %", "roadmap, %", "fragment, %", "score and function words"]
    return table(["kind", "picks of", *columns], rows)


def left_out(
    sets: Mapping[str, list[Case]], everything: Mapping[str, Values], fits: Fits, kinds: Sequence[str]
) -> list[list[str]]:
    """One row per set of each kind, ours fitted without that kind."""
    rows = []
    for kind in kinds:
        ours = Ours(fits.without(kind), fits.encoder)
        for name in (name for name in sets if SETS[name].kind == kind):
            values = values_of(sets[name], [summary_of(case, ours(case)) for case in sets[name]])
            rows.append([kind, *row_of(name, sets[name], {**everything[name], OURS: values})])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def query_table(ours: Ours, most: int | None) -> str:
    """Ours with the query against ours without, and against other ways to rank sentences by a query."""
    chosen = specific_queries(most)
    meaning = nearest()
    methods: dict[str, Method] = {
        OURS: lambda case: ours(case, case.question),
        "ours without the query": ours,
        "BM25": lexical,
        **({} if meaning is None else {"MiniLM": meaning}),
        ORACLE: oracle,
    }
    values = measured(chosen, methods)
    rows = []
    for name, each in values.items():
        row = [name]
        for measure in range(len(MEASURES)):
            lead = "" if name in (OURS, RANDOM, ORACLE) else shown(lead_over(values, name, measure))
            row += [f"{each[:, measure].mean():.1f}", lead]
        rows.append(row)
    columns = [column for name in MEASURES for column in (name, "ours − it")]
    about = (
        f"{len(chosen)} questions about parts of QMSum's validation meetings, summaries of {words_of_set(chosen)} "
        "words; BM25 over stems and MiniLM rank sentences by the question."
    )
    return f"{about}\n\n{table(['ranked by', *columns], rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--encoder", type=Path, help="folder of another encoder, that the weights were fitted with")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS, help="parts beside the main table")
    parser.add_argument("--quick", action="store_true", help="two documents of each source, short fits")
    options = parser.parse_args(arguments)
    name = "summarize-quick" if options.quick else "summarize"
    most = 2 if options.quick else None
    encoder = encoder_of(options.encoder)
    ours = Ours(Picker.load(options.weights), encoder)
    methods: dict[str, Method] = {OURS: ours, **peers_of(), LONGEST: longest, ORACLE: oracle}
    sets, everything = {}, {}
    for each, chosen in SETS.items():
        start = time.process_time()
        sets[each] = list(cases(chosen, most))
        everything[each] = measured(sets[each], methods)
        print(
            *row_of(each, sets[each], everything[each]), f"{time.process_time() - start:.0f} s", sep=" | ", flush=True
        )
    main_rows = [row_of(each, sets[each], everything[each]) for each in sets]
    parts = [ABOUT, verdict(everything), table(header(), main_rows), "## All means", means_of(everything)]

    def write() -> None:
        write_page(name, "Summaries against other ways to pick sentences", [*parts, f"{machine()}."])

    write()
    if "picks" in options.only:
        parts += ["## How the picks read", READING, reading_of(sets, methods)]
        write()
    if "queries" in options.only:
        parts += ["## Summaries about a query", query_table(ours, most)]
        write()
    if "left-out" in options.only:
        fits = Fits(encoder, 8) if options.quick else Fits(encoder)
        kinds = LEFT_OUT[-2:] if options.quick else LEFT_OUT
        rows = left_out(sets, everything, fits, kinds)
        parts += ["## Kinds of documents left out of the fit", ABOUT_LEFT_OUT, table(["left out", *header()], rows)]
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
