"""Questions that need two paragraphs, from scratch: 4,096 tokens against 512, and one stage against two.

    OMP_NUM_THREADS=1 python benchmarks/multi_hop.py [--work DIR] [--seeds 1 2]

Rows are made up (`longspan_papers.hotpotqa.rows`) and written in HotpotQA's format. For each seed the recipe
`two-facts-small` is trained on short rows of four paragraphs. From there one model goes on with long rows read whole,
one with the same rows cut to 512 tokens, and one with what the first of them kept of these rows, as a second stage. A
fourth side learns with types for the question's own words alone, so that it has to find the second step itself. All are
scored on the same long rows, which none has seen. Finished runs are kept in `results/multi_hop.jsonl` and skipped
when the script is started again; a run that was killed continues where it was. `results/multi_hop.md` is written after
each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from longspan_papers.hotpotqa.metric import match_answer, match_facts, multi_hop_scores
from longspan_papers.hotpotqa.reading import read_multi_hop, record_of
from longspan_papers.hotpotqa.rows import two_step_rows
from measure import RESULTS, machine, table, write_page

KEPT = RESULTS / "multi_hop.jsonl"
NAMES, SHORT_STEPS, LONG_STEPS, BATCH = 12, 250, 50, 16
SHORT = {"paragraphs": 4, "fillers": 0, "names": NAMES}
LONG = {"paragraphs": 10, "fillers": 12, "names": NAMES}
HELD_OUT = 300
ARMS = {
    "whole": "4,096 tokens",
    "cut": "512 tokens",
    "second": "4,096 tokens, second stage",
    "asked": "4,096 tokens, types of the question's words alone",
}
CHANGES = {"cut": ["task.max_tokens=512"], "asked": ["task.match_steps=1"]}
SHOWN = ("joint_f1", "joint_exact_match", "answer_f1", "evidence_f1", "paragraphs_found")


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/multi_hop"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    done = {(one["seed"], one["arm"]) for one in finished()}
    for seed in options.seeds:
        for arm in ARMS:
            if (seed, arm) not in done:
                found = run(seed, arm, options.work / str(seed))
                with KEPT.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                write(finished())
    write(finished())


def finished() -> list[dict[str, Any]]:
    """The runs that have ended."""
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.is_file() else []


def data(folder: Path, name: str, count: int, seed: int, **form: Any) -> Path:
    """A file of made-up rows, made once."""
    file = folder / f"{name}.json"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rows = two_step_rows(count, seed=seed, **form)
        file.write_text(json.dumps([record_of(row) for row in rows]), encoding="utf-8")
    return file


def run(seed: int, arm: str, work: Path) -> dict[str, Any]:
    """Train one side and score it on the long rows that are held out."""
    from longspan.training.evaluate import evaluate

    short, changes = data(work, "short", SHORT_STEPS * BATCH, seed, **SHORT), CHANGES.get(arm, [])
    # Shared by the sides; only other types make another start.
    start = work / ("start-asked" if arm == "asked" else "start")
    train_on(short, start, seed, SHORT_STEPS, None, *(changes if arm == "asked" else []))
    train, test = data(work, "train", LONG_STEPS * BATCH, 100 + seed, **LONG), data(work, "test", HELD_OUT, 999, **LONG)
    if arm == "second":
        first = evaluate(work / "whole", str(train), batch_size=BATCH, output=work / "kept")
        kept = evaluate(work / "whole", str(test), batch_size=BATCH, output=work / "kept")
        train, test = first.files[1], kept.files[1]
    began = time.process_time()
    folder = train_on(train, work / arm, seed, LONG_STEPS, start, *changes)
    seconds = time.process_time() - began
    outcome = evaluate(folder, str(test), batch_size=BATCH)
    predictions = json.loads(outcome.files[0].read_text(encoding="utf-8"))
    return {
        "seed": seed,
        "arm": arm,
        "scores": outcome.scores,
        "by_kind": {kind: of_kind(test, predictions, kind) for kind in ("bridge", "comparison")},
        "tokens": round(statistics.mean(row_tokens(work / "test.json"))),
        "processor_seconds": round(seconds),
        "machine": machine(),
    }


def train_on(file: Path, folder: Path, seed: int, steps: int, start: Path | None = None, *changes: str) -> Path:
    """Train the recipe on a file, from the beginning or from a model; a run that has ended is taken as it is."""
    from longspan.training.recipe_file import load_recipe
    from longspan.training.train import train

    own = [
        f"data.train=[{file}]",
        f"data.validation=[{file}]",
        f"data.train_rows={steps * BATCH}",
        "data.validation_rows=1",  # nothing is chosen by a score
        f"optimisation.steps={steps}",
        f"optimisation.seed={seed}",
        "optimisation.report_to=[none]",
        "optimisation.evaluate_every=100",
        "optimisation.keep_checkpoints=1",
        *changes,
    ]
    if start is not None:
        own += [f"model.from={start}", "model.new=null", "model.attention=null", "model.max_tokens=null"]
        own += ["tokenizer.train=null", "optimisation.schedule=linear", "optimisation.micro_batch_size=4"]
        own += ["optimisation.warmup_steps=10", "optimisation.learning_rate=2.0e-3"]
    return train(load_recipe("two-facts-small", own), folder, resume=True).folder


def row_tokens(file: Path) -> list[int]:
    """Words and marks of each row; every word is a token."""
    return [
        sum(2 + len(one.title.split()) + sum(1 + len(text.split()) for text in one.sentences) for one in row.paragraphs)
        for row in read_multi_hop(file)
    ]


def of_kind(test: Path, predictions: dict[str, Any], kind: str) -> dict[str, float]:
    """The scores of the questions of one kind."""
    rows = [row for row in read_multi_hop(test) if row.id.startswith(kind)]
    return multi_hop_scores(
        (
            match_answer(predictions["answer"].get(row.id), row.answer or ""),
            match_facts([(title, index) for title, index in predictions["sp"].get(row.id, [])], row.facts),
        )
        for row in rows
    )


def write(runs: list[dict[str, Any]]) -> None:
    """The page of results."""
    rows = []
    for arm, name in ARMS.items():
        of = [one for one in runs if one["arm"] == arm]
        if of:
            kinds = [[one["by_kind"][kind]["joint_f1"] for one in of] for kind in ("bridge", "comparison")]
            columns = [[one["scores"][score] for one in of] for score in SHOWN]
            rows.append([name, *map(spread, [*columns, *kinds]), str(len(of))])
    header = ["", "joint F1", "joint exact", "answer F1", "evidence F1", "paragraphs found"]
    header += ["joint F1, bridge", "joint F1, comparison", "seeds"]
    write_page("multi_hop", "Questions that need two paragraphs", [*words(runs), table(header, rows)])


def words(runs: list[dict[str, Any]]) -> list[str]:
    """What was done."""
    seconds = {arm: [one["processor_seconds"] for one in runs if one["arm"] == arm] for arm in ARMS}
    minutes = "; ".join(f"{ARMS[arm]} {statistics.mean(found):.0f} s" for arm, found in seconds.items() if found)
    return [
        f"`python benchmarks/multi_hop.py` on {runs[0]['machine']}, one thread.",
        f"The recipe `two-facts-small`, from scratch: {SHORT_STEPS:,} steps of {BATCH} rows with four paragraphs and "
        f"no filling; then, on each side, {LONG_STEPS:,} steps on rows of ten paragraphs, about {runs[0]['tokens']:,} "
        "tokens each. Half of the questions compare two persons, half need a bridge. Scores in percent on "
        f"{HELD_OUT} such rows, which nobody has seen, by HotpotQA's metric; with several seeds the mean, then the "
        "least and the most. Every token knows by its type whether the question, or a rare word beside one of the "
        "question's, has its word (`task.match_steps: 2`), as far as the model sees the text. This is a proxy: the "
        "rows are made up.",
        f"Processor time of the long part: {minutes}.",
    ]


def spread(values: list[float]) -> str:
    """Their mean, and how far they lie apart."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ({min(values):.1f}–{max(values):.1f})"


if __name__ == "__main__":
    main()
