"""What the laws run over, and the few things that every law does with a mechanism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from longspan.attention import MECHANISMS, Attention, AttentionConfig, Tokens
from longspan.attention.support import supports

from .variants import SMALL, VARIANTS

WIDTH, HEADS = 6, 2
PADDINGS = ("none", "right", "left", "holes", "row")
GLOBALS = ("none", "first", "some", "all")


def in_case(**case: Any) -> Callable[[str], str]:
    """What `assert_close` says when it fails in one case of a loop."""
    return lambda text: f"with {case}: {text}"


@dataclass(frozen=True)
class Form:
    """One mechanism under one choice of options, looking both ways or back only."""

    name: str
    config: AttentionConfig
    causal: bool

    @property
    def globals(self) -> tuple[str, ...]:
        """The kinds of global tokens that it can be given."""
        return GLOBALS if self.supports("globals") else ("none",)

    def supports(self, feature: str) -> bool:
        """What the table of support says of it."""
        return supports(self.config, feature, causal=self.causal)

    def build(self, dtype: torch.dtype = torch.float64, **changes: Any) -> Attention:
        """The module with every weight random and different, which its own start need not be; those by which many
        tokens are summed up are smaller."""
        module = replace(self.config, **changes).build(width=WIDTH, heads=HEADS, causal=self.causal)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.5 * min(1.0, (8 / max(1, parameter.shape[-1])) ** 0.5))
        return module.to(dtype)

    def tokens(self, length: int, padding: str = "none", globals_: str = "none") -> Tokens:
        """Two rows: the first is whole but for holes, the second padded."""
        mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
        if padding == "holes":
            mask = torch.rand(2, length) < 0.7
        elif padding != "none":
            third = length // 3
            mask[1, {"right": slice(length - third, None), "left": slice(third), "row": slice(None)}[padding]] = False
        if globals_ == "some":
            is_global = torch.rand(2, length) < 0.2
        elif globals_ != "none":
            is_global[:, : 1 if globals_ == "first" else None] = True
        return Tokens(mask=None if padding == "none" else mask, is_global=None if globals_ == "none" else is_global)


def variants(
    table: dict[str, type], chosen: dict[str, dict[str, dict[str, Any]]], small: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Name and configuration of every entry of a dictionary such as `MECHANISMS`, under each choice of its options."""
    for name, kind in table.items():
        own = {field.name for field in fields(kind)}
        for variant, options in chosen.get(name, {"plain": {}}).items():
            label = name if variant == "plain" else f"{name}-{variant}"
            fitting = {key: value for key, value in small.items() if key in own - replaced(kind, options)}
            yield label, kind(**fitting | options)


def replaced(kind: type, options: dict[str, Any]) -> set[str]:
    """The options of a configuration of whose place others are given."""
    return {each for name, others in getattr(kind, "replaces", {}).items() if name in options for each in others}


CONFIGS: dict[str, AttentionConfig] = dict(variants(MECHANISMS, VARIANTS, SMALL))
FORMS = [
    Form(name + "-causal" * causal, config, causal)
    for name, config in CONFIGS.items()
    for causal in (False, True)
    if (config.causal if causal else config.bidirectional)
]
