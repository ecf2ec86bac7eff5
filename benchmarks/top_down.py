"""Top-down and bottom-up inference and its ablations, trained from scratch at equal steps on real long documents.

    LONGSPAN_DATA=… python benchmarks/top_down.py [--work DIR] [--steps 640] [--seeds 1 2 3]

A small encoder-decoder learns to write the abstracts of papers, by the recipes top-down-small*: half of the papers are
PubMed Central's, half SumPubMed's, and the two are scored apart. Every arm has the same sizes, steps, documents and
order of documents; what differs is how tokens learn of segments. AdaPool is trained with the labels of the abstracts
and scored with the probabilities of a tagger, which is trained for it with the same seed and as many steps; "oracle"
scores the same model with the labels, which is an upper bound. Taggers are compared first: they learn more in as many
steps, since each token of a document tells them something. Finished runs are appended to `results/top-down.jsonl`, and
`results/top-down.md` is written after each.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import arms
from longspan.checkpoints.loading import load_pair
from longspan.data.summaries.readers import read_rows
from longspan.training.evaluate import evaluate
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RUNS = arms.RESULTS / "top-down.jsonl"
ARMS = {
    "bottom-up only": "top-down-small-bottom-up",
    "concatenation": "top-down-small-concatenate",
    "AvgPool": "top-down-small",
    "AdaPool": "top-down-small-adapool",
}
TAGGERS = {
    "bottom-up only": {"stack": "top_down", "top_down": "none"},
    "concatenation": {"stack": "top_down", "segment_layers": 1, "top_down": "concatenate"},
    "AvgPool": {"stack": "top_down", "segment_layers": 1},
}
"""Stacks of the taggers that are compared; the last is AdaPool's."""
ORACLE = "AdaPool, oracle"
PUBLISHED = {
    "bottom-up only": (46.97, 20.23, 42.88),
    "concatenation": (47.04, 20.36, 43.03),
    "AvgPool": (48.34, 21.40, 44.22),
    "AdaPool": (51.05, 23.26, 46.47),
}
"""ROUGE-1, -2 and -L of BART-large on PubMed, at second hand: the order to compare with, not the level."""
SOURCES = {"PubMed Central": "permissive-papers", "SumPubMed": "pubmed-large"}
"""Articles of PubMed Central under CC BY, and SumPubMed's, in lower case and without their methods."""
TOKENS, TARGET = 1024, 256
"""Of a document and of an abstract, fewer and more than in the recipes: more updates in the same time, and more of what
they learn from."""
TRAINED = 500
"""Training papers of each source, and so fewer than twice as many updates need none twice."""
VALIDATED = 60
"""Validation papers of each source whose loss is taken."""
SUMMARIES = 16
"""Validation papers of each source that are summarised; decoding is slow, and the loss says more about such models."""

Papers = dict[str, dict[str, Path]]
"""The files of each source, by split."""


def main() -> None:
    """Run what is missing, then write the page."""
    given = arms.options("Top-down and bottom-up inference and its ablations, from scratch.", "runs/top-down")
    arms.RESULTS.mkdir(exist_ok=True)
    given.work.mkdir(parents=True, exist_ok=True)
    papers = {source: _papers(given.work, source) for source in SOURCES}
    _mixed(given.work, papers)
    tokenizer = arms.shared_tokenizer(given.work, recipe_of("top-down-small", 1, given).data)
    changes = [f"tokenizer.from={json.dumps(str(tokenizer))}"]
    for seed in given.seeds:
        for arm in TAGGERS:
            if not arms.is_finished(RUNS, f"tagger, {arm}", seed):
                _tag(arm, seed, given, changes, papers)
    for seed in given.seeds:
        for arm, name in ARMS.items():
            if not arms.is_finished(RUNS, arm, seed):
                tagger = [f"task.tagger={json.dumps(str(_tagger('AvgPool', seed, given)))}"] * (arm == "AdaPool")
                _run(arm, seed, recipe_of(name, seed, given, *changes, *tagger), given, papers)


def _papers(work: Path, source: str) -> dict[str, Path]:
    """The rows of a source that are used, a file for each split."""
    found = {}
    for split, count in {"train": TRAINED, "validation": VALIDATED}.items():
        found[split] = work / f"{SOURCES[source]}-{split}.jsonl"
        if not found[split].is_file():
            rows = read_rows(SOURCES[source], split, limit=count)
            fields = ({"id": row.id, "source": row.source, "target": row.reference} for row in rows)
            found[split].write_text("".join(json.dumps(one) + "\n" for one in fields), encoding="utf-8")
    return found


