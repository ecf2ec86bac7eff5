"""A memory in front of the text, in a model of every mechanism that knows global tokens: dense layers over memory and
text by hand, documents alone and in batches, compression, and what takes none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan.attention import Tokens
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.transformers_names import enable_checkpointing
from longspan.stacks import STACKS

from .forms import FORMS
from .oracles import oracle
from .test_heads import CASES, INPUTS, LABELS, make, of, texts
from .test_stacks import FIELDS, OPTIONS

SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 97, "num_memory_tokens": 5}
TAKING = [form for form in FORMS if len(form.globals) > 1]
WINDOW = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2}


def build(kind: Any = LongspanModel, attention: Any = WINDOW, **changes: Any) -> Any:
    return kind(LongspanConfig(**{"attention": attention, **SIZES, **changes})).eval()


def batch(*lengths, left=False):
    """Random ids `(B, T)` and their mask, padded on the right or on the left."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if left else mask
    return torch.randint(3, 61, mask.shape).masked_fill(~mask, 1), mask.long()


def by_hand(model, ids, is_global, lower=None):
    """Rows of memory and text through the dense layer of each block, the last blocks with the memory alone."""
    encoder, count = model.encoder, model.config.num_memory_tokens
    words, norm = encoder.embeddings, encoder.embeddings.norm
    text = words.token(ids) + words.position(torch.arange(ids.shape[1]) + words.offset)
    hidden = norm(torch.cat([words.memory(text), text], 1))
    flags = torch.cat([torch.ones(len(ids), count, dtype=torch.bool), is_global], 1)
    tables = () if encoder.relative is None else encoder.relative()
    for layer, block in enumerate(encoder.layers):
        if layer == lower:
            hidden, flags = hidden[:, :count], flags[:, :count]
        tokens = Tokens(is_global=flags, relative=tables or None).with_slots()
        hidden = block.attention_norm(hidden + oracle(block.attention, hidden, tokens))
        hidden = block.feed_forward_norm(hidden + block.feed_forward(hidden))
    return hidden


@torch.no_grad()
def test_every_mechanism_equals_dense_layers_over_memory_and_text():
    """The memory has positions of its own, and positions of the text are those that it has without a memory."""
    ids, globals_ = torch.randint(3, 61, (2, 31)), torch.zeros(2, 31, dtype=torch.bool)
    globals_[0, [4, 7]] = True
    for form in TAKING:
        model = build(attention=form.config).double()
        found, wanted = model(ids, global_attention_mask=globals_), by_hand(model, ids, globals_)
        pairs = ((found.last_hidden_state, wanted[:, 5:]), (found.memory_states, wanted[:, :5]))
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10, msg=lambda m, form=form: form.name + m)


@pytest.mark.variant
@torch.no_grad()
def test_every_mechanism_goes_on_with_the_memory_alone():
    ids, nothing = torch.randint(3, 61, (2, 31)), torch.zeros(2, 31, dtype=torch.bool)
    for form in TAKING:
        model = build(attention=form.config, compress_after=1, pooler=True).double()
        found = model(ids, output_hidden_states=True)
        wanted = by_hand(model, ids, nothing, lower=1)
        torch.testing.assert_close(found[0], wanted, atol=1e-10, rtol=1e-10, msg=lambda m, form=form: form.name + m)
        assert [each.shape[1] for each in found.hidden_states] == [31, 5, 5]
        assert torch.equal(found.memory_states, found[0])
        assert torch.equal(found.pooler_output, model.pooler(found[0]))


@torch.no_grad()
@pytest.mark.parametrize("left", [False, True])
def test_a_document_alone_padded_or_batched_gives_the_same(left):
    """Padding on the left goes behind the text, so that blocks and pools begin where they do without it."""
    ids, mask = batch(31, 1, 17, 8, left=left)
    options = {"memory_embedding": "sinusoidal", "global_tokens": "first", "positions_skip_padding": True}
    for form in TAKING:
        if form.name != form.config.mechanism:
            continue
        model = build(attention=form.config, **options)
        together = model(ids, mask, output_hidden_states=True)
        for row, real in enumerate(mask.bool()):
            alone = model(ids[row, real][None], output_hidden_states=True)
            pairs = [(together.memory_states[row], alone.memory_states[0])]
            pairs += [(a[row, real], b[0]) for a, b in zip(together[1], alone[1], strict=True)]
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5, msg=lambda m, f=form: f.name + m)


