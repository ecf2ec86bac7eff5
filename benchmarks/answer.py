"""The passages that `longspan answer` finds against BM25 and all-MiniLM-L6-v2, and how well it knows that it did.

LONGSPAN_DATA=… python benchmarks/answer.py [--weights FILE] [--name answers]
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from answer_sets import Case, holds, sets
from longspan.data.text.sentences import guess_language
from longspan.tasks.metrics.bootstrap import Interval, bootstrap, bootstrap_difference
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.passage_encoder import SecondLook, passage_encoder
from longspan_documents.inference.ranking import READ, SHOWN, WEIGHTS, PassageIndex, Weights, load_weights
from longspan_documents.inference.results import reads_english
from measure import RESULTS, machine, shown, table, write_page
from minilm import MiniLM, minilm

DRAWN = ("meetings", "proposals and papers", "other kinds")
"""Kinds with questions that have no answer."""
BIG = (*DRAWN, "contracts", "HotpotQA", "Wikipedia")
"""Kinds with enough questions for a curve."""
OURS, LEXICAL, TEACHER = "longspan answer", "BM25", "all-MiniLM-L6-v2"
ABOUT = f"""\
Every method ranks the same passages: runs of whole sentences of one section, of about 60 to 120 words. **One
definition of right:** a passage that overlaps a place where the answer stands. BM25 ranks by `bm25s` over stems
without function words; {TEACHER} by the cosine of question and passage; ours as fitted by
`tools/bundled/answer_weights.py` on training data alone. In brackets the interval (95 %, bootstrap over questions), for
differences in pairs.

- **meetings**: what people asked about the meetings of QMSum's validation split, with the turns that they marked.
- **proposals and papers**: headings of `permissive/` (validation), asked of documents in which they are masked.
- **other kinds**: 60 questions on a contract, a report, a patent, a page of Wikipedia, a role-play transcript and
  two plays, asked in other words than the documents' (`benchmarks/questions/`).
- **contracts**: what CUAD asks of 19 contracts, with the clauses that lawyers marked. **HotpotQA**: 100 questions over
  ten paragraphs each, with their supporting sentences. **Wikipedia**: derived questions of Natural Questions. **TyDi
  QA**: the sample rows that have an answer. Nothing was fitted on any of them; half of the contracts, HotpotQA and
  most of Wikipedia's were looked at to choose which signs tell how sure an answer is.

Questions without an answer: 18 among the other kinds; of meetings, proposals and papers half the questions, asked of
another document of the same source. **How sure:** the area under the curve of the probability, for "one of the three
passages holds the answer" against not, questions without an answer included."""


@dataclass(frozen=True)
class Outcome:
    """One question: how the right passages were ranked by each method, and how sure ours was.

    Attributes:
        ranks: of the best right passage, from 0, by method; None without an answer.
        probability: that one of the first three answers, as ours says.
        silent: whether ours said that there is no answer.
    """

    kind: str
    ranks: dict[str, int] | None
    probability: float
    silent: bool

    @property
    def found(self) -> bool:
        """Whether one of our first three passages is right."""
        return self.ranks is not None and self.ranks[OURS] < SHOWN


def outcomes(
    kind: str,
    cases: Iterator[Case],
    others: bool,
    fitted: dict[str, Weights],
    teacher: MiniLM | None,
) -> Iterator[Outcome]:
    """What each method finds; with `others`, half the questions are asked of the next document too."""
    before: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()
    for case in cases:
        text = case.document.text
        english = reads_english(text)
        weights = fitted["meaning" if english and "meaning" in fitted else "words"]
        encoder = load_encoder() if "nearest" in weights.rank else None
        index = PassageIndex([case.document], guess_language(text), encoder)
        second = SecondLook(passage_encoder(), index.texts) if encoder is not None and READ in fitted else None
        vectors = teacher and teacher.embed_document([one.text for one in index.passages])
        foreign = tuple((question, ()) for question, _ in before[::2]) if others else ()
        for question, places in (*case.questions, *foreign):
            evidence = index.evidence(question)
            if second is None:
                ranking = weights.ranking(evidence)
            else:
                ranking = second.ranking(question, evidence, weights, fitted[READ])
            right = np.array([holds(one, places) for one in index.passages])
            scores = {OURS: ranking.scores, LEXICAL: evidence.column("words")}
            if teacher is not None:
                scores[TEACHER] = vectors @ teacher.embed([question])[0]
            ranks = {name: int(right[np.argsort(-values, kind="stable")].argmax()) for name, values in scores.items()}
            yield Outcome(kind, ranks if right.any() else None, ranking.probability, not ranking.may_answer(None))
        before = case.questions