def _mixed(work: Path, papers: Papers) -> None:
    """The training papers of all sources by turns, for a vocabulary and steps that see as many of each."""
    columns = [files["train"].read_text(encoding="utf-8").splitlines(keepends=True) for files in papers.values()]
    text = "".join(line for row in zip(*columns, strict=True) for line in row)
    (work / "train.jsonl").write_text(text, encoding="utf-8")


def recipe_of(name: str, seed: int, given: argparse.Namespace, *changes: str) -> Recipe:
    """A recipe of the repository with this seed, these steps and papers; validated on few, since nothing is chosen."""
    validation = [str(given.work / f"{folder}-validation.jsonl") for folder in SOURCES.values()]
    task = [f"task.max_tokens={TOKENS}"] if name.endswith("tagger") else [f"task.max_source_tokens={TOKENS}"]
    if not name.endswith("tagger"):
        task += [f"task.max_target_tokens={TARGET}"]
    common = [
        *task,
        f"model.max_tokens={TOKENS}",
        f"optimisation.seed={seed}",
        f"optimisation.steps={given.steps}",
        f"optimisation.log_every={min(40, given.steps)}",
        f"optimisation.evaluate_every={given.steps}",
        f"data.train={json.dumps([str(given.work / 'train.jsonl')])}",
        f"data.validation={json.dumps(validation)}",
        "data.validation_rows=4",
        "tokenizer.train=null",
        "tokenizer.rows=null",
        'tokenizer.from="none yet"',
    ]
    return load_recipe(name, [*common, *changes])


def _tagger(arm: str, seed: int, given: argparse.Namespace) -> Path:
    return given.work / f"tagger-{arm.replace(' ', '-')}-{seed}"


def _tag(
    arm: str, seed: int, given: argparse.Namespace, changes: list[str], papers: dict[str, dict[str, Path]]
) -> None:
    """Train a tagger, and keep how well it tags."""
    recipe = recipe_of("top-down-small-tagger", seed, given, *changes, f"model.stack={json.dumps(TAGGERS[arm])}")
    folder, began = _tagger(arm, seed, given), time.process_time()
    resumed = folder.exists()
    train(recipe, folder, resume=True)
    spent = None if resumed else round(time.process_time() - began, 1)
    scores = {one: evaluate(folder, str(files["validation"])).scores for one, files in papers.items()}
    _add({"arm": f"tagger, {arm}", "seed": seed, "train_cpu_seconds": spent, "of": scores}, given)


def _run(arm: str, seed: int, recipe: Recipe, given: argparse.Namespace, papers: Papers) -> None:
    """Train an arm, or go on, and score it; a model that weighs tokens also as the references would have it."""
    folder = given.work / f"{recipe.name}-{seed}"
    resumed, began = folder.exists(), time.process_time()
    train(recipe, folder, resume=True)
    spent = None if resumed else round(time.process_time() - began, 1)
    note = {"seed": seed, "steps": given.steps, "train_cpu_seconds": spent}
    task = recipe.task
    if task.importance != "none" and not arms.is_finished(RUNS, ORACLE, seed):
        oracle = replace(task, importance="labels", tagger=None)
        _add(
            {"arm": ORACLE, **note, "of": {one: _scores(folder, recipe, oracle, papers[one]) for one in papers}}, given
        )
    _add({"arm": arm, **note, "of": {one: _scores(folder, recipe, task, papers[one]) for one in papers}}, given)


@torch.no_grad()
def _scores(folder: Path, recipe: Recipe, task: Any, files: dict[str, Path]) -> dict[str, Any]:
    """Bits per token of the abstracts of a source, ROUGE of the first summaries, and these themselves."""
    model, tokenizer = load_pair(folder)
    model.eval().generation_config.update(max_length=None, **recipe.generation.options())
    rows = task.read(str(files["validation"]), "validation", None)
    collate, lost, tokens = task.collator(tokenizer), 0.0, 0
    for row in rows:
        batch = collate([task.features(row, tokenizer)])
        count = int((batch["labels"] >= 0).sum())
        lost, tokens = lost + count * float(model(**batch).loss), tokens + count
    outcome = task.evaluate(model, tokenizer, rows[:SUMMARIES], batch_size=1)
    texts = [line["prediction"] for line in outcome.lines]
    (folder / f"summaries-{files['validation'].stem}-{task.importance}.json").write_text(json.dumps(texts, indent=1))
    return {"bits": lost / tokens / math.log(2), "scores": outcome.scores, "flavour": outcome.flavour}


