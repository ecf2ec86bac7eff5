"""Coreference from scratch: documents read whole against the same model on segments of 384 tokens.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/coreference.py [--data litbank] [--seeds 1 2] [--epochs 15]

Both sides are the recipe `coref-small` and differ in one option: the encoder of one sees all that its windows reach,
that of the other only its own segment, which ends with a sentence. Mentions are compared over the whole document on
both sides. Scores are on the ten held-out documents. Finished runs are kept in `results/coreference.jsonl` and skipped
when the script is started again; `results/coreference.md` is written after every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from longspan.checkpoints.loading import load_pair
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from longspan_papers.coreference.metric import KINDS, coreference_scores
from longspan_papers.coreference.reading import read_coreference
from longspan_papers.coreference.rows import CoreferenceRow
from measure import RESULTS, machine, table


@dataclass(frozen=True)
class About:
    """A data set: how the page names it, and whether mentions without a partner are annotated in it."""

    title: str
    words: str
    singletons: bool


ABOUT = {
    "litbank": About(
        "LitBank",
        "80 documents of about 2,000 words, ten held out (fold 0 of ten); singletons counted as LitBank has them.",
        True,
    ),
    "ontogum": About(
        "OntoGUM", "84 documents of about 940 words in six genres, twelve held out; no singletons are annotated.", False
    ),
}
ARMS = {"whole": None, "384-token segments": 384}
"""Name in the table → longest segment of the encoder."""


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description="Coreference from scratch.")
    parser.add_argument("--data", nargs="+", default=list(ABOUT), choices=ABOUT)
    parser.add_argument("--work", type=Path, default=Path("runs/coreference"), help="folder for checkpoints")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--epochs", type=int, default=15, help="passes over the documents in every run")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    done = {(row["data"], row["arm"], row["seed"], row["epochs"]) for row in finished()}
    for seed, data, arm in product(options.seeds, options.data, ARMS):
        if (data, arm, seed, options.epochs) not in done:
            found = run(data, arm, seed, options.epochs, options.work)
            with (RESULTS / "coreference.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        write()


def run(data: str, arm: str, seed: int, epochs: int, work: Path) -> dict[str, Any]:
    """Train one side with one seed and score it."""
    documents = len(list(read_coreference(data, "train")))
    recipe = load_recipe(
        "coref-small",
        [
            f"optimisation.seed={seed}",
            f"optimisation.epochs={epochs}",
            f"optimisation.evaluate_every={documents * epochs // 3}",
            f"data.train=[{data}]",
            f"data.validation=[{data}]",
            f"task.singletons={'true' if ABOUT[data].singletons else 'false'}",
            "optimisation.report_to=[none]",
            f"task.head_options.segment_tokens={'null' if ARMS[arm] is None else ARMS[arm]}",
        ],
    )
    began = time.process_time()
    folder = train(recipe, work / f"{data}-{arm.split()[0]}-{seed}-{epochs}", resume=True).folder
    seconds = time.process_time() - began
    model, tokenizer = load_pair(str(folder))
    rows = list(read_coreference(data, "validation"))
    outcome = recipe.task.evaluate(model.eval(), tokenizer, rows, batch_size=1)
    found = [tuple(tuple(map(tuple, cluster)) for cluster in line["prediction"]) for line in outcome.lines]
    return {
        "data": data,
        "arm": arm,
        "seed": seed,
        "epochs": epochs,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "scores": outcome.scores,
        "apart": [far_links(row, clusters) for row, clusters in zip(rows, found, strict=True)],
        "seconds": round(seconds),
        "machine": machine(),
    }


def far_links(row: CoreferenceRow, clusters: Any, apart: int = 384) -> dict[str, int]:
    """Of annotated mentions whose last antecedent is at least so many words before, how many are in a cluster with any
    of their antecedents."""
    owner = {mention: number for number, cluster in enumerate(clusters) for mention in cluster}
    found = {"far": 0, "found": 0}
    for cluster in row.clusters:
        for index, mention in enumerate(cluster[1:], 1):
            if mention[0] - cluster[index - 1][1] >= apart:
                before = {owner[one] for one in cluster[:index] if one in owner}
                found["far"] += 1
                found["found"] += owner.get(mention) in before
    return found


def finished() -> list[dict[str, Any]]:
    """The runs that are done."""
    file = RESULTS / "coreference.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def same_words(data: str) -> dict[str, float]:
    """What no learning gives: the annotated mentions, those with the same words in lower case in one cluster."""
    pairs = []
    for row in read_coreference(data, "validation"):
        clusters: dict[str, list[tuple[int, int]]] = {}
        for mention in (mention for cluster in row.clusters for mention in cluster):
            clusters.setdefault(row.text(mention).lower(), []).append(mention)
        pairs.append((row.clusters, tuple(clusters.values())))
    return {
        **coreference_scores(pairs, singletons=ABOUT[data].singletons),
        "conll_without_singletons": coreference_scores(pairs)["conll"],
    }


def write() -> None:
    """The page of results."""
    runs = finished()
    weights = " or ".join(f"{number:,}" for number in sorted({one["weights"] for one in runs}))
    parts = [part(data, [one for one in runs if one["data"] == data]) for data in ABOUT]
    text = f"""# Coreference from scratch