@torch.no_grad()
@pytest.mark.parametrize("stack", [name for name, kind in STACKS.items() if "memory_tokens" in kind.supports])
@pytest.mark.parametrize("left", [False, True])
def test_every_stack_that_takes_a_memory_reads_rows_alone_as_together(stack, left):
    options = {**FIELDS.get(stack, {}), "positions_skip_padding": True}
    model = build(stack={"stack": stack, **OPTIONS.get(stack, {})}, **options)
    ids, mask = batch(31, 1, 17, left=left)
    together = model(ids, mask)
    for row, real in enumerate(mask.bool()):
        alone = model(ids[row, real][None])
        torch.testing.assert_close(together[0][row, real], alone[0][0], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(together.memory_states[row], alone.memory_states[0], atol=2e-5, rtol=1e-5)
    for shape in ((2, 0), (2, 1)):
        output = model(torch.full(shape, 7))
        assert output[0].shape == (*shape, 24)
        assert output.memory_states.isfinite().all()
    assert model(ids, torch.zeros_like(mask))[0].isfinite().all()


def test_a_far_token_reaches_all_others_through_the_memory_alone():
    """In two layers of windows of 3 and 2 tokens the first token sees no further than the fifth; with a memory all."""
    ids = torch.randint(3, 61, (1, 41))
    for count, reach in ((0, 5), (5, 41)):
        model = build(num_memory_tokens=count).double()
        embedded = model.encoder.embeddings.of_tokens(ids).detach().requires_grad_()
        model(inputs_embeds=embedded)[0][0, 0, 0].backward()
        assert int((embedded.grad[0].abs().sum(1) > 0).sum()) == reach


def test_training_reaches_the_memory_with_and_without_checkpoints():
    forms: list[dict[str, Any]] = [{}, {"compress_after": 1}]
    for changes in (*forms, {"stack": "reversible", "normalization": "pre"}):
        model = build(LongspanForSequenceClassification, dropout=0.1, **changes).train()
        (ids, mask), found = batch(23, 14, left=True), []
        for checkpointed in (False, True):
            if checkpointed:
                # transformers renamed the method between 5.17 and 5.23.
                enable_checkpointing(model, use_reentrant=False)
            torch.manual_seed(7)
            model.zero_grad()
            model(ids, mask, labels=torch.tensor([0, 1])).loss.backward()
            found.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
        assert (found[0]["model.encoder.embeddings.memory.table.weight"] != 0).all()


@torch.no_grad()
def test_models_are_saved_and_found_again_and_published_ones_get_a_memory(tmp_path):
    ids, mask = batch(23, 11)
    forms: list[dict[str, Any]] = [{"compress_after": 1}, {"memory_embedding": "sinusoidal"}]
    for changes in forms:
        model = build(**changes)
        model.save_pretrained(tmp_path)
        loaded, report = LongspanModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[name] for name in ("missing_keys", "unexpected_keys"))
        torch.testing.assert_close(loaded.eval()(ids, mask)[0], model(ids, mask)[0], atol=1e-5, rtol=1e-5)
    build(num_memory_tokens=0).save_pretrained(tmp_path)
    loaded, report = LongspanModel.from_pretrained(tmp_path, num_memory_tokens=7, output_loading_info=True)
    assert set(report["missing_keys"]) == {"encoder.embeddings.memory.table.weight"}
    assert loaded(ids, mask).memory_states.shape == (2, 7, 24)
    assert 0.1 < loaded.encoder.embeddings.memory.table.weight.std() < 0.3


@torch.no_grad()
@pytest.mark.parametrize("lower", [None, 1])
def test_an_encoder_decoder_writes_the_same_alone_and_batched(lower):
    model = build(LongspanForConditionalGeneration, decoder_layers=1, compress_after=lower)
    ids, mask = batch(23, 11)
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "num_beams": 2, "do_sample": False}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(model.generate(ids[1:, :11], attention_mask=mask[1:, :11], **options), together[1:])
    encoded = model.get_encoder()(ids, mask)
    given = model(decoder_input_ids=ids[:, :3], encoder_outputs=encoded, attention_mask=mask).logits
    assert torch.equal(given, model(ids, mask, decoder_input_ids=ids[:, :3]).logits)
    if lower is not None:
        # The decoder reads memory alone: it has keys and values of 5 places, and no state of a token.
        assert encoded.source_states.shape == (2, 5, 24)
        with pytest.raises(InputError, match="with compress_after reads memory; give what get_encoder"):
            model(decoder_input_ids=ids[:, :3], encoder_outputs=(encoded[0],), attention_mask=mask)


