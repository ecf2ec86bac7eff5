"""From a short RoBERTa to a long one: the rows of Longformer's table 5, on a small model pre-trained here first.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/continued.py [--work DIR]

Trains by the recipe `roberta-mlm-small`, in chunks of 8, 16, 32 and then 64 tokens, writes the model as transformers'
own RoBERTa, lengthens that folder eight times, and trains on by the recipe `longformer-mlm-small` and its frozen
variant, and to compare for as long at the old length. All rows guess the same hidden tokens of the same validation
text. Runs that have ended are not repeated, one that was killed continues where it was. Writes `results/continued.md`;
about ten minutes of one processor.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import longspan
from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.data.corpus.sources import Corpus
from longspan.models.losses import IGNORED
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from measure import machine, shown, table, write_page

STRETCH = (20_000, 40_000)
"""Characters of each validation novel that are read: behind the title page and the contents."""
SEEDS = (1, 2, 3)
"""Of the draws of random positions."""
STAGES = {8: 100, 16: 250, 32: 250}
"""Tokens of a chunk → updates, before those of the recipe."""
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Holes:
    """What a model needs for the hidden tokens.

    Attributes:
        bits: `(N,)` float64, of each.
        place: `(N,)` int64, where in its long chunk each stands.
        chunk: `(N,)` int64, in which.
    """

    bits: np.ndarray
    place: np.ndarray
    chunk: np.ndarray

    def by_chunk(self) -> list[float]:
        """The mean of each chunk; they have equally many holes, but for the last."""
        return [float(self.bits[self.chunk == chunk].mean()) for chunk in np.unique(self.chunk)]

    def between(self, first: int, end: int) -> float:
        """The mean over the places from `first` to before `end`."""
        return float(self.bits[(self.place >= first) & (self.place < end)].mean())


def main() -> None:
    """Train what is missing, score everything, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/continued"), help="folder for texts and checkpoints")
    parser.add_argument("--no-control", action="store_true", help="do not train the source on at its own length")
    options = parser.parse_args()
    work = options.work
    torch.set_num_threads(1)
    prepare(work)
    pretrain(work)
    publish(work / "source", work / "published")
    long, frozen = (recipe_of(name, work, source=True) for name in ("longformer-mlm-small", f"{LONG}-frozen"))
    trained(work, "long", long)
    trained(work, "frozen", frozen)
    if not options.no_control:
        trained(work, "short", short_recipe(long, work))
    write(work, long)


LONG = "longformer-mlm-small"


def prepare(work: Path) -> None:
    """The validation text: a stretch of each novel."""
    if not (work / "validation.jsonl").is_file():
        work.mkdir(parents=True, exist_ok=True)
        texts = Corpus(source="pg_novels", split="validation").texts()
        lines = [json.dumps({"text": text[slice(*STRETCH)]}) for text in texts]
        (work / "validation.jsonl").write_text("\n".join(lines), encoding="utf-8")


def recipe_of(name: str, work: Path, *more: str, source: bool = False) -> Recipe:
    """A recipe on the texts in `work`; with `source` it starts from what `publish` wrote there."""
    changes = [f"data.validation={work / 'validation.jsonl'}", *more]
    changes += [f"model.from={work / 'published'}"] if source else []
    return load_recipe(name, changes)


def pretrain(work: Path) -> None:
    """The source: the recipe, begun with shorter chunks, for what neighbours say is soon learned where few others stand
    beside them."""
    begun: list[str] = []
    for tokens, steps in STAGES.items():
        together = [f"optimisation.{name}={2048 // tokens}" for name in ("batch_size", "micro_batch_size")]
        changes = [f"task.max_tokens={tokens}", f"optimisation.steps={steps}", f"optimisation.evaluate_every={steps}"]
        changes += ["optimisation.schedule=constant_with_warmup", *together, *begun]
        trained(work, f"source-{tokens}", recipe_of("roberta-mlm-small", work, *changes))
        begun = [f"model.from={work / f'source-{tokens}'}", "model.attention=null", "model.max_tokens=null"]
        begun += ["model.new=null", "tokenizer.train=null", "tokenizer.rows=null"]
    trained(work, "source", recipe_of("roberta-mlm-small", work, *begun))