Machine: {runs[-1]["machine"]}.

The recipe `coref-small`, {weights} weights of which nothing is pre-trained; scores in percent on held-out documents.
The two sides differ in what the encoder sees and in nothing else: whole documents, or segments of at most 384 tokens
that end with sentences. *Far links*: annotated mentions whose last antecedent is 384 words or more before them, and how
many share a cluster with one of their antecedents, all seeds together. With several seeds: the mean, then the least and
the most. Minutes are of processor time. The last row learns nothing, but is told the annotated mentions. The weights
kept are those with the best CoNLL score on the same documents among three evaluations, alike on both sides.

{chr(10).join(text for text in parts if text)}
Ten or twelve documents and so few seeds tell differences of several points only. MUC far above CEAF-φ4 means that
mentions are lumped into few clusters, which MUC hardly minds: these are scores of models at the beginning of their
training, and of neither side's limit.
"""
    (RESULTS / "coreference.md").write_text(text, encoding="utf-8")


def part(data: str, runs: list[dict[str, Any]]) -> str:
    """What the page says of one data set; nothing where no run is done."""
    names = ["conll", *KINDS, "mentions"] + ABOUT[data].singletons * ["conll_without_singletons"]
    rows = []
    for epochs, arm in product(sorted({one["epochs"] for one in runs}), ARMS):
        of = [one for one in runs if (one["epochs"], one["arm"]) == (epochs, arm)]
        if of:
            cells = [spread([one["scores"][name] for one in of]) for name in names]
            links = [sum(each[key] for one in of for each in one["apart"]) for key in ("found", "far")]
            minutes = spread([one["seconds"] / 60 for one in of])
            rows.append([f"{arm}, {epochs} epochs", *cells, f"{links[0]} of {links[1]}", str(len(of)), minutes])
    if not rows:
        return ""
    given = same_words(data)
    rows.append(["annotated mentions, same words", *[f"{given[name]:.1f}" for name in names], "", "", ""])
    header = ["", "CoNLL", "MUC", "B³", "CEAF-φ4", "mentions"] + ABOUT[data].singletons * ["CoNLL without singletons"]
    header += ["far links", "seeds", "minutes"]
    return f"## {ABOUT[data].title}\n\n{ABOUT[data].words}\n\n{table(header, rows)}\n"


def spread(values: list[float], digits: int = 1) -> str:
    """Their mean, and how far they lie apart."""
    mean, least, most = (f"{value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values)))
    return mean if len(values) < 2 else f"{mean} ({least}–{most})"


if __name__ == "__main__":
    main()
