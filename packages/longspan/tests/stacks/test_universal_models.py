"""Whole models on the universal stack: writing in steps, what thinking costs, saved, longer, compiled, sent out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from longspan import lengthen, to_transformers
from longspan.attention import MECHANISMS
from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.transformers_names import enable_checkpointing

from .test_universal import ACT, SIZES, batch, build, stacks_of

CAUSAL = [name for name, kind in MECHANISMS.items() if supports(kind, "state", causal=True)]


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("mechanism", ["full", "longformer", "linear", "performer"])
@torch.no_grad()
def test_writing_token_by_token_equals_one_pass(mechanism, freeze):
    assert mechanism in CAUSAL
    model = build(LongspanForCausalLM, attention=mechanism, freeze_halted=freeze)
    ids, _ = batch(19, 19)
    whole = model(ids, use_cache=False)
    assert len(whole.ponder_times.unique()) > 2
    parts, cache = [], None
    for first, last in ((0, 6), (6, 7), (7, 8), (8, 13), *((each, each + 1) for each in range(13, 19))):
        part = model(ids[:, first:last], cache=cache, use_cache=True)
        cache = part.cache
        parts.append(part)
    assert len(cache.layers) == 5
    torch.testing.assert_close(torch.cat([part.logits for part in parts], 1), whole.logits)
    assert torch.equal(torch.cat([part.ponder_times for part in parts], 1), whole.ponder_times)


@pytest.mark.parametrize("kind", [LongspanForCausalLM, LongspanForConditionalGeneration])
@torch.no_grad()
def test_text_is_the_same_with_and_without_a_cache_alone_and_batched(kind):
    model = build(kind)
    ids, mask = batch(23, 11, left=kind is LongspanForCausalLM)
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "num_beams": 2}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(model.generate(ids, attention_mask=mask, use_cache=False, **options), together)
    alone = model.generate(ids[1:][mask[1:].bool()][None], **options)
    assert torch.equal(alone[0, -7:], together[1, -7:])


def test_a_source_is_kept_once_for_all_steps():
    model = build(LongspanForConditionalGeneration)
    ids, mask = batch(23, 11)
    cache = model(ids, mask, decoder_input_ids=ids[:, :3], use_cache=True).cache
    assert len({id(layer) for layer in cache.self_attention_cache.layers}) == 5
    assert len({id(layer) for layer in cache.cross_attention_cache.layers}) == 1


def pondered_loss(kind, **changes):
    """The loss with labels of a model, in training and not, and the model."""
    model, (ids, mask) = build(kind, dropout=0.0, **changes), batch(23, 11)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100) % 2}
    still = model(**inputs).loss
    return model.train()(**inputs).loss, still, model


@pytest.mark.parametrize(
    "kind", [LongspanForTokenClassification, LongspanForCausalLM, LongspanForConditionalGeneration]
)
def test_the_cost_of_thinking_joins_the_training_loss_and_reaches_the_halting_unit(kind):
    torch.manual_seed(3)
    training, still, model = pondered_loss(kind, ponder_weight=0.5)
    units = [stack.halting.linear.weight for stack in stacks_of(model)]
    assert 0.5 * len(units) < float(training.detach() - still.detach()) <= 0.5 * len(units) * 6
    gradients = torch.autograd.grad(training - still, units)
    assert all(gradient.abs().sum() > 1e-4 for gradient in gradients)
    torch.manual_seed(3)
    training, still, _ = pondered_loss(kind, ponder_weight=0.0)
    torch.testing.assert_close(training, still)


def test_batches_of_one_update_pay_for_their_share_of_the_labels():
    torch.manual_seed(3)
    model, (ids, _) = build(LongspanForCausalLM, dropout=0.0, ponder_weight=0.5).train(), batch(23, 23)
    whole = model(ids, labels=ids).loss
    parts = [model(row[None], labels=row[None], num_items_in_batch=44).loss for row in ids]
    torch.testing.assert_close(sum(parts), whole)


def test_gradients_are_those_of_every_step_computed_and_all_stay_the_same_when_checkpointed():
    model, (ids, mask) = build(dropout=0.0).train(), batch(23, 14)
    found = []
    for checkpointed in (False, True):
        if checkpointed:
            enable_checkpointing(model)
        model.zero_grad()
        output = model(ids, mask)
        (output[0].square().mean() + output.stack_loss).backward()
        found.append({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})
    torch.testing.assert_close(*found)
    assert any(name.endswith("halting.linear.weight") for name in found[0])


def test_the_bias_starts_at_1_and_is_loaded_as_it_was(tmp_path):
    model = LongspanModel(LongspanConfig(stack=ACT, **SIZES))
    bias = model.encoder.layers.halting.linear.bias
    assert float(bias.detach()) == 1.0
    nn.init.constant_(bias, 0.25)
    model.save_pretrained(tmp_path)
    assert float(LongspanModel.from_pretrained(tmp_path).encoder.layers.halting.linear.bias.detach()) == 0.25


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_or_exported_program_goes_through_all_steps_with_equal_results():
    model = build(dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    length = torch.export.Dim("length", min=2, max=90)
    shapes = ({1: length}, {1: length})
    program = torch.export.export(model, batch(24, 11), dynamic_shapes=shapes, strict=False).module()
    given = batch(31, 17)
    for run in (compiled, program):
        torch.testing.assert_close(run(*given)[0], model(*given)[0], atol=1e-5, rtol=1e-5)


def test_a_single_step_is_no_published_layer():
    model = build(LongspanForTokenClassification, halting="none", num_hidden_layers=1, position_offset=0)
    model.config.layer_norm_eps = 1e-12
    with pytest.raises(InputError, match=r"stack=\{'stack': 'universal'.*cannot be represented"):
        to_transformers(model)


@torch.no_grad()
def test_a_longer_model_starts_from_its_weights(tmp_path):
    build(dtype=torch.float32).save_pretrained(tmp_path)
    longer = lengthen(tmp_path, attention={"mechanism": "longformer", "left_tokens": 200}, max_tokens=160)
    ids, _ = batch(31)
    torch.testing.assert_close(longer.eval()(ids)[0], LongspanModel.from_pretrained(tmp_path)(ids)[0])