def short_recipe(long: Recipe, work: Path) -> Recipe:
    """As long a training on as many tokens, at the length that the source has, with the attention that it has."""
    source = recipe_of("roberta-mlm-small", work)
    tokens, batch = source.task.max_tokens, source.optimisation.batch_size
    changes = ["model.attention=null", "model.max_tokens=null", f"task.max_tokens={tokens}"]
    changes += [f"optimisation.batch_size={batch}", f"optimisation.micro_batch_size={batch}"]
    assert tokens * batch == long.task.max_tokens * long.optimisation.batch_size
    return recipe_of(LONG, work, *changes, source=True)


def trained(work: Path, name: str, recipe: Recipe) -> None:
    """Train into `work/name` in a process of its own, unless that has been done."""
    process = multiprocessing.get_context("spawn").Process(target=_train, args=(recipe, work / name))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the run {name} ended with code {process.exitcode}")


def _train(recipe: Recipe, folder: Path) -> None:
    from longspan.training.train import train

    train(recipe, folder, resume=True)


def publish(run: Path, folder: Path) -> None:
    """Write the trained source as transformers' RobertaForMaskedLM, so that it is read like any published one."""
    if not folder.is_dir():
        longspan.to_transformers(load_model(run), "roberta").save_pretrained(folder)
        load_tokenizer(run).save_pretrained(folder)


def chunks(recipe: Recipe, work: Path) -> Any:
    """The validation text in long chunks with its holes, which follow from the text alone."""
    task, tokenizer = recipe.task, load_tokenizer(work / "published")
    assert isinstance(task, MaskedLM)
    rows = task.read(str(work / "validation.jsonl"), "validation", None)
    return task.dataset(rows, tokenizer, training=False, seed=0, folder=work / "counted")


def pieces(ids: np.ndarray, labels: np.ndarray, room: int, before: int, after: int) -> Iterator[tuple[np.ndarray, ...]]:
    """A masked chunk cut into pieces of at most `room` tokens between the chunk's own special tokens: ids, labels, and
    where each token stands in the whole chunk, all `(T,)`."""
    start, end = before, len(ids) - after
    edges = (np.arange(start), np.arange(end, len(ids)))
    for first in range(start, end, room):
        places = np.concatenate([edges[0], np.arange(first, min(first + room, end)), edges[1]])
        yield ids[places], labels[places], places


@torch.inference_mode()
def score(model: Any, dataset: Any, tokens: int) -> Holes:
    """What the model needs for the holes when it reads pieces of at most so many tokens, special ones included."""
    before, after = len(dataset.before), len(dataset.after)
    room = tokens - before - after
    rows = [
        (chunk, *piece)
        for chunk in range(len(dataset))
        for piece in pieces(*(dataset[chunk][name] for name in ("input_ids", "labels")), room, before, after)
    ]
    found: list[tuple[np.ndarray, ...]] = []
    for batch in _batches(rows, tokens):
        ids, labels = (torch.tensor(np.stack([row[part] for row in batch])) for part in (1, 2))
        logits = model(input_ids=ids, labels=labels, only_masked=True).logits.float()
        hidden = (labels != IGNORED).numpy()
        bits = cross_entropy(logits, labels[labels != IGNORED], reduction="none").double().numpy() / math.log(2)
        number = np.repeat([row[0] for row in batch], hidden.sum(1))
        found.append((bits, np.stack([row[3] for row in batch])[hidden], number))
    bits, place, chunk = (np.concatenate(each) for each in zip(*found, strict=True))
    return Holes(bits, place, chunk)


