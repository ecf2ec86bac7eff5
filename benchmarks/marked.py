"""Whether the sentence that `longspan answer` marks in a passage is the one that answers.

LONGSPAN_DATA=… python benchmarks/marked.py
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from answer_sets import Case, contracts, holds, hotpotqa, natural, reasons
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.ranking import PassageIndex, best_sentence, load_weights
from longspan_documents.questions.kinds import EXPLAINED, kind_of
from measure import machine, shown, table, write_page

HELD_OUT = "reasons, ways, definitions: held out"
ABOUT = """\
Each question is asked of its document. Of the passages that overlap a place where the answer stands, the one that ranks
first by words and the bundled encoder is taken, and in it the marked sentence. **Right:** the sentence overlaps such a
place. *Nearest* is the sentence with the largest sum of shared words and cosine, *marked* the one that
`longspan_documents.inference.ranking.best_sentence` chooses by this, names, numbers and the expected kind of answer.
*Chance* is the mean share of right sentences. In brackets the interval (95 %, bootstrap over questions), for
differences in pairs.

*Reasons, ways, definitions* are 68 questions that ask why, how or what something is
(`benchmarks/questions/README.md`): by those of five documents the rules were chosen, those of six others were held out.
The others are the sets of `benchmarks/answer.py` whose places are sentences or parts of them."""


def marked(cases: Iterator[Case]) -> Iterator[tuple[str, bool, bool, float]]:
    """Yields for each answered question the kind of answer, whether the nearest sentence and the marked one are right,
    and the share of right sentences."""
    weights = load_weights()["meaning"]
    for case in cases:
        index = PassageIndex([case.document], "en", bundled_encoder())
        for question, places in case.questions:
            right = np.array([holds(one, places) for one in index.passages])
            if not right.any():
                continue
            number = int(np.where(right, weights.scores(index.evidence(question)), -np.inf).argmax())
            sentences = index.passages[number].sentences
            answers = [any(one.start < end and start < one.end for start, end in places) for one in sentences]
            near = index.similarity(question, number)
            chosen = best_sentence(question, [one.text for one in sentences], near)
            yield str(kind_of(question)), answers[int(near.argmax())], answers[chosen], float(np.mean(answers))


def main() -> None:
    data = Path(os.environ["LONGSPAN_DATA"])
    sets = {
        "reasons, ways, definitions: design": reasons(data, "design"),
        HELD_OUT: reasons(data, "held out"),
        "other kinds": natural(data),
        "contracts": contracts(data),
        "HotpotQA": hotpotqa(data),
    }
    groups: dict[str, list[tuple[bool, bool, float]]] = defaultdict(list)
    for name, cases in sets.items():
        for kind, nearest, chosen, chance in marked(cases):
            places = [name]
            if kind in EXPLAINED and name in {HELD_OUT, "other kinds"}:
                places.append(f"{name}: {kind}")
            if not name.endswith("design"):
                places.append("all but the design")
            for place in places:
                groups[place].append((nearest, chosen, chance))
        print(name, len(groups[name]), flush=True)
    groups["all but the design"] = groups.pop("all but the design")  # the last row
    rows = []
    for name, found in groups.items():
        nearest, chosen = ([100.0 * one[place] for one in found] for place in (0, 1))
        chance = f"{100 * np.mean([one[2] for one in found]):.0f}"
        lead = shown(bootstrap_difference(chosen, nearest), signed=True)
        rows.append([name, str(len(found)), chance, shown(bootstrap(nearest)), shown(bootstrap(chosen)), lead])
    header = ["questions", "", "chance, %", "nearest, %", "marked, %", "marked − nearest"]
    parts = [ABOUT, table(header, rows), f"{machine()}."]
    print(write_page("marked", "The marked sentence", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