def _add(row: dict[str, Any], given: argparse.Namespace) -> None:
    with RUNS.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    arms.write(arms.RESULTS / "top-down.md", _report(arms.finished(RUNS), given))


def _report(rows: list[dict[str, Any]], given: argparse.Namespace) -> str:
    lines = [
        "# Top-down and bottom-up inference from scratch",
        "",
        "A new encoder-decoder (two bottom-up layers and a top-down one, windows of 128 tokens, a layer over segments "
        "of 32 tokens every 24; 1 decoder layer; 64 wide, 2 heads, vocabulary 2 000), "
        f"{given.steps} updates of one document each, {TOKENS} source tokens, {TARGET} target tokens, learning rate "
        "2e-3. "
        f"Papers to abstracts: {TRAINED} training papers of PubMed Central (CC BY) and {TRAINED} of SumPubMed, "
        f"shuffled by the seed. Validation loss on {VALIDATED} papers of each source, ROUGE of greedy summaries (48 to "
        f"64 tokens, no trigram twice) on {SUMMARIES} of each. Mean ± standard deviation over seeds "
        f"{arms.seeds_of([row for row in rows if row['arm'] in ARMS])}.",
        "",
    ]
    for source in SOURCES:
        found = [row | row["of"][source] for row in rows if row["arm"] in ARMS]
        lines += [f"## {source}", "", *arms.table(found, ARMS, "tokens learn of segments by", PUBLISHED), ""]
        lines += [*arms.paired(found, ARMS, "bottom-up only"), "", *_bound(rows, source), *_tagging(rows, source)]
    flavours = [row["of"]["SumPubMed"]["flavour"] for row in rows if row["arm"] in ARMS]
    lines += [
        f"ROUGE: {flavours[0] if flavours else ''}. The published column is BART-large on PubMed, quoted at second "
        "hand: compare orders, not levels. AdaPool's seconds are without its tagger's, which is AvgPool's. Taggers are "
        "scored on all tokens, in percent; the average precision of chance is the share of important tokens.",
        "",
        *arms.machine(),
    ]
    return "\n".join(lines) + "\n"


def _tagging(rows: list[dict[str, Any]], source: str) -> list[str]:
    """How well the taggers tag a source."""
    lines = [
        "| tagger: tokens learn of segments by | average precision ↑ | each seed | F1 | chance | CPU s, training |",
        "|---|---|---|---|---|---|",
    ]
    for arm in TAGGERS:
        runs = sorted((row for row in rows if row["arm"] == f"tagger, {arm}"), key=lambda row: row["seed"])
        if not runs:
            continue
        found = [row["of"][source] for row in runs]
        each = " ".join(f"{one['average_precision']:.1f}" for one in found)
        cells = [arms.spread([one[name] for one in found], 1) for name in ("average_precision", "f1")]
        seconds = [row["train_cpu_seconds"] for row in runs if row["train_cpu_seconds"]]
        spent = f"{sum(seconds) / len(seconds):.0f}" if seconds else "–"
        lines.append(f"| {arm} | {cells[0]} | {each} | {cells[1]} | {found[0]['important']:.1f} | {spent} |")
    return [*lines, ""]


def _bound(rows: list[dict[str, Any]], source: str) -> list[str]:
    """What AdaPool would be with a perfect tagger."""
    shown = [row["of"][source] for row in rows if row["arm"] == ORACLE]
    if not shown:
        return []
    oracles = [{"bits": one["bits"], **one["scores"]} for one in shown]
    names = ("bits", "rouge1", "rouge2", "rougeL")
    spreads = ", ".join(f"{name} {arms.spread([each[name] for each in oracles], 3)}" for name in names)
    return [f"Upper bound, no result: AdaPool shown the labels of the references (OracleAdaPool): {spreads}.", ""]


if __name__ == "__main__":
    main()
