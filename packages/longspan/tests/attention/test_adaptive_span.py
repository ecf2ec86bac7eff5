"""Spans that learn: the paper's formulas in loops, what is cut off, what it costs, and that shares stay in [0, 1]."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Trainer, TrainingArguments

import longspan.attention.adaptive_span as adaptive_span
from longspan.attention import AdaptiveSpanConfig, Attention, Tokens
from longspan.attention.features.memory import limit_keys, needed_states
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel
from longspan.models.transformers_names import enable_checkpointing

WIDTH, HEADS = 6, 2


def build(dtype=torch.float64, shares=None, **options):
    module = AdaptiveSpanConfig(**options).build(width=WIDTH, heads=HEADS, causal=True).to(dtype)
    with torch.no_grad():
        if options.get("dynamic"):
            torch.nn.init.normal_(module.span.weight, std=0.8)
            module.span.bias.zero_()
        else:
            module.span_share.copy_(torch.tensor([0.13, 0.61]) if shares is None else torch.tensor(shares))
    return module


def in_loops(module, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """`m · softmax`, normalised again, a pair at a time; x counts from the nearest key."""
    config, width = module.config, WIDTH // HEADS
    query, key, value = (each(hidden) for each in (module.query, module.key, module.value))
    nearest = 0 if config.sees_itself else 1
    rows = []
    for b in range(len(hidden)):
        for t in range(hidden.shape[1]):
            parts = []
            for h in range(HEADS):
                if config.dynamic:
                    share = torch.sigmoid(module.span.weight[h] @ hidden[b, t] + module.span.bias[h])
                else:
                    share = module.span_share[h]
                part, total, columns = 0.0, 0.0, slice(h * width, (h + 1) * width)
                seen = [r for r in range(t + 1 - nearest) if t - r - nearest < config.span_tokens]
                seen = [r for r in seen if mask is None or mask[b, r]]
                places = [module.table.distances[t - r - nearest] for r in seen]
                scores = [
                    query[b, t, columns] @ (key[b, r, columns] + place) / math.sqrt(width)
                    for r, place in zip(seen, places, strict=True)
                ]
                largest = max(scores) if scores else 0.0
                for r, score in zip(seen, scores, strict=True):
                    x = t - r - nearest
                    soft = ((config.ramp_tokens + config.span_tokens * share - x) / config.ramp_tokens).clamp(0, 1)
                    if soft > 0:
                        weight = soft * torch.exp(score - largest)
                        part, total = part + weight * value[b, r, columns], total + weight
                parts.append(part / total if isinstance(part, Tensor) else hidden.new_zeros(width))
            rows.append(torch.cat(parts))
    context = torch.stack(rows).view_as(hidden) if rows else hidden
    return module.output(context)


def gradients(output: Tensor, hidden: Tensor, module) -> list[Tensor]:
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs = [hidden, *module.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    return [output, *torch.autograd.grad(output, inputs, upstream.to(output), **options)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sees_itself", [False, True])
def test_outputs_and_gradients_are_those_of_the_formulas(dynamic, sees_itself, dtype):
    options = {"span_tokens": 19, "ramp_tokens": 5, "dynamic": dynamic, "sees_itself": sees_itself}
    module = build(dtype, **options)
    hidden = torch.randn(2, 26, WIDTH, dtype=dtype, requires_grad=True)
    mask = torch.ones(2, 26, dtype=torch.bool)
    mask[0, :4], mask[1, 9:15] = False, False
    ours = gradients(module(hidden, Tokens(mask=mask)), hidden, module)
    theirs = gradients(in_loops(module, hidden, mask), hidden, module)
    torch.testing.assert_close(ours, theirs, **({} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}))


@settings(max_examples=12)
@given(length=st.integers(0, 11), span=st.integers(1, 12), ramp=st.integers(1, 12), itself=st.booleans())
def test_any_length_span_and_ramp(length, span, ramp, itself):
    module = build(span_tokens=span, ramp_tokens=min(ramp, span), sees_itself=itself)
    hidden = torch.randn(1, length, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(hidden), in_loops(module, hidden))


def test_the_first_token_of_a_text_gathers_nothing_where_none_sees_itself():
    module, hidden = build(span_tokens=8, ramp_tokens=2), torch.randn(1, 1, WIDTH, dtype=torch.float64)
    assert not module(hidden).any()
    assert build(span_tokens=8, ramp_tokens=2, sees_itself=True)(hidden).any()


@pytest.mark.parametrize(("share", "seen"), [(0.0, 64), (0.03, 64), (0.06, 128), (0.5, 576), (0.97, 1024)])
def test_keys_beyond_the_longest_span_are_neither_computed_nor_kept(share, seen, monkeypatch):
    """S = 1024, R = 32: what is cut off is a multiple of 64, and nothing that a head sees."""
    module, patterns = build(shares=[0.0, share]).eval(), []
    attend = adaptive_span.attend

    def watching(*args, **options):
        patterns.append(options["pattern"])
        return attend(*args, **options)

    monkeypatch.setattr(adaptive_span, "attend", watching)
    module(torch.randn(1, 40, WIDTH, dtype=torch.float64))
    assert patterns[0].left + 1 == seen == module.seen_tokens()
    assert seen >= min(1024, math.ceil(1024 * share + 32))
    assert module.new_state().reach == seen
    assert module.train().new_state().reach == 1024
    assert needed_states(module, 5000) == seen + 64
    assert needed_states(module, 50) == 50


def test_what_is_cut_off_was_not_seen():
    module, hidden = build(shares=[0.01, 0.07], span_tokens=512).eval(), torch.randn(1, 400, WIDTH).double()
    assert module.seen_tokens() == 128
    torch.testing.assert_close(module(hidden), module.output(dense(module, hidden)))


def dense(module, hidden: Tensor) -> Tensor:
    return module.merge_heads(module.weights(hidden) @ module.split_heads(module.value(hidden)))


def test_gradients_are_numbers_where_spans_are_0():
    module = build(shares=[0.0, 0.0], span_tokens=300, ramp_tokens=4)
    hidden = torch.randn(1, 200, WIDTH, dtype=torch.float64, requires_grad=True)
    module(hidden).sum().backward()
    assert all(each.grad.isfinite().all() for each in (hidden, *module.parameters()) if each.grad is not None)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_a_plain_loop_trains_as_if_shares_were_clamped_after_every_update(optimizer):
    """Pulled out of the range at both ends, then back, against a loop that clamps by hand."""
    torch.manual_seed(3)
    ours, theirs = (build(span_tokens=32, ramp_tokens=8, shares=[0.02, 0.97]) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    hidden, visited = torch.randn(4, 30, WIDTH, dtype=torch.float64), []
    towards = torch.randn(4, 30, WIDTH, dtype=torch.float64)
    for module in (ours, theirs):
        steps = optimizer([module.span_share], lr=0.3)
        for step in range(8):
            steps.zero_grad()
            for _ in range(2):  # accumulated
                low, high = module.clamped_share()
                pull = (30 if step < 3 else -30) * (low - high)
                ((module(hidden) * towards).sum() + pull).backward()
            steps.step()
            if module is theirs:
                module.span_share.data.clamp_(0, 1)
            visited.append(module.clamped_share().detach().clone())
    torch.testing.assert_close(visited[:8], visited[8:], rtol=0, atol=0)
    assert {0.0, 1.0} <= {float(share) for shares in visited[8:] for share in shares}


def test_after_a_step_of_a_run_the_weight_itself_is_in_range():
    module = build(shares=[-0.3, 1.2])
    assert module.clamped_share().tolist() == [0, 1]
    module.after_step(1)
    assert module.span_share.tolist() == [0, 1]


SIZES = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
SIZES |= {"intermediate_size": 16, "position_embedding": "none", "attention_dropout": 0.0}


def model_of(stack="sequential", **options):
    spec = {"mechanism": "adaptive_span", "span_tokens": 40, "ramp_tokens": 8, "initial_span": 0.25, **options}
    norms = "pre" if stack == "reversible" else "post"
    return LongspanForCausalLM(LongspanConfig(attention=spec, stack=stack, normalization=norms, **SIZES))


@pytest.mark.parametrize("stack", ["sequential", {"stack": "recurrent", "memory_tokens": 40}, "reversible"])
def test_training_pays_for_the_mean_span_of_every_layer(stack):
    model, ids = model_of(stack, span_penalty=0.01), torch.randint(0, 31, (2, 20))
    paid = model.train()(ids, labels=ids).loss - model.eval()(ids, labels=ids).loss
    assert paid.item() == pytest.approx(2 * 0.01 * 40 * 0.25, rel=1e-4)
    model.zero_grad()
    paid.backward()
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    assert len(attentions) == 2
    for attention in attentions:
        torch.testing.assert_close(attention.span_share.grad, torch.full((2,), 0.01 * 40 / 2))


@pytest.mark.parametrize("stack", ["sequential", {"stack": "recurrent", "memory_tokens": 40}])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_spans_that_depend_on_tokens_are_paid_for_where_they_are_real(stack, reentrant):
    model, ids = model_of(stack, span_penalty=0.01, dynamic=True), torch.randint(0, 31, (2, 20))
    if reentrant is not None:
        enable_checkpointing(model, use_reentrant=reentrant)
    for layer in model.decoder.layers:
        torch.nn.init.normal_(layer.attention.span.weight, std=0.3)
    mask, states = torch.ones_like(ids), model.eval()(ids, output_hidden_states=True, use_cache=False).hidden_states
    mask[1, 15:] = 0
    means = []
    for layer, read in zip(model.decoder.layers, states, strict=False):
        spans = torch.sigmoid(layer.attention.span(read))
        means.append(torch.cat([spans[0], spans[1, :15]]).mean())
    labels = ids.masked_fill(mask == 0, -100)
    given = {"attention_mask": mask, "labels": labels, "use_cache": False}
    paid = model.train()(ids, **given).loss - model.eval()(ids, **given).loss
    torch.testing.assert_close(paid, 0.01 * 40 * sum(means), rtol=1e-3, atol=1e-6)
    (slope,) = torch.autograd.grad(paid, model.decoder.layers[1].attention.span.bias)
    assert slope.ne(0).all()


def test_one_table_of_distances_serves_all_layers():
    names = [name for name, _ in model_of().named_parameters() if "distances" in name]
    assert names == ["decoder.relative.distances"]
    assert model_of().decoder.relative.distances.std().item() == pytest.approx(1, abs=0.2)


def test_a_memory_holds_what_spans_can_see():
    """In training 64 states more than the longest span and its ramp need."""
    spec = {"stack": "recurrent", "memory_tokens": 400}
    model = model_of(spec, span_tokens=400, initial_span=0.1).train()
    cache = None
    for _ in range(4):
        ids = torch.randint(0, 31, (1, 100))
        output = model(ids, labels=ids, cache=cache, use_cache=True)
        cache = output.cache
    # 400 · 0.1 + 32 = 48 of 400 keys are seen with R = 8: 352 less, 320 of them cut off
    assert [layer.hidden.shape[1] for layer in cache.layers] == [80 + 64] * 2
    assert cache.get_seq_length() == 400


def test_transformers_trainer_keeps_shares_in_range(tmp_path):
    model = model_of(initial_span=0.02)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 31, (8, 16)).tolist()]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=3, learning_rate=0.5, per_device_train_batch_size=4, report_to="none", use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows).train()  # pyright: ignore[reportArgumentType]
    for layer in model.decoder.layers:
        spans = layer.attention.learned_spans()
        assert 0 <= spans.min() <= spans.max() <= 40


def test_spans_of_tokens_start_near_0_or_where_they_are_told():
    for initial, share in ((0.0, 1 / (1 + math.exp(4))), (0.3, 0.3)):
        module = AdaptiveSpanConfig(dynamic=True, initial_span=initial).build(width=WIDTH, heads=HEADS, causal=True)
        torch.testing.assert_close(module.spans(torch.randn(1, 3, WIDTH)), torch.full((1, HEADS, 3), share))


def test_costs_count_the_mean_span_where_it_is_known():
    whole, trained = AdaptiveSpanConfig(), AdaptiveSpanConfig(mean_span_tokens=100.5)
    assert whole.scores_per_token(100_000) == pytest.approx(1024, rel=0.01)
    assert trained.scores_per_token(100_000) == pytest.approx(101 + 32, rel=0.01)
    assert "mean_span" not in whole.describe()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ramp_tokens": 65}, "ramp_tokens=65 is longer than span_tokens=64"),
        ({"mean_span_tokens": 80.5}, "mean_span_tokens=80.5 is longer than span_tokens=64"),
        ({"initial_span": 1.5}, "initial_span is 1.5"),
        ({"span_penalty": -1.0}, "span_penalty is -1"),
    ],
)
def test_a_span_beyond_the_table_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        AdaptiveSpanConfig(span_tokens=64, **options)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InputError, match="none ahead"):
        AdaptiveSpanConfig().build(width=WIDTH, heads=HEADS, causal=False)
    with pytest.raises(InputError, match="limit_keys=1 leaves"):
        limit_keys(build(), 1)
    with pytest.raises(InputError, match=r"'reversible' would leave that out"):
        model_of("reversible", dynamic=True)
    with pytest.raises(InputError, match="causal only"):
        LongspanModel(LongspanConfig(attention="adaptive_span", **SIZES))
    module = build()
    module.share_positions()
    with pytest.raises(InputError, match="relative=None of Tokens"):
        module(torch.zeros(1, 3, WIDTH, dtype=torch.float64))