def area(sure: Sequence[float], right: Sequence[bool]) -> float:
    """The area under the curve: how often a right one is surer than a wrong one, equal ones counting half."""
    yes = np.array([one for one, is_right in zip(sure, right, strict=True) if is_right])
    no = np.array([one for one, is_right in zip(sure, right, strict=True) if not is_right])
    if not len(yes) or not len(no):
        return float("nan")
    return float((yes[:, None] > no).mean() + 0.5 * (yes[:, None] == no).mean())


def area_interval(found: Sequence[Any], samples: int = 1000) -> Interval:
    """The area with its bootstrap interval over questions, each with a `probability` and whether it was `found`."""
    sure, right = np.array([one.probability for one in found]), np.array([one.found for one in found])
    random = np.random.default_rng(0)
    drawn = [area(sure[rows], right[rows]) for rows in random.integers(len(found), size=(samples, len(found)))]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Interval(area(sure.tolist(), right.tolist()), float(low), float(high))


def hits(found: Sequence[Outcome], method: str, first: int) -> list[float]:
    """For each question with an answer whether one of the first passages is right, 100 or 0."""
    return [100.0 * (one.ranks[method] < first) for one in found if one.ranks is not None]


def rows_of_hits(groups: dict[str, list[Outcome]], methods: Sequence[str]) -> list[list[str]]:
    """One row per kind, method and depth, with the lead of ours."""
    rows = []
    for kind, found in groups.items():
        for method in methods:
            row = [kind, str(len(hits(found, OURS, 1))), method]
            for first in (1, SHOWN):
                values = hits(found, method, first)
                lead = bootstrap_difference(hits(found, OURS, first), values)
                row += [shown(bootstrap(values)), "" if method == OURS else shown(lead, signed=True)]
            rows.append(row)
    return rows


def rows_of_sureness(groups: dict[str, list[Outcome]]) -> list[list[str]]:
    """One row per kind: the area, how often "no answer" is said, is right, and nothing that is shown answers."""
    rows = []
    for kind, found in groups.items():
        silent = [one for one in found if one.silent]
        right = sum(one.ranks is None for one in silent)
        none = sum(one.ranks is None for one in found)
        empty = sum(not one.found for one in silent)
        counts = map(str, (len(silent), right, empty))
        rows.append([kind, f"{len(found) - none} + {none}", shown(area_interval(found), digits=2), *counts])
    return rows


def draw_reliability(groups: dict[str, list[Outcome]], path: Path, bins: int = 6) -> None:
    """How often one of three passages is right, for questions of about equal probability."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.6))
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--")
    for (kind, found), color in zip(groups.items(), ("#1f5f99", "#e07b28", "#2f8f5b"), strict=True):
        ordered = sorted(found, key=lambda one: one.probability)
        parts = [part for part in np.array_split(np.arange(len(ordered)), bins) if len(part)]
        said = [np.mean([ordered[index].probability for index in part]) for part in parts]
        seen = [np.mean([ordered[index].found for index in part]) for part in parts]
        axes.plot(said, seen, marker="o", color=color, label=kind)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability that is shown", ylabel="share where a passage answers")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--name", default="answers", help="of the page in benchmarks/results")
    options = parser.parse_args()
    data = Path(os.environ["LONGSPAN_DATA"])
    teacher = minilm()
    fitted = load_weights(options.weights)
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for kind, (cases, others) in sets(data).items():
        groups[kind] = list(outcomes(kind, cases(), others, fitted, teacher))
        print(kind, len(groups[kind]), flush=True)
    methods = [OURS, LEXICAL, *([TEACHER] if teacher is not None else [])]
    big = {kind: groups[kind] for kind in BIG}
    draw_reliability({kind: big[kind] for kind in DRAWN}, RESULTS / f"{options.name}.png")
    header = ["questions", "", "method", "right first, %", "ours − it", "right among three, %", "ours − it"]
    sure = ["questions", "with + without an answer", "area under the curve", 'said "no answer"']
    sure += ["the document has none", "none among those shown"]
    how = "words and an encoder" if "meaning" in fitted else "words alone"
    parts = [
        ABOUT,
        table(header, rows_of_hits(groups, methods)),
        table(sure, rows_of_sureness(big)),
        f"![probability against how often it is right]({options.name}.png)",
        f"Ranked with {how}. {machine()}.",
    ]
    print(write_page(options.name, "Finding the passage that answers", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
