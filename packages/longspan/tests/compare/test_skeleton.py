"""The skeleton: every mechanism gets as many weights, or the report says that it cannot."""

from __future__ import annotations

import pytest

from longspan.attention import MECHANISMS
from longspan.attention.support import supports
from longspan.compare.probes import PROBES
from longspan.compare.settings import Comparison
from longspan.compare.skeleton import Built, Skeleton, build, form_of, refusal, spec_of, takes_globals
from longspan.errors import InputError
from longspan.stacks import STACKS

PROBE = PROBES["recall"](128)


def is_matched(built: Built) -> bool:
    """Whether it has as many weights as the others, within two percent."""
    return abs(built.parameters - built.target) <= 0.02 * built.target


ARMS = [*MECHANISMS, *(name for name, kind in STACKS.items() if kind.own_attention)]
PAIRS = [(name, task) for task in ("recall", "duplication", "novels") for name in ARMS]


@pytest.mark.parametrize(("name", "task"), [pair for pair in PAIRS if form_of(pair[0], PROBES[pair[1]]) is None])
def test_a_mechanism_without_the_form_says_so(name: str, task: str) -> None:
    assert refusal(name, PROBES[task]).startswith(("has no causal form", "is causal only"))


@pytest.mark.parametrize(("name", "task"), [pair for pair in PAIRS if form_of(pair[0], PROBES[pair[1]]) is not None])
def test_every_mechanism_has_as_many_weights(name: str, task: str) -> None:
    form = form_of(name, PROBES[task])
    assert form is not None
    built = build(Skeleton(), spec_of(name, {}, 128), PROBE, form, 128)
    assert is_matched(built) or built.feed_forward == 8  # the narrowest: nothing is left to take from
    if task == "recall":  # at so few tokens no table is too large
        assert is_matched(built)
    assert built.parameters == sum(weight.numel() for weight in built.model.parameters())
    assert built.description.startswith(name)


def test_the_target_is_that_of_four_projections() -> None:
    built = build(Skeleton(), spec_of("full", {}, 128), PROBE, "bidirectional", 128)
    assert (built.parameters, built.feed_forward) == (built.target, 512)
    # Embeddings and their norm; two blocks of four projections, two layers and two norms; a last norm; the head.
    block = 4 * (64 * 64 + 64) + (2 * 64 * 512 + 512 + 64) + 4 * 64
    assert built.target == 169 * 64 + 128 + 2 * block + 128 + (64 * 169 + 169)


def test_a_stack_that_brings_its_attention_is_compared_with_its_options_and_by_itself() -> None:
    spec = spec_of("binary_partition", {"neighbours": 3}, 128)
    model = build(Skeleton(), spec, PROBE, "causal", 128).model
    assert model.config.stack == {"stack": "binary_partition", "neighbours": 3, "clip_levels": 6}
    assert not takes_globals("binary_partition", "bidirectional")
    with pytest.raises(InputError, match="stack='universal' cannot hold 'binary_partition', which is a stack itself"):
        build(Skeleton(stack="universal"), spec, PROBE, "causal", 128)
    with pytest.raises(InputError, match=r"unknown key 'attention\.steps'"):
        Comparison(mechanisms=("binary_partition",), options={"binary_partition": {"steps": 3}}, steps=1)


def test_tables_that_layers_share_count_as_the_mechanisms_own() -> None:
    built = build(Skeleton(), spec_of("linformer", {"sharing": "layerwise"}, 128), PROBE, "bidirectional", 128)
    assert built.target == build(Skeleton(), spec_of("full", {}, 128), PROBE, "bidirectional", 128).target
    assert is_matched(built)


def test_more_weights_than_can_be_made_up_for_are_said() -> None:
    narrow = Skeleton(feed_forward=16)
    assert not is_matched(build(narrow, spec_of("poolingformer", {}, 128), PROBE, "bidirectional", 128))


def test_who_asks_is_global_where_that_is_allowed() -> None:
    for name, kind in MECHANISMS.items():
        assert takes_globals(name, "bidirectional") == supports(kind, "globals")
        assert not takes_globals(name, "causal")


def test_memory_tokens_stand_before_every_row_of_what_takes_globals() -> None:
    with_memory = Skeleton(memory_tokens=7)
    for name, task, wrong in (
        ("reformer", "bidirectional", "takes none"),
        ("longformer", "causal", "this one is causal"),
    ):
        with pytest.raises(InputError, match=wrong):
            build(with_memory, spec_of(name, {}, 128), PROBE, task, 128)
    built = build(with_memory, spec_of("longformer", {}, 128), PROBE, "bidirectional", 128)
    assert is_matched(built)
    assert built.target == build(Skeleton(), spec_of("full", {}, 128), PROBE, "bidirectional", 128).target + 7 * 64
    assert built.model.config.num_memory_tokens == 7
