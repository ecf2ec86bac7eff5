"""Models whose rows are divided between processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forked import forked
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForSentenceScoring,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.sequence_parallel import divide_sequence, part_of, whole_rows

WINDOW = {"mechanism": "longformer", "left_tokens": 4, "right_tokens": 4}
SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 12, "max_position_embeddings": 40, "attention": WINDOW}


@pytest.mark.slow
def test_models_are_those_of_one_process() -> None:
    """Loss, states and gradients in float64, also of rows with fewer tokens than processes; the loss of a single label
    is float32 in either. And bytes are those that a plan counts."""
    done = forked(3, Path(__file__).with_name("divided_models.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 * 25 + 3 + 24 + 5
    assert max(found.pop("single label"), found.pop("single label, 2 tokens")) < 1e-6
    assert {name: distance for name, distance in found.items() if not distance < 1e-11} == {}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (LongspanModel, {"attention": {"mechanism": "reformer"}}, "nothing bounds how far a token sees"),
        (LongspanModel, {"attention": {"mechanism": "bigbird"}}, "'bigbird' cannot read rows that are sharded"),
        (LongspanModel, {"stack": {"stack": "universal"}}, "the stack 'universal' does more with tokens"),
        (LongspanModel, {"num_memory_tokens": 2}, "num_memory_tokens=2 come before each row"),
        (LongspanForCausalLM, {"attention": {"mechanism": "sparse"}}, "'sparse' cannot read rows that are sharded"),
        (LongspanForSentenceScoring, {}, "derives its output from a whole row"),
    ],
)
def test_models_that_read_whole_rows(kind: type, changes: dict[str, Any], words: str) -> None:
    model = kind(LongspanConfig(**{**SIZES, **changes}))
    with pytest.raises(InputError, match=words):
        divide_sequence(model)


@pytest.mark.usefixtures("alone")
def test_what_is_no_model() -> None:
    with pytest.raises(InputError, match="Linear is neither an encoder, a LongspanForConditionalGeneration nor"):
        divide_sequence(torch.nn.Linear(2, 2))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seq_idx": torch.zeros(1, 7, dtype=torch.int64)}, "seq_idx was given with rows that are sharded"),
        ({"belongs_to": torch.zeros(1, 7, dtype=torch.int64)}, "belongs_to was given with rows that are sharded"),
    ],
)
def test_inputs_that_only_whole_rows_have(given: dict[str, Any], words: str) -> None:
    model = LongspanModel(LongspanConfig(**SIZES))
    divide_sequence(model)
    with pytest.raises(InputError, match=words):
        model(torch.ones(1, 7, dtype=torch.int64), **given)


@pytest.mark.usefixtures("alone")
def test_the_rule_by_question_asks_for_a_mask() -> None:
    config = LongspanConfig(**SIZES, global_tokens="question", sep_token_id=2)
    model = LongspanModel(config)
    divide_sequence(model)
    with pytest.raises(InputError, match="global_tokens='question' needs whole rows"):
        model(torch.full((1, 7), 2))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("other", [False, True])
def test_a_memory_knows_no_padding(other: bool) -> None:
    """Nor does generation know parts; a model with other options, over the same weights, is divided like it."""
    model = LongspanForCausalLM(LongspanConfig(**SIZES, stack={"stack": "recurrent", "memory_tokens": 5})).eval()
    begun = model(torch.full((1, 7), 3), use_cache=True).cache
    with torch.no_grad():
        keys = model(torch.full((1, 7), 3), use_cache=True).cache
    divide_sequence(model)
    read = model.with_memory(memory_tokens=4) if other else model
    ids, mask = torch.full((1, 7), 4), torch.ones(1, 7, dtype=torch.int64)
    for memory in (None, begun):
        read(ids, mask, cache=memory, use_cache=True)
    mask[0, 0] = 0
    read(ids, mask, use_cache=False)
    with pytest.raises(InputError, match="attention_mask contains padding, and rows that are sharded"):
        read(ids, mask)
    with pytest.raises(InputError, match="cache contains keys and values, and rows that are sharded"):
        read(ids, cache=keys)
    with pytest.raises(InputError, match=r"generate\(\) continues whole rows"):
        read.generate(ids, max_new_tokens=2)


@pytest.mark.usefixtures("alone")
def test_one_process_has_all() -> None:
    model = LongspanForTokenClassification(LongspanConfig(**SIZES, num_labels=3)).eval()
    ids, labels = torch.randint(3, 31, (2, 11)), torch.randint(0, 3, (2, 11))
    batch = {"input_ids": ids, "labels": labels}
    whole = model(**batch)
    divide_sequence(model)
    assert {name: tuple(each.shape) for name, each in part_of(batch).items()} == {
        "input_ids": (2, 11),
        "labels": (2, 11),
    }
    part = model(**part_of(batch))
    torch.testing.assert_close(part.logits, whole.logits)
    torch.testing.assert_close(part.loss, whole.loss)
    torch.testing.assert_close(whole_rows(part.logits), whole.logits.detach())


def test_processes_are_to_know_each_other() -> None:
    with pytest.raises(InputError, match=r"start the processes with torchrun and call torch.distributed.init_process"):
        divide_sequence(LongspanModel(LongspanConfig(**SIZES)))
