"""Laws of every task: made-up rows, a model of its own class, batches whose padding changes nothing, an outcome."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.settings import to_plain
from longspan.tasks import TASKS, build_task, task_class
from longspan.training.tokenizers import train_tokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def small(name: str) -> Any:
    """The task with short inputs, where it has limits."""
    limits = {"max_tokens": 64, "max_source_tokens": 64, "stride": 32, "markers": False}
    limits |= {"max_question_tokens": 16, "max_first_tokens": 20, "overlap": 16}
    known = {field.name for field in fields(task_class(name))}
    return build_task({"name": name, **{key: value for key, value in limits.items() if key in known}})


def build(task: Any, tokenizer: Any) -> Any:
    from longspan.models import LongspanConfig, LongspanForConditionalGeneration

    kind = task.model_class()
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    options = {**special, **SIZES, **task.model_fields()}
    options["decoder_layers"] = int(issubclass(kind, LongspanForConditionalGeneration))
    return kind(LongspanConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **options))


@pytest.fixture(params=list(TASKS))
def ready(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Any, Any]:
    """Task, rows, tokenizer and data set."""
    task = small(request.param)
    rows = task.read("synthetic", "train", 4)
    task = task.of_rows(rows)
    tokenizer = train_tokenizer(task.corpus(rows), 400)
    if task.new_tokens():
        tokenizer.add_tokens(list(task.new_tokens()), special_tokens=True)
    return task, rows, tokenizer, task.dataset(rows, tokenizer, training=True, seed=1, folder=tmp_path)


def test_options_are_plain_data_and_names_agree() -> None:
    for name in TASKS:
        found: Any = task_class(name)
        assert is_dataclass(task_class(name))
        assert found.name == name
        task = small(name)
        assert build_task(to_plain(task)) == task
        assert not inspect.isabstract(found)


def test_a_batch_has_a_finite_loss_and_gradients(ready) -> None:
    task, _, tokenizer, data = ready
    batch = task.collator(tokenizer)([data[0], data[1]])
    for mask in ("attention_mask", "global_attention_mask"):
        assert mask not in batch or batch[mask].dtype == torch.bool
    assert set(task.losses().labels) <= set(batch)
    batch.pop("place", None)  # which the Trainer reads
    model = build(task, tokenizer)
    loss = model(**batch).loss
    assert torch.isfinite(loss)
    loss.backward()
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    assert task.losses().weight(batch) > 0


def test_features_repeat(ready) -> None:
    task, _, tokenizer, data = ready
    first, again = (task.collator(tokenizer)([data[1]]) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first if isinstance(first[name], torch.Tensor))
