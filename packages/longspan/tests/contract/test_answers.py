"""What a configuration says of its module, against the module: what it depends on, how far, its cost and its start."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from longspan.attention import Tokens
from longspan.attention.features.starts import PROJECTIONS, FurtherWeights, warm_start

from .forms import HEADS, WIDTH, Form, in_case

LENGTH, TRIALS = 29, 4


def one(token: int, length: int = LENGTH) -> Tensor:
    return torch.arange(length) == token


def moved(form: Form, is_global: Tensor | None) -> Tensor:
    """Which outputs of a layer with residual connection move when an input does: `(T, T)`, outputs downwards."""
    torch.manual_seed(0)
    module = form.build()
    hidden = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    changed = hidden.expand(TRIALS * LENGTH, -1, -1).clone()
    rows = torch.arange(TRIALS * LENGTH)
    changed[rows, rows % LENGTH] += 2 * torch.randn(TRIALS * LENGTH, WIDTH, dtype=torch.float64)
    both = torch.cat([hidden[None], changed])
    tokens = Tokens(is_global=None if is_global is None else is_global.expand(len(both), -1))
    with torch.no_grad():
        states = both + module(both, tokens)
    differs = (states[1:] - states[:1]).abs().amax(-1) > 1e-12
    return differs.view(TRIALS, LENGTH, LENGTH).any(0).T


def test_an_output_depends_on_what_it_says_and_on_nothing_else(form):
    check_dependence(form, None)


def test_an_output_beside_a_global_token_depends_on_what_it_says(global_form):
    check_dependence(global_form, one(7))


def check_dependence(form, is_global):
    found = moved(form, is_global)
    for token in range(LENGTH):
        says = form.config.depends_on(one(token), is_global=is_global, causal=form.causal)
        if form.config.chooses:  # what could be chosen, not what these few inputs chose
            assert not (found[token] & ~says).any(), token
        else:
            assert torch.equal(says, found[token]), token
    nothing = torch.zeros(LENGTH, dtype=torch.bool)
    assert not form.config.depends_on(nothing, is_global=is_global, causal=form.causal).any()


def test_without_a_reach_the_other_end_of_a_text_is_seen_however_far_it_is(unbounded_form):
    config, length = unbounded_form.config, 101
    ends = [config.depends_on(one(token, length)).nonzero().flatten() - token for token in (0, length - 1)]
    furthest = max(int(field.abs().max()) for field in ends)
    assert furthest > length - 1 - config.reach().period  # or what lies a period before it


def test_reach_is_the_furthest_of_all_places_and_repeats_with_the_period(bounded_form):
    config, length, middle = bounded_form.config, 101, range(35, 65)
    reach = config.reach()
    fields = {token: config.depends_on(one(token, length)).nonzero().flatten() - token for token in middle}
    assert (-min(int(field.min()) for field in fields.values())) == reach.left
    assert max(int(field.max()) for field in fields.values()) == reach.right
    for token in middle[: -reach.period]:
        assert torch.equal(fields[token], fields[token + reach.period])


def test_a_covered_text_comes_out_as_under_wider_windows(two_way_form):
    config, module = two_way_form.config, two_way_form.build()
    for length in (1, 2, 3, 6, 11):
        covers = config.lengthening(length).covers
        assert covers or not config.lengthening(length + 1).covers
        wide = config.lengthening(length).widened
        other = wide.build(width=WIDTH, heads=HEADS).double()
        other.load_state_dict(module.state_dict())
        hidden = torch.randn(2, length, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            narrow, covered = module(hidden), other(hidden)
        if covers:
            torch.testing.assert_close(narrow, covered, rtol=0, atol=1e-12, msg=in_case(length=length))
        if wide.lengthening(length).covers:  # then still wider ones change nothing
            assert wide.lengthening(length).widened == wide


def test_the_first_level_has_some_of_the_weights_and_is_how_new_levels_start(two_way_form):
    config = two_way_form.config
    first = config.lengthening().first_level
    assert first.lengthening().first_level == first
    whole = config.build(width=WIDTH, heads=HEADS).double()
    part = first.build(width=WIDTH, heads=HEADS).double()
    state = whole.state_dict()
    part.load_state_dict({name: state[name] for name in part.state_dict()})
    hidden = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        same = torch.allclose(whole(hidden), part(hidden), rtol=0, atol=1e-12)
    assert same != config.lengthening().starts_active


@pytest.mark.parametrize("length", [1, 5, 17])
def test_projections_are_those_that_run(config, length, monkeypatch):
    counted: list[int] = []
    module = config.build(width=WIDTH, heads=HEADS, causal=not config.bidirectional)
    linear = functional.linear

    def counting(given, weight, bias=None):
        if weight.requires_grad:  # fixed maps of random features are no projections
            counted.append(given[..., 0].numel() * weight.numel())
        return linear(given, weight, bias)

    monkeypatch.setattr(functional, "linear", counting)  # nn.Linear's too
    module(torch.zeros(1, length, WIDTH))
    cost = config.costs(length=length, width=WIDTH, heads=HEADS)
    assert cost.projections == sum(counted)
    assert cost.scores == round(config.scores_per_token(length) * length)
    assert cost.weights == HEADS * cost.scores


def test_every_weight_is_brought_by_a_source_or_starts_by_itself(two_way_form):
    module = two_way_form.build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    copies = module.starts_from if isinstance(module, FurtherWeights) else {}
    started = warm_start(module, [name for name in before if not name.startswith("positions.")])
    after = module.state_dict()
    for name in before:
        part, _, kind = name.partition(".")
        if part in PROJECTIONS:
            assert name not in started
        elif part != "positions":
            assert started[name] == ("from_local" if part in copies else "new")
        if part in copies:
            assert torch.equal(after[name], after[f"{copies[part]}.{kind}"])
    alone = next(iter(started), None)
    if alone is not None:
        kept = {name: tensor.clone() for name, tensor in module.state_dict().items() if name != alone}
        assert set(warm_start(module, [alone])) == {alone}
        if not alone.startswith("position_"):  # whose absence says that the source had no positions at all
            assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in kept.items())
