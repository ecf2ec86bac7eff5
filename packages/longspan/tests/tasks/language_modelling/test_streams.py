"""Contiguous streams: every token once and in order, a memory that goes on from segment to segment, exact resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from closeness import misaligned
from longspan.characters import counted
from longspan.data.corpus.tokens import Stream
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.stream_memory import StreamMemory
from longspan.stacks import SequentialConfig, StackReturns
from longspan.tasks import build_task
from longspan.tasks.language_modelling.streams import LanguageStream, StreamSegments, stack_segments
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

from .conftest import TEXTS

WINDOW = {"mechanism": "longformer", "left_tokens": 7}


@pytest.fixture
def windows_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain stack carries on what its windows keep: a memory of the smallest kind."""
    monkeypatch.setattr(SequentialConfig, "returns", lambda _: StackReturns(keeps_memory=True))


def build(**options: Any) -> Any:
    return build_task({"name": "language_stream", **options})


def make(**changes: Any) -> LongspanForCausalLM:
    fields = {
        "vocab_size": 261, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "dropout": 0.0,
        "intermediate_size": 32, "attention": WINDOW, "position_embedding": "sinusoidal", "init_std": 0.2,
    }  # fmt: skip
    return LongspanForCausalLM(LongspanConfig(**(fields | changes))).eval()


