"""A whole model on every stack: any batch and length, saved, compiled, exported, trained; writing, where it can."""

from __future__ import annotations

import copy

import pytest
import torch

from closeness import ForeignProcessor, check_outputs, check_weights, misalign
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.models.fsdp import units
from longspan.models.transformers_names import enable_checkpointing
from longspan.stacks import STACKS, binary_partition
from longspan.stacks.reversible import Reversible

from .test_stacks import FIELDS, OPTIONS

SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 97}
WRITERS = [LongspanForCausalLM, LongspanForConditionalGeneration]
INSIDE = {
    "full": {"mechanism": "full"},
    "windows": {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2},
    "sums": {"mechanism": "linear"},
}
"""Mechanisms that every stack is tried with: one that sees everything, one that sees little, one that keeps a sum."""


def filled(names):
    """Each stack with each mechanism inside, written as "stack of mechanism"; by itself where it brings its own."""
    pairs = [f"{name} of {inside}" for name in names for inside in INSIDE if "attention" not in STACKS[name].unused]
    return [*pairs, *(name for name in names if "attention" in STACKS[name].unused)]


every_stack = pytest.mark.parametrize("name", filled(STACKS))
every_plain_stack = pytest.mark.parametrize("name", STACKS)
writing = [name for name, kind in STACKS.items() if kind.causal]
beside_a_decoder = [name for name, kind in STACKS.items() if not kind.causal and kind().of_decoder().causal]
every_writing_stack = pytest.mark.parametrize("name", filled(writing))
every_writer = pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in filled(writing)
        for kind in WRITERS
        if STACKS[name.partition(" ")[0]].bidirectional or kind is WRITERS[0]
    ]
    + [(name, LongspanForConditionalGeneration) for name in filled(beside_a_decoder)],
)


def build(name, kind=None, **changes):
    """A model on a stack: of a kind, or else one that gives states of all tokens at once, or logits made of them."""
    name, _, inside = name.partition(" of ")
    if inside:
        changes |= dict.fromkeys(("attention", "decoder_attention"), INSIDE[inside])
    if kind is None:
        kind = LongspanModel if STACKS[name].bidirectional else LongspanForCausalLM
        changes.setdefault("use_cache", False)
    if kind is LongspanForConditionalGeneration:
        changes["decoder_layers"] = 2
    fields = SIZES | FIELDS.get(name, {}) | changes
    known = {field: value for field, value in fields.items() if field not in STACKS[name].unused}
    return kind(LongspanConfig(stack={"stack": name, **OPTIONS.get(name, {})}, **known)).eval()


