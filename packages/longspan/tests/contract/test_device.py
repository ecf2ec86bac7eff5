"""Whole models on a CUDA device that is not there: every stack and head, decoding, a step of the Trainer, a lengthened
one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from closeness import check_outputs
from counted import Work
from fake_cuda import FakeCuda
from longspan.checkpoints import lengthen
from longspan.data.labelled import synthetic_labelled
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration
from longspan.models.heads import HEADS
from longspan.stacks import STACKS
from longspan.tasks.classification.classification import Classification
from longspan.training.tokenizers import train_tokenizer

from .test_heads import INPUTS, LABELS, make, texts
from .test_stacked_models import batch
from .test_stacked_models import build as on_stack

pytestmark = pytest.mark.variant  # the same laws run on the processor in the other modules

ULPS = 512
"""Units of rounding of the largest number, after several layers on other paths."""


def moved(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: each.to(device) if isinstance(each, Tensor) else each for name, each in inputs.items()}


def learned(model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The loss, or the square of all states, and all gradients that there are, together."""
    torch.manual_seed(0)
    output = model(**inputs)
    loss = output.loss if "loss" in output else output[0].float().square().mean()
    loss.backward()
    grads = [each.grad.cpu().flatten() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    return loss.detach().cpu(), torch.cat(grads)


def check_same(model: nn.Module, inputs: dict[str, Any]) -> None:
    expected = learned(model, inputs)
    with FakeCuda() as device:
        given = learned(model.to(device), moved(inputs, device))
        model.to("cpu")
    for one, other in zip(given, expected, strict=True):
        check_outputs(one, other, ulps=ULPS)


@pytest.mark.parametrize("name", STACKS)
def test_every_stack_learns_on_the_device(name) -> None:
    brings = "attention" in STACKS[name].unused
    ids, mask = batch(31, 17)
    check_same(on_stack(name if brings else f"{name} of windows"), {"input_ids": ids, "attention_mask": mask})


@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns_on_the_device(name) -> None:
    ids, mask = texts({"head": name})
    check_same(make({"head": name}), {"input_ids": ids, "attention_mask": mask} | INPUTS.get(name, {}) | LABELS[name])


@pytest.mark.parametrize("mechanism", ["longformer", "linear"])
def test_a_language_model_writes_the_same_on_the_device(mechanism) -> None:
    torch.manual_seed(1)
    model = on_stack("sequential", LongspanForCausalLM, attention={"mechanism": mechanism}, use_cache=True)
    ids, mask = batch(19, 13)
    check_written(model, ids, mask, pad_token_id=1)


def test_an_encoder_with_a_decoder_writes_the_same_on_the_device() -> None:
    torch.manual_seed(1)
    model = on_stack("sequential of windows", LongspanForConditionalGeneration)
    check_written(model, *batch(19, 13), num_beams=3)


def check_written(model: Any, ids: Tensor, mask: Tensor, **options: Any) -> None:
    options |= {"do_sample": False, "max_new_tokens": 9}
    expected = model.generate(input_ids=ids, attention_mask=mask, **options)
    with FakeCuda() as device:
        model.to(device)
        with Work("cuda") as work:
            given = model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), **options)
        assert given.tolist() == expected.tolist()
        assert work.operations
        model.to("cpu")


def test_a_batch_of_a_task_trains_the_same_on_the_device(tmp_path, monkeypatch) -> None:
    """What the collator makes is moved by the Trainer, which takes two steps of plain descent: Adam divides rounding by
    rounding."""
    rows = synthetic_labelled(4, seed=0)
    tokenizer, task = train_tokenizer((row.text for row in rows), 300), Classification(max_tokens=23).of_rows(rows)
    data = task.dataset(rows, tokenizer, training=True, seed=1, folder=Path())

    def trained() -> dict[str, Tensor]:
        torch.manual_seed(2)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = task.model_class()(
            LongspanConfig(vocab_size=len(tokenizer), dropout=0.0, **sizes, **task.model_fields())
        )
        options = TrainingArguments(
            str(tmp_path), max_steps=2, report_to=[], save_strategy="no", optim="sgd", disable_tqdm=True,
            dataloader_pin_memory=False, learning_rate=0.1,
        )  # fmt: skip
        Trainer(model, options, train_dataset=data, data_collator=task.collator(tokenizer)).train()
        assert next(model.parameters()).device == options.device
        return {name: each.detach().cpu() for name, each in model.state_dict().items()}

    expected = trained()
    with FakeCuda() as device:
        monkeypatch.setitem(PartialState._shared_state, "device", device)
        given = trained()
    for name, each in expected.items():
        check_outputs(given[name], each, ulps=ULPS)


def test_a_lengthened_model_reads_the_same_on_the_device(tmp_path) -> None:
    config = BertConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    model = lengthen(tmp_path, "poolingformer", max_tokens=150)
    ids, mask = batch(131, 77)
    check_same(model, {"input_ids": ids, "attention_mask": mask, "global_attention_mask": torch.zeros_like(mask)})