def _batches(rows: Sequence[Any], tokens: int) -> Iterator[list[Any]]:
    """Rows of equal length together."""
    by_length: dict[int, list[Any]] = {}
    for row in rows:
        by_length.setdefault(len(row[1]), []).append(row)
    size = max(1, BATCH_TOKENS // tokens)
    for same in by_length.values():
        yield from (same[first : first + size] for first in range(0, len(same), size))


def lengthened(work: Path, recipe: Recipe, **options: Any) -> Any:
    """The published source, made long as the recipe says."""
    model = recipe.model
    return longspan.lengthen(work / "published", model.attention, model.max_tokens or 0, **options)


def drawn(work: Path, recipe: Recipe, dataset: Any, tokens: int) -> list[Holes]:
    """Random new positions, a draw for each seed."""
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        found.append(score(lengthened(work, recipe, new_positions="random"), dataset, tokens))
    return found


def steps_of(folder: Path) -> dict[int, float]:
    """Bits after so many updates, as the run logged them on the same holes."""
    history = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["history"]
    return {
        entry["step"]: entry["eval_bits_per_masked_token"] for entry in history if "eval_bits_per_masked_token" in entry
    }


def scored(work: Path, recipe: Recipe, dataset: Any, short: int) -> tuple[dict[str, Holes], list[Holes]]:
    """Every row of the table by name, the source first; and all draws of random positions."""
    tokens, source = recipe.task.max_tokens, load_model(work / "published").eval()
    random = drawn(work, recipe, dataset, tokens)
    rows = {
        f"source, {short} tokens": score(source, dataset, short),
        f"{tokens} tokens, random new positions": random[0],
        f"{tokens} tokens, copied positions": score(lengthened(work, recipe), dataset, tokens),
    }
    for name, (run, length) in RUNS.items():
        if (work / run / "metrics.json").is_file():
            rows[name] = score(load_model(work / run).eval(), dataset, short if length == "short" else tokens)
    return rows, random


RUNS = {
    "… + all updates": ("long", "long"),
    "… + all updates, frozen: new positions alone": ("frozen", "long"),
    "source trained on for as many updates, at its own length": ("short", "short"),
}
"""What the table calls a run → its folder, and the length at which it reads."""


def write(work: Path, recipe: Recipe) -> None:
    """The page."""
    short, tokens = recipe_of("roberta-mlm-small", work).task.max_tokens, recipe.task.max_tokens
    dataset = chunks(recipe, work)
    rows, random = scored(work, recipe, dataset, short)
    base = rows[f"source, {short} tokens"].by_chunk()
    edges = [(0, short), (short, 2 * short), (2 * short, tokens)]
    header = ["", "bits per masked token ↓", "less the source", *(f"places {a}–{b - 1}" for a, b in edges)]
    cells = []
    for name, holes in rows.items():
        each = holes.by_chunk()
        lead = "" if each == base else shown(bootstrap_difference(each, base), signed=True, digits=3)
        cells.append([name, shown(bootstrap(each), digits=3), lead, *(f"{holes.between(*edge):.3f}" for edge in edges)])
        print(*cells[-1], flush=True)
    means = [float(np.mean(holes.by_chunk())) for holes in random]
    seeds = f"{statistics.mean(means):.3f} ± {statistics.stdev(means):.3f} ({', '.join(f'{one:.3f}' for one in means)})"
    curves = [[name, *(f"{bits:.3f}" for bits in steps_of(work / run).values())] for name, run in CURVES.items()]
    about = {"short": short, "tokens": tokens, "steps": recipe.optimisation.steps}
    parts = [
        ABOUT.format(**about, holes=len(random[0].bits), chunks=len(dataset)),
        table(header, cells),
        f"Random new positions, {len(SEEDS)} draws: {seeds}.",
        "After so many updates, on the same holes (here a mean over tokens, above over chunks):",
        table(["updates", *map(str, steps_of(work / "long"))], curves),
        PUBLISHED,
        f"{machine()}.",
    ]
    write_page("continued", "From a short RoBERTa to a long one", parts)


CURVES = {"all weights": "long", "frozen": "frozen"}
ABOUT = """\
The rows of Longformer's table 5 (Beltagy et al. 2020) at small scale. A RoBERTa of {short} tokens (2 layers, 128 wide,
a token is a byte) is pre-trained on 12 novels by the recipe `roberta-mlm-small`, written in transformers' own format,
read from there, made {tokens} tokens long with windows of {short} tokens (half to each side), and trained on by
the recipe `longformer-mlm-small`, {steps} updates of 2 048 tokens. All rows guess the same {holes} hidden tokens in
the same {chunks} chunks of {tokens} tokens of five other novels; who reads {short} tokens gets the chunks in pieces,
with the same tokens hidden. Intervals: 95 %, bootstrap over chunks, differences in pairs. The last columns are means
over the places within the chunks; for the source these are the same places, read in pieces."""
PUBLISHED = """\
**The paper's**, base / large, on its own corpus: RoBERTa at 512 tokens 1.846 / 1.496; 4 096 tokens with random new
positions 10.299 / 8.738; copied 1.957 / 1.597; + 2 000 updates 1.753 / 1.414; + 65 000 1.705 / 1.358; frozen
1.850 / 1.504. The scale is another one: bits depend on the vocabulary and on how good the model is. What can be
compared is the order of the rows."""


if __name__ == "__main__":
    main()
