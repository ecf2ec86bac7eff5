"""Summaries of meetings about a question, with and without it: ROUGE, content words, whether the right turns are hit.

Part of `dialogue_bundled.py`. QMSum's specific queries come with the turns that answer them, so that besides the words
of a summary its places can be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tools" / "bundled"))

from query_weights import Meeting, Question, meetings  # pyright: ignore[reportMissingImports]

from longspan.data.text.sentences import split_words
from longspan.tasks.metrics.bootstrap import bootstrap_difference
from longspan_documents.inference.summarize import WEIGHTS
from longspan_documents.summaries.picker import Picker
from longspan_documents.summaries.selection import ranking
from measure import shown, table
from summary_measures import picked, summary_of, values_of
from summary_methods import ORACLE, OURS, Method, Ours, encoder_of, lexical, oracle
from summary_sets import Case, usual_words

WITHOUT, MARKED = "ours without the query", "ours in the marked turns alone"
COLUMNS = ("ROUGE-1", "ROUGE-2", "content words", "words in marked turns, %", "hit, %", "marked turns found, %")
FAR = -1e3
ABOUT = """\
Each method ranks the sentences of the meeting, and a summary is filled in the order of the ranks up to {words} words,
the median of the training split's answers, the same for all. **Words in marked turns**: the share of the summary's
words that stand in turns which QMSum's annotators marked as answering (precision of places). **Hit**: the share of
summaries with at least one such sentence. **Marked turns found**: the share of the marked turns that some sentence is
from (recall; {turns:.0f} turns are marked on average, far more than {words} words have room for). Intervals: 95 %,
paired bootstrap over queries, ours with the query less the row. The weights of the query were fitted on training
meetings alone (`tools/bundled/query_weights.py`), how much they count was chosen there too; these meetings were looked
at with the method before, and measured once with this one. In
[summarize.md](summarize.md), on the same queries with as many words, the method before came to 23.6, 4.4 and 16.2, and
all-MiniLM-L6-v2 to 23.6, 4.5 and 15.8."""


def cases_of(split: str, most: int | None = None) -> list[tuple[Case, Meeting, Question]]:
    """Every specific query of a split."""
    words = usual_words("qmsum-queries", "train")
    found = []
    for number, meeting in enumerate(meetings(split, most)):
        texts = tuple(sentence.text for sentence in meeting.found)
        for index, question in enumerate(meeting.questions):
            case = Case(
                id=f"{number}#{index}",
                document=meeting.document,
                found=meeting.found,
                texts=texts,
                references=question.references,
                words=words,
                question=question.text,
            )
            found.append((case, meeting, question))
    return found


def methods_of(marked: Mapping[str, np.ndarray]) -> dict[str, Method]:
    """Ours with and without the query, other ways to rank by it, and two bounds; `marked` by the id of the case."""
    ours = Ours(Picker.load(WEIGHTS), encoder_of(None))
    return {
        OURS: lambda case: ours(case, case.question),
        WITHOUT: ours,
        "BM25": lexical,
        MARKED: lambda case: ours(case) + np.where(marked[case.id], 0, FAR),
        ORACLE: oracle,
    }


def places_of(case: Case, meeting: Meeting, question: Question, scores: np.ndarray) -> tuple[float, float, float]:
    """In percent: words of the summary in marked turns, whether there are any, and marked turns that it is from."""
    chosen = picked(case, scores)
    words, left = {}, case.words
    for index in ranking(scores):
        if index in chosen:
            words[index] = min(left, len(split_words(case.texts[index])))
            left -= words[index]
    right = [index for index in chosen if question.marked[index]]
    of = set(meeting.turns[question.marked])
    said = sum(words[index] for index in right)
    found = len({meeting.turns[index] for index in right})
    return 100 * said / max(sum(words.values()), 1), 100.0 * bool(right), 100 * found / max(len(of), 1)


def measured(every: Sequence[tuple[Case, Meeting, Question]], method: Method) -> tuple[np.ndarray, list[str]]:
    """`(N, 6)`, by `COLUMNS`, and the summaries."""
    scores = [np.asarray(method(case)) for case, _, _ in every]
    chosen = [case for case, _, _ in every]
    texts = [summary_of(case, own) for case, own in zip(chosen, scores, strict=True)]
    places = [places_of(*each, own) for each, own in zip(every, scores, strict=True)]
    return np.concatenate([values_of(chosen, texts), np.array(places)], axis=1), texts


def query_part(most: int | None, examples: Iterable[int] = ()) -> str:
    """The section of the page; the summaries of some queries are printed, to be read."""
    every = cases_of("validation", most)
    values, texts = {}, {}
    for name, method in methods_of({case.id: question.marked for case, _, question in every}).items():
        values[name], texts[name] = measured(every, method)
        print(name, *(f"{mean:.2f}" for mean in values[name].mean(0)), flush=True)
    for index in examples:
        case = every[index][0]
        print(f"? {case.question}\npeople: {case.references[0]}", flush=True)
        for name in texts:
            print(f"{name}: {texts[name][index]}", flush=True)
    rows = []
    for name, found in values.items():
        row = [name]
        for column in range(len(COLUMNS)):
            gap = bootstrap_difference(values[OURS][:, column].tolist(), found[:, column].tolist())
            row += [f"{found[:, column].mean():.1f}", "" if name == OURS else shown(gap, signed=True)]
        rows.append(row)
    header = ["ranked by", *(cell for name in COLUMNS for cell in (name, "ours − it"))]
    turns = float(np.mean([len(set(meeting.turns[question.marked])) for _, meeting, question in every]))
    about = ABOUT.format(words=every[0][0].words, turns=turns)
    return f"{len(every)} specific queries on QMSum's validation meetings.\n\n{about}\n\n{table(header, rows)}"
