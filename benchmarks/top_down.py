"""Top-down and bottom-up inference and its ablations, trained from scratch at equal steps on real long documents.

    LONGSPAN_DATA=… python benchmarks/top_down.py [--work DIR] [--steps 240] [--seeds 1 2 3]

A small encoder-decoder learns to write the abstracts of PubMed papers, by the recipes top-down-small*. Every arm has
the same sizes, steps, documents and order of documents; what differs is how tokens learn of segments. AdaPool is
trained with the labels of the abstracts and scored with the probabilities of a tagger, which is trained for it with the
same seed and as many steps; "oracle" scores the same model with the labels, which is an upper bound. Finished runs are
appended to `results/top-down.jsonl`; at the end, `results/top-down.md` is written.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import arms
from longspan.checkpoints.loading import load_pair
from longspan.training.evaluate import evaluate
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RUNS, TAGGERS = arms.RESULTS / "top-down.jsonl", arms.RESULTS / "top-down-taggers.jsonl"
RECIPES = Path(__file__).parents[1] / "recipes"
ARMS = {
    "bottom-up only": "top-down-small-bottom-up",
    "concatenation": "top-down-small-concatenate",
    "AvgPool": "top-down-small",
    "AdaPool": "top-down-small-adapool",
}
PUBLISHED = {
    "bottom-up only": (46.97, 20.23, 42.88),
    "concatenation": (47.04, 20.36, 43.03),
    "AvgPool": (48.34, 21.40, 44.22),
    "AdaPool": (51.05, 23.26, 46.47),
}
"""ROUGE-1, -2 and -L of BART-large on PubMed, at second hand: the order to compare with, not the level."""
SUMMARIES = 24
"""Validation papers that are summarised; decoding is slow, and the loss says more about models this small."""


def main() -> None:
    """Run what is missing, then write the table."""
    given = arms.options("Top-down and bottom-up inference and its ablations, from scratch.", "runs/top-down")
    arms.RESULTS.mkdir(exist_ok=True)
    tokenizer = arms.shared_tokenizer(given.work, load_recipe(RECIPES / "top-down-small.yaml").data)
    for seed in given.seeds:
        for arm in ARMS:
            if not arms.is_finished(RUNS, arm, seed):
                recipe = recipe_of(ARMS[arm], seed, given, tokenizer)
                if recipe.task.get("importance") == "tagger":
                    _tag(seed, given, tokenizer)
                folder = given.work / f"{recipe.name}-{seed}"
                arms.run_summarizer(RUNS, arm, seed, recipe, folder, "pubmed", SUMMARIES)
        _score_oracle(seed, given)
    arms.write(arms.RESULTS / "top-down.md", _report(arms.finished(RUNS), arms.finished(TAGGERS), given))


def recipe_of(name: str, seed: int, given: argparse.Namespace, tokenizer: Path) -> Recipe:
    """A recipe of the repository with this seed, these steps and the tokenizer of all runs."""
    changes = [
        f"optimisation.seed={seed}",
        f"optimisation.steps={given.steps}",
        f"optimisation.log_every={min(40, given.steps)}",
        f"optimisation.evaluate_every={given.steps}",
        "tokenizer.train=null",
        "tokenizer.rows=null",
        f"tokenizer.from={json.dumps(str(tokenizer))}",
    ]
    if name.endswith("adapool"):
        changes.append(f"task.tagger={json.dumps(str(_tagger(seed, given)))}")
    return load_recipe(RECIPES / f"{name}.yaml", changes)


def _tagger(seed: int, given: argparse.Namespace) -> Path:
    return given.work / f"tagger-{seed}"


def _tag(seed: int, given: argparse.Namespace, tokenizer: Path) -> None:
    """Train the tagger of a seed, and keep how well it tags."""
    if arms.is_finished(TAGGERS, "tagger", seed):
        return
    trained = train(recipe_of("top-down-small-tagger", seed, given, tokenizer), _tagger(seed, given), resume=True)
    scored = evaluate(trained.folder, "pubmed", limit=SUMMARIES)
    _add({"arm": "tagger", "seed": seed, "scores": scored.scores})


def _score_oracle(seed: int, given: argparse.Namespace) -> None:
    """What the trained AdaPool writes when it is shown the labels: an upper bound."""
    if arms.is_finished(TAGGERS, "oracle", seed):
        return
    folder = given.work / f"{ARMS['AdaPool']}-{seed}"
    recipe = load_recipe(folder / "recipe.yaml")
    model, tokenizer = load_pair(folder)
    model.generation_config.update(max_length=None, **recipe.generation.options())
    task = replace(recipe.build_task(), importance="labels", tagger=None)
    rows = task.read("pubmed", "validation", SUMMARIES)
    outcome = task.evaluate(model, tokenizer, rows, batch_size=1)
    _add({"arm": "oracle", "seed": seed, "scores": outcome.scores, "flavour": outcome.flavour})


def _add(row: dict[str, Any]) -> None:
    with TAGGERS.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def _report(rows: list[dict[str, Any]], others: list[dict[str, Any]], given: argparse.Namespace) -> str:
    data = load_recipe(RECIPES / "top-down-small.yaml").data
    lines = [
        "# Top-down and bottom-up inference from scratch",
        "",
        "A new encoder-decoder (two bottom-up layers and a top-down one, windows of 128 tokens, a layer over segments "
        "of 32 tokens every 24; 1 decoder layer; 64 wide, 2 heads, vocabulary 2 000), "
        f"{given.steps} updates of one document each, 2 048 source tokens, 128 target tokens, learning rate 2e-3. "
        f"PubMed papers to abstracts: {data.train_rows} training papers of which each run sees {given.steps}, "
        f"validation loss on {data.validation_rows} papers of SumPubMed, ROUGE of greedy summaries (48 to 64 tokens, "
        f"no trigram twice) on {SUMMARIES}. Mean ± standard deviation over seeds {arms.seeds_of(rows)}.",
        "",
        *arms.table(rows, ARMS, "tokens learn of segments by", PUBLISHED),
        "",
        *arms.paired(rows, ARMS, "bottom-up only"),
        "",
        *_beside(others),
        f"ROUGE: {rows[0]['flavour'] if rows else ''}. The published column is BART-large on PubMed, quoted at second "
        "hand: compare orders, not levels.",
        "",
        *arms.machine(),
    ]
    return "\n".join(lines) + "\n"


def _beside(others: list[dict[str, Any]]) -> list[str]:
    """How well the taggers tag, and the upper bound."""
    taggers = [row["scores"] for row in others if row["arm"] == "tagger"]
    oracles = [row["scores"] for row in others if row["arm"] == "oracle"]
    if not taggers or not oracles:
        return []
    tags = _spreads(taggers, ("average_precision", "f1", "important"))
    rouge = _spreads(oracles, ("rouge1", "rouge2", "rougeL"))
    return [
        f"The taggers, in percent of tokens: {tags} (the share of important tokens, which is the average precision of "
        "chance).",
        "",
        f"Upper bound, no result: AdaPool shown the labels of the references (OracleAdaPool): {rouge}.",
        "",
    ]


def _spreads(scores: list[dict[str, float]], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {arms.spread([each[name] for each in scores], 2)}" for name in names)


if __name__ == "__main__":
    main()