@torch.no_grad()
def test_a_longer_model_keeps_its_memory_bit_for_bit():
    """A text that both read gives what it gave, also beside a padded one, and a longer one what dense layers by hand
    make of the same memory and of positions that go on as copies."""
    shorter, nothing = batch(53, 1, 17, left=True), torch.zeros(2, 97, dtype=torch.bool)
    cases: list[tuple[Any, str, dict[str, Any]]] = [
        (WINDOW, "longformer", {}),
        (WINDOW, "longformer", {"compress_after": 1}),
        (WINDOW, "longformer", {"memory_embedding": "sinusoidal"}),
        ("full", "longformer", {}),
        ("full", "poolingformer", {}),
    ]
    for attention, target, changes in cases:
        source = build(attention=attention, max_position_embeddings=53, **changes)
        longer = lengthen(source, target, max_tokens=97)
        before, after = source.state_dict(), longer.state_dict()
        memory = "encoder.embeddings.memory.table.weight"
        assert (memory in before) == (memory in after) == ("memory_embedding" not in changes)
        assert memory not in before or torch.equal(after[memory], before[memory])
        name, old = "encoder.embeddings.position.weight", source.config.position_offset
        assert torch.equal(after[name][: old + 53], before[name])
        assert torch.equal(after[name][old + 53 :], before[name][old:][:44])
        assert longer.config.num_memory_tokens == 5
        wanted, found = source(*shorter), longer(*shorter)
        torch.testing.assert_close(found.memory_states, wanted.memory_states, atol=1e-5, rtol=1e-5)
        if "compress_after" not in changes:
            real = shorter[1].bool()
            torch.testing.assert_close(found[0][real], wanted[0][real], atol=1e-5, rtol=1e-5)
        model, ids = longer.double(), torch.randint(3, 61, (2, 97))
        wanted = by_hand(model, ids, nothing, lower=changes.get("compress_after"))
        found = model(ids)
        torch.testing.assert_close(found.memory_states, wanted[:, :5], atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(found[0], wanted[:, -found[0].shape[1] :], atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@torch.no_grad()
def test_inference_compiles_and_exports_as_one_graph():
    length = torch.export.Dim("length", min=2, max=90)
    for changes in ({}, {"compress_after": 1}):
        model, example = build(**changes), batch(24, 11)
        program = torch.export.export(model, example, dynamic_shapes=({1: length}, {1: length}), strict=False).module()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for lengths, left, stance in (((31, 17), False, "default"), ((89, 6), True, "fail_on_recompile")):
            given = batch(*lengths, left=left)
            for tensor in given:
                torch._dynamo.mark_dynamic(tensor, 1)
            with torch.compiler.set_stance(stance):
                for run in (compiled, program):
                    torch.testing.assert_close(run(*given)[0], model(*given)[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_every_head_answers_for_the_tokens_of_the_text():
    for spec in CASES:
        plain, ours = make(spec), make(spec, num_memory_tokens=3)
        missing = ours.load_state_dict(plain.state_dict(), strict=False).missing_keys
        assert missing == ["model.encoder.embeddings.memory.table.weight"]
        ids, mask = texts(spec)
        given = {"input_ids": ids, "attention_mask": mask, **of(INPUTS, spec), **of(LABELS, spec)}
        without, found = plain(**given), ours(**given)
        shapes = [{name: value.shape for name, value in each.items()} for each in (without, found)]
        assert shapes[0] == shapes[1]
        assert found.loss.isfinite()
        assert not torch.equal(found.loss, without.loss)


def test_what_takes_no_memory_is_refused_in_one_sentence():
    def config(**changes):
        return LongspanConfig(**{**SIZES, "attention": WINDOW, **changes})

    cases = [
        ({"attention": "reformer"}, "num_memory_tokens=5 needs global tokens, and attention of layer 0 is 'reformer'"),
        ({"stack": "decomposed"}, "does not go with stack 'decomposed'"),
        ({"stack": "top_down"}, "does not go with stack 'top_down'"),
        ({"num_memory_tokens": -1}, "num_memory_tokens"),
        ({"num_memory_tokens": 0, "compress_after": 1}, "compress_after=1 is for models with num_memory_tokens"),
        ({"num_memory_tokens": 0, "memory_embedding": "sinusoidal"}, "is for models with num_memory_tokens"),
        ({"compress_after": 3}, "compress_after=3 is more than num_hidden_layers=2"),
        ({"compress_after": 0}, "compress_after"),
        ({"compress_after": 1, "stack": "universal"}, "compress_after=1 does not go with stack 'universal'"),
        ({"compress_after": 1, "head": "masked_lm"}, "leaves head 'masked_lm' no tokens to read"),
        ({"attention": {"mechanism": "linformer", "max_tokens": 100}}, "=97 and num_memory_tokens=5 together"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            config(**changes)
    with pytest.raises(InputError, match="leaves head 'token_classification' no tokens to read"):
        LongspanForTokenClassification(config(compress_after=1))
    with pytest.raises(InputError, match="this one is causal"):
        LongspanForCausalLM(config())
    assert all("memory_tokens" in kind.supports for kind in STACKS.values() if "ranges" in kind.supports)
