"""A mechanism that defines a pattern alone: what follows from it, against loops over the mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import longspan
from longspan.attention import PatternConfig, Tokens
from longspan.attention.support import supports
from longspan.patterns import Blocks, Causal, Pattern, PerHead, Strided, Window


@dataclass(frozen=True, kw_only=True)
class Comb(PatternConfig):
    mechanism: ClassVar[str] = "comb"
    source: ClassVar[str] = "ours"
    every: int = 3

    @property
    def distinct_heads(self) -> int:
        return 2

    def pattern(self, *, heads: int, causal: bool) -> Pattern:
        parts = [Strided(self.every), Window(2, 1)]
        return PerHead([parts[head % 2] & Causal() if causal else parts[head % 2] for head in range(heads)])


@dataclass(frozen=True, kw_only=True)
class Near(PatternConfig):
    mechanism: ClassVar[str] = "near"
    source: ClassVar[str] = "ours"
    kind: str = "window"

    def pattern(self, *, heads: int, causal: bool) -> Pattern:
        pattern = Window(5, 2) if self.kind == "window" else Blocks(4)
        return pattern & Causal() if causal else pattern


@pytest.mark.parametrize("causal", [False, True])
def test_scores_and_dependencies_are_those_of_the_mask(causal: bool) -> None:
    config = Comb(every=4)
    mask = config.pattern(heads=2, causal=causal).dense(23)
    assert config.scores_per_token(23, causal=causal) == int(mask.sum()) / 2 / 23
    for needed in (torch.arange(23) == 13, torch.isin(torch.arange(23), torch.tensor([0, 7])), torch.zeros(23).bool()):
        expected = needed | mask[:, needed].flatten(0, 1).any(0)
        assert torch.equal(config.depends_on(needed, causal=causal), expected)


def test_global_tokens_are_seen_by_all_and_see_all() -> None:
    is_global, needed = torch.arange(23) == 20, torch.arange(23) == 3
    mask = Comb().pattern(heads=2, causal=False).dense(23)
    expected = needed | mask[:, 3].any(0) | is_global
    assert torch.equal(Comb().depends_on(needed, is_global=is_global), expected)
    assert Comb().depends_on(is_global, is_global=is_global).all()


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_are_those_of_the_dense_pattern_wherever_padding_lies(causal: bool) -> None:
    layer = Comb().build(width=8, heads=4, causal=causal).double()
    hidden, real = torch.randn(2, 11, 8).double(), torch.ones(2, 11).bool()
    real[1, :3] = real[1, 7] = False
    output = layer(hidden, Tokens(mask=real))
    for row in range(2):
        text = hidden[row, real[row]]
        query, key, value = (
            getattr(layer, name)(text).unflatten(-1, (4, 2)).transpose(0, 1) for name in ("query", "key", "value")
        )
        visible = Comb().pattern(heads=4, causal=causal).dense(len(text))
        scores = (query @ key.mT / 2**0.5).masked_fill(~visible, float("-inf"))
        expected = layer.output((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
        torch.testing.assert_close(output[row, real[row]], expected)


def test_a_window_bounds_the_reach_and_other_patterns_do_not() -> None:
    reach = Near().reach()
    assert (reach.left, reach.right) == (5, 2)
    assert supports(Near(), "sharded")
    assert Near(kind="blocks").reach().left is None  # where a block begins depends on the place
    assert Comb().reach().left is None


def test_one_window_among_the_heads_bounds_no_reach() -> None:
    @dataclass(frozen=True, kw_only=True)
    class WindowFirst(Comb):
        def pattern(self, *, heads: int, causal: bool) -> Pattern:
            parts = [Window(2, 1), Strided(self.every)]
            return PerHead([parts[head % 2] for head in range(heads)])

    assert WindowFirst().reach().left is None
    assert not supports(WindowFirst(), "sharded")


def test_it_is_registered_by_its_pattern() -> None:
    longspan.register(Comb)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = longspan.LongspanConfig(vocab_size=20, attention={"mechanism": "comb", "every": 5}, **sizes)
    assert config.layer_attention(0) == Comb(every=5)


def test_one_without_a_pattern_names_what_is_missing() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nothing(PatternConfig):
        mechanism: ClassVar[str] = "nothing"
        source: ClassVar[str] = "ours"

    with pytest.raises(longspan.InputError, match=r"mechanism Nothing does not define pattern\(\); write it"):
        longspan.register(Nothing)