@pytest.mark.parametrize(("columns", "segment"), [(1, 7), (3, 5), (5, 1), (2, 1000)])
def test_every_token_is_guessed_once_and_in_order(stream: Stream, columns: int, segment: int) -> None:
    whole, data = stream.read(0, len(stream)), StreamSegments(stream, segment)
    data.set_batch_size(columns)
    length = (len(stream) - 1) // columns
    read: list[list[int]] = [[] for _ in range(columns)]
    for start in range(0, len(data), columns):
        batch = stack_segments([data[index] for index in range(start, start + columns)])
        assert batch["place"] == (start // columns, 0)
        assert batch["input_ids"].shape[1] + 1 == batch["labels"].shape[1] <= segment + 1
        assert (batch["labels"][:, 0] == -100).all()
        assert torch.equal(batch["labels"][:, 1:-1], batch["input_ids"][:, 1:])
        for column, labels in zip(read, batch["labels"], strict=True):
            column += labels[1:].tolist()
    for column, labels in enumerate(read):
        assert labels == whole[column * length + 1 : (column + 1) * length + 1].tolist()


def test_what_columns_leave_out_is_said(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    data = StreamSegments(stream, 5)
    assert not caplog.messages
    data.set_batch_size(7)
    left = (len(stream) - 1) % 7
    assert left
    assert f"the corpus is longer by {counted(left, 'token')} than 7 columns of" in caplog.messages[0]
    with pytest.raises(InputError, match=r"optimisation.batch_size is 1000, but the corpus has"):
        data.set_batch_size(1000)


@pytest.mark.usefixtures("windows_carry")
@pytest.mark.parametrize("segment", [3, 11, 1000])
def test_a_carried_memory_gives_what_one_pass_gives(corpus: list[Any], tokenizer: Any, segment: int) -> None:
    """Windows see no further than what they keep, so that segments change nothing."""
    model = make()
    task = LanguageStream(max_tokens=segment)
    outcome = task.evaluate(model, tokenizer, corpus, batch_size=1)
    ids = torch.tensor([token for text in TEXTS for token in [2, *tokenizer(text, add_special_tokens=False).input_ids]])
    nats = model(ids[None], labels=ids[None]).loss.item()
    assert outcome.scores["bits_per_token"] == pytest.approx(nats / math.log(2), rel=1e-5)
    characters = sum(map(len, TEXTS))
    assert outcome.scores["bits_per_character"] == pytest.approx(nats / math.log(2) * (len(ids) - 1) / characters, 1e-5)
    assert sum(line["tokens"] for line in outcome.lines) == len(ids) - 1


def test_without_a_memory_segments_are_read_alone(corpus: list[Any], tokenizer: Any) -> None:
    model = make(attention="full")
    outcome = LanguageStream(max_tokens=5).evaluate(model, tokenizer, corpus, batch_size=1)
    ids = torch.tensor([token for text in TEXTS for token in [2, *tokenizer(text, add_special_tokens=False).input_ids]])
    total = 0.0
    for start in range(0, len(ids) - 1, 5):
        part = ids[None, start : start + 6]
        labels = part.clone()
        total += model(part[:, :-1], labels=labels).loss.item() * (part.shape[1] - 1)
    assert outcome.scores["perplexity"] == pytest.approx(math.exp(total / (len(ids) - 1)), rel=1e-5)


def test_evaluation_reads_with_lengths_of_its_own(corpus: list[Any], tokenizer: Any) -> None:
    whole = LanguageStream(max_tokens=9).evaluate(make(), tokenizer, corpus, batch_size=1)
    task = build(max_tokens=5, evaluation={"segment_tokens": 9, "columns": 1})
    with pytest.raises(InputError, match="evaluation"):
        build(max_tokens=5, evaluation={"segment_token": 9})
    assert [line["tokens"] for line in task.evaluate(make(), tokenizer, corpus, batch_size=1).lines] == [
        line["tokens"] for line in whole.lines
    ]


RECURRENT = {"attention": {"mechanism": "full", "positions": "relative", "bias": False}, "position_embedding": "none"}


def test_evaluation_with_another_memory_leaves_the_model_as_it_was(corpus: list[Any], tokenizer: Any) -> None:
    model = make(**RECURRENT, stack={"stack": "recurrent", "memory_tokens": 3})
    before = LanguageStream(max_tokens=5).evaluate(model, tokenizer, corpus, batch_size=1).scores
    read = {"segment_tokens": 4, "memory_tokens": 11, "same_length": True, "clamp_tokens": 6}
    longer = build(max_tokens=5, evaluation=read).evaluate(model, tokenizer, corpus, batch_size=1).scores
    assert LanguageStream(max_tokens=5).evaluate(model, tokenizer, corpus, batch_size=1).scores == before
    model = model.with_memory(memory_tokens=11, same_length=True, clamp_tokens=6)
    assert LanguageStream(max_tokens=4).evaluate(model, tokenizer, corpus, batch_size=1).scores == longer != before


def test_lengths_that_do_not_go_are_one_sentence(corpus: list[Any], tokenizer: Any) -> None:
    def read(**options: Any) -> None:
        task = build(evaluation=options)
        task.evaluate(make(), tokenizer, corpus, batch_size=1)

    with pytest.raises(InputError, match=r"task.evaluation.memory_tokens is 5000, but a column has"):
        read(memory_tokens=5000)
    with pytest.raises(InputError, match=r"task.evaluation does not fit the model: .*memory_tokens"):
        read(memory_tokens=5)


RECIPE = """
name: tiny
task: {name: language_stream, max_tokens: 17}
data: {train: DATA, validation: DATA, validation_rows: 1}
model:
  new: {hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 3, intermediate_size: 32, dropout: 0.1,
    position_embedding: sinusoidal}
  attention: {mechanism: longformer, left_tokens: 7}
tokenizer: {train: 300}
optimisation: {steps: 8, batch_size: 6, micro_batch_size: 3, learning_rate: 3e-3, log_every: 1, evaluate_every: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    texts = [row.source for row in synthetic_rows(2, seed=3, sentences=8)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("DATA", str(tmp_path / "corpus.jsonl")))
    return tmp_path / "tiny.yaml"


def curve(folder: Path) -> list[tuple[Any, ...]]:
    history = json.loads((folder / "metrics.json").read_text())["history"]
    return [(entry["step"], entry.get("loss"), entry.get("eval_loss")) for entry in history if "epoch" in entry]


@torch.no_grad()
def test_a_memory_from_a_file_is_aligned_as_one_that_was_computed() -> None:
    """Or else the products of a resumed run may round otherwise than those of the whole one."""
    model = make(stack={"stack": "recurrent", "memory_tokens": 7})
    whole, resumed = StreamMemory(model.config), StreamMemory(model.config)
    whole.after(0, 0, model(torch.randint(3, 261, (2, 9)), use_cache=True).cache)
    kept = whole.tensors()
    resumed.load({name: misaligned(tensor) if tensor.ndim else tensor for name, tensor in kept.items()}, model)
    found = resumed.tensors()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in found.items())
    places = {tensor.data_ptr() % 64 for tensor in found.values() if tensor.ndim}
    assert places == {0}


STACKS = {"windows": [], "recurrent": ["model.new.stack={stack: recurrent, memory_tokens: 13}"]}


@pytest.mark.variant
@pytest.mark.usefixtures("windows_carry")
@pytest.mark.parametrize("stack", STACKS)
def test_a_resumed_run_is_the_uninterrupted_one(
    stack: str, recipe: Path, tmp_path: Path, killed: Callable[..., Any]
) -> None:
    """Stopped in the middle of a stream: the memory comes from the checkpoint, bit for bit."""
    changed = load_recipe(recipe, STACKS[stack])
    train(changed, tmp_path / "whole")
    killed(changed, tmp_path / "parts", step=5)
    memory = tmp_path / "parts" / "checkpoints" / "checkpoint-4" / "memory-0.safetensors"
    assert memory.is_file()
    train(changed, tmp_path / "parts", resume=True)
    one, other = curve(tmp_path / "whole"), curve(tmp_path / "parts")
    assert len(one) >= 12
    assert [row for row in one if row[1] or row[2]] == [row for row in other if row[1] or row[2]]
    assert not list((tmp_path / "parts").glob("memory-*"))


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Train until a step, in which the process dies."""
    from longspan.training.trainer import RecipeTrainer

    def run(recipe: Any, folder: Path, *, step: int) -> None:
        def die(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.state.global_step == step:
                raise KeyboardInterrupt
            return original(self, *arguments, **options)

        original = RecipeTrainer.training_step
        monkeypatch.setattr(RecipeTrainer, "training_step", die)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder)
        monkeypatch.setattr(RecipeTrainer, "training_step", original)

    return run


@pytest.mark.usefixtures("windows_carry")
def test_the_memory_helps_nobody_who_recomputes(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gradient_checkpointing"):
        train(load_recipe(recipe, ["optimisation.gradient_checkpointing=true"]), tmp_path / "run")
