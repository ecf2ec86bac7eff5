"""Weighted sources: the order of `datasets.interleave_datasets`, an epoch, and training that is resumed exactly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.errors import InputError
from longspan.training import mixing
from longspan.training.mixing import Mixed, draws, epoch_of, permutation
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

LENGTHS, WEIGHTS = [7, 11, 5], [3.0, 1.0, 2.0]


def drawn_by_numpy(seed: int) -> Iterator[np.ndarray]:
    """The draws of `datasets`, in blocks of 1,000."""
    generator = np.random.default_rng(seed)
    while True:
        yield generator.choice(len(WEIGHTS), size=1000, p=np.array(WEIGHTS) / sum(WEIGHTS))


@pytest.mark.parametrize("stopping_strategy", ["first_exhausted", "all_exhausted"])
@pytest.mark.parametrize("seed", [0, 3, 17])
def test_an_epoch_ends_where_that_of_interleave_datasets_does(seed: int, stopping_strategy: Any) -> None:
    datasets = pytest.importorskip("datasets")
    parts = [
        datasets.Dataset.from_dict({"row": [f"{part}-{row}" for row in range(length)]})
        for part, length in enumerate(LENGTHS)
    ]
    probabilities = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    theirs = datasets.interleave_datasets(parts, probabilities, seed=seed, stopping_strategy=stopping_strategy)["row"]
    source = epoch_of(LENGTHS, drawn_by_numpy(seed), stopping_strategy=stopping_strategy)
    places = [0, 0, 0]
    ours = []
    for part in source:
        ours.append(f"{part}-{places[part] % LENGTHS[part]}")
        places[part] += 1
    assert ours == list(theirs)


def test_draws_have_the_frequencies_of_their_weights() -> None:
    counts = np.bincount(next(draws(WEIGHTS, 1)), minlength=3) / mixing.AT_ONCE
    # The standard deviation of a share p of n draws is √(p (1 − p) / n), at most 0.002 here.
    assert counts == pytest.approx([1 / 2, 1 / 6, 1 / 3], abs=0.008)
    assert np.array_equal(next(draws(WEIGHTS, 1)), next(draws([30, 10, 20], 1)))
    assert not np.array_equal(next(draws(WEIGHTS, 1)), next(draws(WEIGHTS, 2)))


def mixed(stopping_strategy: str, seed: int = 1) -> Mixed:
    parts = [[{"row": (part, row)} for row in range(length)] for part, length in enumerate(LENGTHS)]
    return Mixed(parts, WEIGHTS, stopping_strategy=stopping_strategy, seed=seed)


def rows_of(dataset: Mixed) -> list[tuple[int, int]]:
    return [dataset[index]["row"] for index in range(len(dataset))]


def test_an_epoch_has_every_row_of_every_source_again_and_again() -> None:
    dataset = mixed("all_exhausted")
    rows, counts = rows_of(dataset), dataset.counts()
    assert sorted(set(rows)) == [(part, row) for part, length in enumerate(LENGTHS) for row in range(length)]
    assert [sum(part == each for part, _ in rows) for each in range(3)] == counts
    for part, length in enumerate(LENGTHS):  # no row comes again before every other one was there
        own = [row for each, row in rows if each == part]
        for start in range(0, len(own) - length + 1, length):
            assert sorted(own[start : start + length]) == list(range(length))
        assert own[:length] != list(range(length))
        assert max(Counter(own).values()) == -(-counts[part] // length)
    # One source is exhausted with the last row, and none before it.
    last = rows[-1][0]
    assert counts[last] == LENGTHS[last]


def test_the_first_exhausted_source_may_end_an_epoch() -> None:
    dataset = mixed("first_exhausted")
    rows, counts = rows_of(dataset), dataset.counts()
    assert len(set(rows)) == len(rows)
    assert counts[rows[-1][0]] == LENGTHS[rows[-1][0]]
    assert sum(count == length for count, length in zip(counts, LENGTHS, strict=True)) == 1


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    dataset = mixed("all_exhausted")
    first = rows_of(dataset)
    dataset.set_epoch(1)
    second = rows_of(dataset)
    assert [part for part, _ in first] == [part for part, _ in second]
    assert first != second
    dataset.set_epoch(0)
    assert [dataset[index]["row"] for index in reversed(range(len(dataset)))] == first[::-1]
    assert rows_of(mixed("all_exhausted", seed=2)) != first


def test_an_epoch_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "LONGEST", 1 << 18)
    with pytest.raises(InputError, match=r"an epoch has more than 262,144 rows .* raise the smallest weight"):
        epoch_of([3, 3], draws([1e9, 1e-9], 1), stopping_strategy="all_exhausted")
    assert len(epoch_of([3, 3], draws([1e9, 1e-9], 1), stopping_strategy="first_exhausted")) == 3


def test_permutations_are_permutations() -> None:
    assert sorted(permutation(1009, 1, 2)) == list(range(1009))
    assert not np.array_equal(permutation(1009, 1, 2), permutation(1009, 1, 3))
    assert list(permutation(0, 1)) == []


def sources(folder: Path, **lengths: int) -> list[str]:
    """Files of documents with summaries, by name."""
    for name, length in lengths.items():
        records = [{"document": f"notably {name} {row}.", "summary": f"{name} {row}"} for row in range(length)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(folder / f"{name}.jsonl") for name in lengths]


def test_a_resumed_run_draws_the_same_rows(
    tiny_recipe: Path, tmp_path: Path, same: Callable[[Path, Path], None], interrupted: Callable[[Path], Path]
) -> None:
    """From the first checkpoint, in the first of several epochs."""
    first, second = sources(tmp_path, a=4, b=3)
    changes = [f"data.train=[{{from: {first}, weight: 3}}, {{from: {second}, weight: 1}}]"]
    changes += ["data.validation_rows=1", "optimisation.steps=12", "optimisation.evaluate_every=4"]
    recipe = load_recipe(tiny_recipe, [*changes, "optimisation.keep_checkpoints=9"])
    whole = train(recipe, tmp_path / "whole").folder
    folder = interrupted(whole)
    train(recipe, folder, resume=True)
    same(folder, whole)
    facts = (folder / "README.md").read_text()
    assert "- Training data: a.jsonl (0.75 of the rows), b.jsonl (0.25 of the rows), split `train`, at most" in facts


@pytest.mark.parametrize(
    ("train_data", "sentence"),
    [
        ("[{from: A, weight: 0}]", r"data.train\[0\].weight is 0.0; it must be above 0"),
        ("[{from: A, weight: -1}]", r"data.train\[0\].weight is -1.0; it must be above 0"),
        ("[{from: A, weight: .nan}]", r"data.train\[0\].weight is nan; it must be a finite number"),
        ("[{from: A, weight: .inf}]", r"data.train\[0\].weight is inf; it must be a finite number"),
        ("[{from: A, wieght: 1}]", r"unknown key 'data.train\[0\].wieght'; did you mean 'weight'\?"),
        ("[{from: A}]", r"missing key 'data.train\[0\].weight'; add it"),
        ("[{from: A, weight: 1}, B]", r"data.train\[1\] is 'B', without a weight, and other sources have one; write"),
        ("[{from: A, weight: 1}, {from: gone, weight: 1}]", "data='gone' is no file"),
        ("[{from: A, weight: 1}, {from: EMPTY, weight: 1}]", r"data.train\[1\] is .*none.jsonl' and gives no rows"),
        ("[{from: EMPTY, weight: 1}]", r"data.train\[0\] is .*none.jsonl' and gives no rows to draw from"),
    ],
)
def test_sources_that_cannot_be_mixed(train_data: str, sentence: str, tiny_recipe: Path, tmp_path: Path) -> None:
    (first, empty), output = sources(tmp_path, a=4, none=0), tmp_path / "run"
    train_data = train_data.replace("A", first).replace("EMPTY", empty)
    with pytest.raises(InputError, match=sentence):
        train(load_recipe(tiny_recipe, [f"data.train={train_data}"]), output)
    assert not output.exists()


def test_weights_belong_to_training_and_a_strategy_to_weights(tiny_recipe: Path) -> None:
    with pytest.raises(InputError, match=r"data.validation\[0\] is .*; it must be a text"):
        load_recipe(tiny_recipe, ["data.validation=[{from: synthetic, weight: 1}]"])
    with pytest.raises(InputError, match=r"'first_exhausted', but the sources of data.train have no weights"):
        load_recipe(tiny_recipe, ["data.stopping_strategy=first_exhausted"])


def test_a_plain_source_is_written_as_before(tiny_recipe: Path) -> None:
    data = load_recipe(tiny_recipe, ["data.train=[a, b]"]).data
    assert (data.train, data.weights, data.sources("train")) == (("a", "b"), (), ("a", "b"))


def test_corpora_are_mixed_by_chunks_and_streams_are_not(tiny_recipe: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"the {name} of words " * 60)
    given = "[" + ", ".join(f"{{from: {tmp_path / name}.txt, weight: 1}}" for name in "ab") + "]"
    new = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    changes = [f"data.train={given}", f"data.validation={tmp_path / 'a.txt'}", "data.train_rows=null"]
    changes += [f"model.new={json.dumps(new)}", "model.attention=longformer", "optimisation.steps=2"]
    task = {"name": "language_model", "max_tokens": 32}
    train(load_recipe(tiny_recipe, [*changes, f"task={json.dumps(task)}"]), tmp_path / "run")
    folders = sorted(file.parent.relative_to(tmp_path / "run").as_posix() for file in tmp_path.rglob("tokens.bin"))
    assert folders == ["mixed/1/tokens-train", "mixed/2/tokens-train", "tokens-validation"]
    task = {"name": "language_stream", "max_tokens": 32}
    with pytest.raises(InputError, match="the segments of language_stream go on from row to row and cannot be mixed"):
        train(load_recipe(tiny_recipe, [*changes, f"task={json.dumps(task)}"]), tmp_path / "other")
    assert not (tmp_path / "other").exists()
