"""Rows that are read while the model trains: their order, their processes, an exact resumption, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import windows
from longspan.errors import InputError
from longspan.tasks.base import RowStream
from longspan.tasks.language_modelling.language_model import LanguageModel
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.training.recipe_file import load_recipe
from longspan.training.streaming import Streamed, shuffled
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train


@pytest.mark.parametrize(("rows", "buffer"), [(50, 7), (50, 2), (7, 7), (5, 100), (0, 3)])
def test_a_shuffled_stream_has_every_row_once(rows: int, buffer: int) -> None:
    order = list(shuffled(iter(range(rows)), buffer, 1, 2, 3))
    assert sorted(order) == list(range(rows))
    assert all(row - place < buffer for place, row in enumerate(order))  # none comes before it is in the buffer
    assert order == list(shuffled(iter(range(rows)), buffer, 1, 2, 3))
    if rows > 2:
        assert order != list(shuffled(iter(range(rows)), buffer, 2, 2, 3))
        assert order != sorted(order)


def test_no_buffer_keeps_the_order() -> None:
    assert [list(shuffled(iter("abcd"), buffer, 1)) for buffer in (0, 1)] == [list("abcd")] * 2


def numbers(*lengths: int | None, weights: tuple[float, ...] = (), **options: Any) -> Streamed:
    """Streams whose rows are (stream, row), None for an endless one; features are the row and its number."""

    def rows(stream: int, length: int | None) -> Iterator[tuple[int, int]]:
        return ((stream, row) for row in (count() if length is None else range(length)))

    streams = [
        RowStream(rows=partial(rows, number, length), features=lambda row, place: {"row": row, "place": place})
        for number, length in enumerate(lengths)
    ]
    options = {"length": 40, "buffer": 4, "seed": 1} | options
    return Streamed(streams, [f"'{number}'" for number in range(len(lengths))], weights, **options)


def test_rows_are_the_same_however_they_are_reached() -> None:
    stream = numbers(None)
    whole = [stream[place]["row"] for place in range(40)]
    assert [stream[place]["place"] for place in (39, 3, 3, 17)] == [39, 3, 3, 17]  # backwards too
    assert [numbers(None)[place]["row"] for place in (39, 3, 17)] == [whole[place] for place in (39, 3, 17)]
    assert [numbers(None, seed=2)[place]["row"] for place in range(40)] != whole
    assert len(stream) == 40
    with pytest.raises(IndexError):
        stream[40]


def test_features_are_computed_of_the_rows_asked_for_and_few_are_read_ahead() -> None:
    read, made = [], []

    def rows() -> Iterator[int]:
        for row in count():
            read.append(row)
            yield row

    stream = RowStream(rows=rows, features=lambda row, _: made.append(row) or {"row": row})
    data = Streamed([stream], ["'x'"], (), length=10**9, buffer=8, seed=1)
    _ = data[0]
    assert (len(made), len(read)) == (1, 9)  # a full buffer, and the row that takes the place of the first
    _ = data[20]
    assert (len(made), len(read)) == (2, 29)


def test_a_source_that_ends_is_read_again_in_another_order(caplog: pytest.LogCaptureFixture) -> None:
    stream = numbers(10)
    passes = [[stream[place]["row"][1] for place in range(start, start + 10)] for start in (0, 10, 20, 30)]
    assert [sorted(rows) for rows in passes] == [list(range(10))] * 4
    assert len({tuple(rows) for rows in passes}) == 4
    assert caplog.text.count("'0' ends after 10 rows and is read again, in another order") == 1


def test_weighted_streams_are_drawn_by_their_weights(caplog: pytest.LogCaptureFixture) -> None:
    stream = numbers(None, 50, weights=(3.0, 1.0), length=4000)
    rows = [stream[place]["row"] for place in range(4000)]
    few = [row for number, row in rows if number == 1]
    # The standard deviation of the share of 4,000 draws is √(0.25 · 0.75 / 4,000) = 0.007.
    assert len(few) / 4000 == pytest.approx(0.25, abs=0.03)
    assert [sorted(few[start : start + 50]) for start in range(0, 900, 50)] == [list(range(50))] * 18
    many = sorted(row for number, row in rows if number == 0)
    assert many[:2900] == list(range(2900))
    assert "'1' ends after 50 rows" in caplog.text


def test_a_source_without_rows_is_named() -> None:
    with pytest.raises(InputError, match=r"data.train: '1' gives no rows; name a source that has some"):
        [numbers(None, 0, weights=(1.0, 1.0))[place] for place in range(40)]


def test_processes_and_workers_take_their_own_rows() -> None:
    whole = [numbers(30, None, weights=(1.0, 2.0))[place]["row"] for place in range(40)]
    batches = BatchSampler(SequentialSampler(range(40)), 2, drop_last=False)  # pyright: ignore[reportArgumentType]
    parts = []
    for process in range(2):
        shard: Any = BatchSamplerShard(batches, num_processes=2, process_index=process)
        data = numbers(30, None, weights=(1.0, 2.0))
        loader = DataLoader(data, batch_sampler=shard, collate_fn=lambda rows: [row["row"] for row in rows])
        parts.append(list(loader))
    assert [row for step in zip(*parts, strict=True) for batch in step for row in batch] == whole


def test_windows_by_hand() -> None:
    blocks = [np.arange(start, end)[None] for start, end in ((0, 1), (1, 1), (1, 9), (9, 11))]
    assert [window[0].tolist() for window in windows(blocks, size=4, step=3)] == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [6, 7, 8, 9],
        [9, 10],
    ]
    assert [window.shape[1] for window in windows(blocks, size=11, step=11)] == [11]
    assert [window.shape[1] for window in windows([np.zeros((1, 4))], size=4, step=3)] == [4]
    assert list(windows([], size=4, step=3)) == []


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one to forty words."""
    draw, file = np.random.default_rng(1), tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [" ".join(draw.choice(["one", "two", "three."], size)) for size in (3, 40, 1, 17, 9, 31, 2, 25)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Any:
    return train_tokenizer(Corpus(source=str(corpus)).texts(), 300)


@pytest.mark.parametrize("cross_documents", [False, True])
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("max_tokens", [7, 13, 500])
def test_streamed_chunks_are_those_of_a_tokenised_corpus(
    max_tokens: int, limit: int | None, cross_documents: bool, corpus: Path, tokenizer: Any, tmp_path: Path
) -> None:
    task = LanguageModel(max_tokens=max_tokens, cross_documents=cross_documents)
    rows = task.read(str(corpus), "train", limit)
    expected = task.dataset(rows, tokenizer, training=True, seed=1, folder=tmp_path)  # no epoch has shifted its borders
    stream = task.stream([str(corpus)], "train", limit, tokenizer, seed=1, on_error="raise")
    chunks = [stream.features(row, 0) for row in stream.rows()]
    assert len(chunks) == len(expected)
    for index, chunk in enumerate(chunks):
        assert set(chunk) == {"input_ids", "labels"} | ({"seq_idx"} if not cross_documents else set())
        assert {name: value.tolist() for name, value in chunk.items()} == {
            name: value.tolist() for name, value in expected[index].items()
        }


@pytest.mark.parametrize("cross_documents", [False, True])
@pytest.mark.parametrize("max_tokens", [9, 23, 500])
def test_streamed_contents_are_those_of_masked_chunks(
    max_tokens: int, cross_documents: bool, corpus: Path, tokenizer: Any, tmp_path: Path
) -> None:
    task = MaskedLM(max_tokens=max_tokens, cross_documents=cross_documents)
    expected = task.dataset(task.read(str(corpus), "train", None), tokenizer, training=True, seed=5, folder=tmp_path)
    stream = task.stream([str(corpus)], "train", None, tokenizer, seed=5, on_error="raise")
    contents = list(stream.rows())
    assert [row.tolist() for row in contents] == [expected.content(index).tolist() for index in range(len(expected))]
    for index, row in enumerate(contents):  # of the first epoch, also the masks
        chunk = stream.features(row, index)
        assert {name: value.tolist() for name, value in chunk.items()} == {
            name: value.tolist() for name, value in expected[index].items()
        }
    assert stream.features(contents[0], 1)["labels"].tolist() != stream.features(contents[0], 2)["labels"].tolist()


def test_a_saved_hugging_face_data_set_is_streamed(corpus: Path, tokenizer: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
    task = LanguageModel(max_tokens=13)
    both = [
        [row.tolist() for row in task.stream([source], "train", None, tokenizer, seed=1, on_error="raise").rows()]
        for source in (str(corpus), str(tmp_path / "saved"))
    ]
    assert both[0] == both[1]


NEW = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "dropout": 0.1}
STREAMING = ["data.streaming=true", "data.shuffle_buffer=3", "tokenizer.rows=5", "data.train_rows=null"]
STREAMING += ["optimisation.evaluate_every=4", "optimisation.keep_checkpoints=9", "data.validation_rows=1"]


def documents(folder: Path, name: str, rows: int, bad: str = "") -> Path:
    """Documents with summaries; `bad` is put in the middle."""
    lines = [json.dumps({"document": f"notably {name} {row}.", "summary": f"{row}"}) for row in range(rows)]
    file = folder / f"{name}.jsonl"
    file.write_text("\n".join([*lines[: rows // 2], *([bad] if bad else []), *lines[rows // 2 :]]) + "\n")
    return file


def changes_of(task: str, folder: Path) -> list[str]:
    """Two weighted files of seven and five documents, which twelve steps of two read several times."""
    files = [documents(folder, name, rows) for name, rows in (("a", 7), ("b", 5))]
    changes = [f"data.train=[{{from: {files[0]}, weight: 3}}, {{from: {files[1]}, weight: 1}}]", *STREAMING]
    if task == "summarization":
        return changes
    changes += [f"model.new={json.dumps(NEW)}", "model.attention=longformer"]
    return [*changes, f"task={{name: {task}, max_tokens: 16}}", f"data.validation={files[0]}"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["summarization", "language_model", "masked_lm"])
def test_a_resumed_run_reads_the_same_rows(
    task: str,
    tiny_recipe: Path,
    tmp_path: Path,
    same: Callable[[Path, Path], None],
    interrupted: Callable[[Path], Path],
) -> None:
    recipe = load_recipe(tiny_recipe, changes_of(task, tmp_path))
    whole = train(recipe, tmp_path / "whole").folder
    folder = interrupted(whole)
    train(recipe, folder, resume=True)
    same(folder, whole)


@pytest.mark.slow
def test_more_steps_go_on_with_the_rows_after_the_last(
    tiny_recipe: Path, tmp_path: Path, same: Callable[[Path, Path], None]
) -> None:
    changes = [*changes_of("language_model", tmp_path), "optimisation.schedule=constant"]
    changes += ["optimisation.warmup_steps=0"]
    whole = train(load_recipe(tiny_recipe, changes), tmp_path / "whole").folder
    folder = tmp_path / "raised"
    train(load_recipe(tiny_recipe, [*changes, "optimisation.steps=8"]), folder)
    train(load_recipe(tiny_recipe, changes), folder, resume=True)
    same(folder, whole)


@pytest.mark.slow
def test_loading_ahead_does_not_change_the_rows(
    tiny_recipe: Path, tmp_path: Path, curve: Callable[[Path], Any]
) -> None:
    changes = [*changes_of("language_model", tmp_path), "optimisation.steps=4"]
    curves = []
    for workers in (0, 2):
        train(load_recipe(tiny_recipe, [*changes, f"optimisation.workers={workers}"]), tmp_path / str(workers))
        curves.append(curve(tmp_path / str(workers)))
    assert curves[0] == curves[1]


def test_nothing_is_tokenised_before_the_first_step(tiny_recipe: Path, tmp_path: Path) -> None:
    changes = [*changes_of("language_model", tmp_path), "optimisation.steps=1"]
    train(load_recipe(tiny_recipe, changes), tmp_path / "run")
    assert [file.parent.name for file in (tmp_path / "run").rglob("tokens.bin")] == ["tokens-validation"]


def test_changed_sources_are_not_resumed(tiny_recipe: Path, tmp_path: Path) -> None:
    changes = [*changes_of("language_model", tmp_path), "optimisation.schedule=constant"]
    changes += ["optimisation.warmup_steps=0"]
    train(load_recipe(tiny_recipe, [*changes, "optimisation.steps=1"]), tmp_path / "run")
    documents(tmp_path, "b", 6)
    more = load_recipe(tiny_recipe, [*changes, "optimisation.steps=2"])
    with pytest.raises(InputError, match=r"the sources of data.train have changed since .* remove stream.json there"):
        train(more, tmp_path / "run", resume=True)
    (tmp_path / "run" / "stream.json").unlink()
    assert train(more, tmp_path / "run", resume=True).history[-1]["step"] == 2
    with pytest.raises(InputError, match="already holds a run; add --resume"):
        train(more, tmp_path / "run")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_malformed_line_is_named_and_may_be_skipped(
    workers: int, tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = documents(tmp_path, "a", 12, bad="{oh")
    changes = [f"data.train={file}", *STREAMING, "data.shuffle_buffer=0", f"optimisation.workers={workers}"]
    with pytest.raises(InputError) as caught:
        train(load_recipe(tiny_recipe, changes), tmp_path / "run")
    assert str(caught.value).startswith(f"{file}, line 7: not JSON (")
    train(load_recipe(tiny_recipe, [*changes, "data.on_error=skip", "optimisation.steps=7"]), tmp_path / "skipped")
    if not workers:  # whose processes log for themselves
        assert f"{file}: 1 corrupt record was skipped; the first: {file}, line 7: not JSON" in caplog.text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["optimisation.steps=null", "optimisation.epochs=1"], "data.streaming is true, .*; give optimisation.steps"),
        (["tokenizer.rows=null"], "tokenizer.train reads all rows before training, .* set tokenizer.rows"),
        (["task={name: language_stream}"], "data.streaming is true, but language_stream needs all of its rows"),
        (["data.shuffle_buffer=-1"], r"data.shuffle_buffer is -1; it must be at least 0"),
        (["data.streming=true"], r"unknown key 'data.streming'; did you mean 'streaming'\?"),
        (
            ["data.stopping_strategy=first_exhausted", "data.train=[{from: synthetic, weight: 1}]"],
            "'first_exhausted', but with data.streaming a source that ends is read again",
        ),
    ],
)
def test_recipes_that_cannot_stream(changes: list[str], sentence: str, tiny_recipe: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        load_recipe(tiny_recipe, [*STREAMING, *changes])


@pytest.mark.slow
def test_labels_of_a_stream_are_named(tiny_recipe: Path, tmp_path: Path) -> None:
    new = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    changes = [*STREAMING, f"model.new={json.dumps(new)}", "model.attention=longformer", "optimisation.steps=1"]
    changes += ["data.validation_rows=4"]
    task = {"name": "classification", "max_tokens": 32}
    with pytest.raises(InputError, match=r"no pass over the rows finds their labels; name them in task.labels"):
        train(load_recipe(tiny_recipe, [*changes, f"task={json.dumps(task)}"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    task["labels"] = ["bad", "good"]
    result = train(load_recipe(tiny_recipe, [*changes, f"task={json.dumps(task)}"]), tmp_path / "run")
    assert "eval_accuracy" in result.best


def test_smoke_needs_no_stream(tiny_recipe: Path) -> None:
    tiny_recipe.write_text(tiny_recipe.read_text().replace("data: {", "data: {streaming: true, "))
    assert load_recipe(tiny_recipe, smoke=True).data.streaming is False