def batch(*lengths):
    """Random ids `(B, T)`, of which the fifth is a separator, and their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 61, mask.shape)
    ids[:, 4:5] = 2
    return ids.masked_fill(~mask, 1), mask.long()


@every_stack
@torch.no_grad()
def test_a_document_alone_padded_or_batched_gives_the_same(name):
    model, (ids, mask) = build(name), batch(31, 1, 17, 8)
    together = model(ids, mask, output_hidden_states=True)
    assert len(together.hidden_states) == 3
    head = getattr(model, "lm_head", torch.nn.Identity())
    assert torch.equal(head(together.hidden_states[-1]), together[0])
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(ids[row : row + 1, :length], output_hidden_states=True)
        for ours, theirs in zip(together.hidden_states, alone.hidden_states, strict=True):
            torch.testing.assert_close(ours[row, :length], theirs[0], atol=2e-5, rtol=1e-5)
    assert torch.equal(model(ids, mask)[0], together[0])


@every_stack
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(name):
    model, (ids, mask) = build(name), batch(31, 17, 8)
    left = [row.roll(31 - int(real)) for row, real in zip(ids, mask.sum(1), strict=True)]
    together = model(torch.stack(left), mask.flip(1))[0]
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(ids[row : row + 1, :length])[0][0]
        torch.testing.assert_close(together[row, 31 - length :], alone, atol=2e-5, rtol=1e-5)


@every_stack
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.variant)])
def test_any_length_and_a_row_of_padding_alone_are_finite(name, dtype):
    model, exact = build(name).to(dtype), build(name)
    exact.load_state_dict(model.float().state_dict())
    model.to(dtype).train()
    for lengths in ((0, 0), (1, 1), (2, 1), (13, 0), (29, 17)):
        ids, mask = batch(*lengths)
        model.zero_grad()
        hidden = model(ids, mask)[0]
        hidden.float().square().sum().backward()
        assert hidden.dtype == dtype
        assert hidden.isfinite().all()
        assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
        real = mask.bool()
        torch.testing.assert_close(
            model.eval()(ids, mask)[0].float()[real], exact(ids, mask)[0][real], atol=0.1, rtol=0.1
        )


@every_plain_stack
def test_what_is_gathered_or_placed_as_one_is_what_the_stack_calls(name):
    """By these names accelerate wraps modules for FSDP, and transformers keeps them on one device."""
    model = build(name)
    others = {"reversible": "Reversible", "star": "StarStep", "binary_partition": "PartitionLayer"}
    assert model._no_split_modules == {others.get(name, "CheckpointedBlock")}
    found = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    assert set(found) == set(units(model))


@every_stack
def test_dropout_acts_in_training_only_and_repeats_with_its_seed(name):
    model, (ids, mask) = build(name, dropout=0.3, attention_dropout=0.2), batch(23, 14)
    assert torch.equal(model(ids, mask)[0], model(ids, mask)[0])
    model.train()
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(model(ids, mask)[0])
    assert torch.equal(*found)
    assert not torch.equal(model(ids, mask)[0], found[0])


@every_stack
@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_gradient_checkpointing_changes_nothing(name, reentrant):
    model, (ids, mask) = build(name, dropout=0.1, attention_dropout=0.2).double().train(), batch(23, 14)

    def gradients():
        torch.manual_seed(7)
        model.zero_grad()
        model(ids, mask)[0].square().mean().backward()
        # What has no part in the output gets nothing, or zeros from reentrant checkpointing.
        return {
            name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()
        }

    plain = gradients()
    # transformers renamed the method between 5.17 and 5.23.
    enable_checkpointing(model, use_reentrant=reentrant)
    torch.testing.assert_close(gradients(), plain)


@every_stack
@torch.no_grad()
def test_models_are_saved_and_found_again(name, tmp_path):
    model, (ids, mask) = build(name), batch(23, 11)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.stack == model.config.stack
    check_weights(loaded, model)
    check_outputs(loaded.eval()(ids, mask)[0], model(ids, mask)[0])


@every_stack
@torch.no_grad()
def test_weights_may_begin_anywhere_in_memory(name):
    """As those of a file do. The outputs are then others by some roundings, on this processor or on a foreign one."""
    model, (ids, mask) = build(name), batch(23, 11)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    moved, wanted = misalign(copy.deepcopy(model)), model(ids, mask)[0]
    assert {parameter.data_ptr() % 64 for parameter in moved.parameters()} == {4}
    check_weights(moved, model)
    check_outputs(moved(ids, mask)[0], wanted)
    with ForeignProcessor():
        found = moved(ids, mask)[0]
    assert not torch.equal(found, wanted)
    check_outputs(found, wanted)


@every_plain_stack
@pytest.mark.slow
@torch.no_grad()
def test_inference_compiles_and_exports_as_one_graph(name, monkeypatch):
    # Levels of a tree over 64 tokens; tracing those of a million takes most of a minute.
    monkeypatch.setattr(binary_partition, "MOST_LEVELS", 7)
    model = build(name)
    axes = {0: torch.export.Dim("rows", min=1, max=9), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(model, batch(24, 11), dynamic_shapes=(axes, axes), strict=False).module()
    for given in (batch(13, 9, 5), batch(40, 40), batch(61, 6)):
        torch.testing.assert_close(program(*given)[0], model(*given)[0], atol=1e-5, rtol=1e-5)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    # A tree is compiled again for another number of levels, which takes less time where they are fewer.
    last = ((3, 2), "default") if name == "binary_partition" else ((61, 6), "fail_on_recompile")
    for lengths, stance in (((13, 9, 5), "default"), ((16, 16), "fail_on_recompile"), last):
        given = batch(*lengths)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, (0, 1))
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(compiled(*given)[0], model(*given)[0], atol=1e-5, rtol=1e-5)


@every_plain_stack
@pytest.mark.slow
def test_a_model_is_exported_while_gradients_are_on(name):
    model, given = build(name), batch(24, 11)
    program = torch.export.export(model, given, strict=False).module()
    torch.testing.assert_close(program(*given)[0], model(*given)[0], atol=1e-5, rtol=1e-5)


def test_every_mechanism_has_the_same_gradients_when_its_inputs_are_rebuilt(form):
    kind, marked = LongspanForCausalLM if form.causal else LongspanModel, "first" in form.globals
    options = {"dropout": 0.1, "attention_dropout": 0.2, "global_tokens": "first" if marked else "none"}
    model, (ids, mask) = build("reversible", kind, attention=form.config, **options).double().train(), batch(37, 14)
    found = []
    for rebuilt in (True, False):
        for module in model.modules():
            if isinstance(module, Reversible):
                module.recompute = rebuilt
        torch.manual_seed(7)
        model.zero_grad()
        model(ids, mask, use_cache=False)[0].square().mean().backward()
        found.append({name: each.grad for name, each in model.named_parameters()})
    torch.testing.assert_close(*found, atol=1e-10, rtol=1e-10)


@every_writer
@torch.no_grad()
def test_text_is_the_same_with_and_without_a_cache_alone_and_batched(name, kind):
    model, (ids, mask) = build(name, kind), batch(23, 11)
    if kind is LongspanForCausalLM:
        ids, mask = ids.flip(1), mask.flip(1)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "num_beams": 2}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(model.generate(ids, attention_mask=mask, use_cache=False, **options), together)
    alone = model.generate(ids[1:][mask[1:].bool()][None], **options)
    assert torch.equal(alone[0, -9:], together[1, -9:])


@every_writing_stack
@torch.no_grad()
def test_a_later_token_cannot_change_an_earlier_output_by_one_bit(name):
    model, (ids, _) = build(name, LongspanForCausalLM), batch(23)
    changed = ids.clone()
    changed[:, 17:] = 5
    assert torch.equal(model(ids).logits[:, :17], model(changed).logits[:, :17])
