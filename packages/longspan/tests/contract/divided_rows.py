"""Run by torchrun: rows divided between the processes, beside the same rows whole.

Prints a JSON object, name of a case → how far outputs and gradients are from those of one process, or why it is
refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[4] / "tests/shared"))

from contract.forms import FORMS, WIDTH, Form
from flat import flat
from longspan.attention import Attention, Tokens
from longspan.attention.etc import EtcConfig
from longspan.attention.features import sharded  # noqa: F401  # from now on attention reads parts of rows
from longspan.attention.features.memory import forward_behind
from longspan.attention.support import check_support, why_not
from longspan.errors import InputError
from longspan.ops import ring
from longspan.ops.shards import Shards
from longspan.stacks import Sizes, StarConfig

FIRST, OTHERS, ALL = slice(1), slice(1, None), slice(None)
"""Which kinds of a case a form has: without global tokens and a memory, with them, or all."""
LENGTHS: dict[tuple[int, ...], dict[str, slice]] = {
    (29,): {"holes": ALL},
    (10, 43): {"left": OTHERS, "row": FIRST},
    (1, 30, 22): {"none": FIRST, "right": OTHERS, "holes": ALL},
    (19, 2, 1, 31): {"right": FIRST, "left": FIRST, "holes": OTHERS, "row": OTHERS},
    (1, 0, 2, 0): {"none": OTHERS, "row": FIRST},
}
"""How many tokens each process holds, some fewer than a window reaches, and some none → the kinds of padding → which
kinds of a case: every kind is beside every padding, and in every number of processes."""
REFUSED = (1, 0, 2, 0)
"""How rows are divided that a mechanism refuses, which a process without tokens does like the others."""
MEMORY = 7
"""Positions of a memory before whole rows: fewer than some windows reach."""


def part_of(tokens: Tokens, shards: Shards) -> Tokens:
    """What is known of the tokens of this process's shard; its mask is left out where it says nothing."""
    first, end = shards.range_of(shards.rank)
    mask = None if tokens.mask is None else tokens.mask[:, first:end]
    flags = None if tokens.is_global is None else tokens.is_global[:, first:end]
    if mask is not None and bool(mask.all()):
        mask = None
    if flags is not None and not bool(flags.any()):
        flags = None
    belongs = None if tokens.belongs_to is None else tokens.belongs_to[:, first:end]
    return replace(tokens, mask=mask, is_global=flags, belongs_to=belongs, shards=shards)


def difference(
    form: Form | Stars, group: Any, lengths: tuple[int, ...], padding: str, globals_: str, memory: int, judge: int
) -> float:
    """The largest distance of outputs and gradients in one case; with a memory, behind so many positions that every
    process has. One process, the judge, computes whole rows and compares; the others say 0."""
    torch.manual_seed(sum(lengths) + len(padding))
    module, total = form.build(), sum(lengths)
    if memory:
        assert isinstance(module, Attention)
        check_support(module.config, "sharded", causal=module.causal)
    past = torch.randn(2, memory, WIDTH, dtype=torch.float64)
    hidden = torch.randn(2, total, WIDTH, dtype=torch.float64, requires_grad=True)
    towards, tokens = torch.randn(2, total, WIDTH, dtype=torch.float64), form.tokens(total, padding, globals_)
    if form in STRUCTURED and (flags := tokens.global_mask(total)) is not None:
        owners = torch.rand(2, total) * (flags.sum(1, keepdim=True) + 1) - 1
        tokens = replace(tokens, belongs_to=owners.ceil().long().clamp(max=flags.sum(1, keepdim=True) - 1))
    weights = list(module.parameters())
    read: Any = partial(forward_behind, module, past) if isinstance(module, Attention) and memory else module
    rank = dist.get_rank(group)
    first = sum(lengths[:rank])
    places = slice(first, first + lengths[rank])
    own = hidden.detach()[:, places].clone().requires_grad_()
    shards = Shards.of(own, group)
    output = read(own, part_of(tokens, shards))  # first: most mechanisms refuse, and need no whole rows
    grads = torch.autograd.grad(output, [own, *weights], towards[:, places], allow_unused=True)
    # Everything in one exchange: each waits for every process.
    parts = torch.zeros(2, *hidden.shape, dtype=torch.float64)
    parts[0, :, places], parts[1, :, places] = output.detach(), grads[0]
    found = flat([parts, *grads[1:]], [parts, *weights])
    dist.reduce(found, dist.get_global_rank(group, judge), group=group)
    if rank != judge:
        return 0.0
    mask = None if tokens.mask is None else functional.pad(tokens.mask, (memory, 0), value=True)
    whole = read(hidden, replace(tokens, mask=mask))
    expected = torch.autograd.grad(whole, [hidden, *weights], towards, allow_unused=True)
    wanted = flat([whole.detach(), *expected], [hidden, hidden, *weights])
    return float((found - wanted).abs().max())


class States(torch.nn.Module):
    """A stack, as attention is called."""

    def __init__(self, stack: torch.nn.Module) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, hidden: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        output = self.stack(hidden, tokens)
        # Something of the summary in every token, so that its gradient is looked at as well.
        return output.states + output.summary[:, None]


@dataclass(frozen=True)
class Stars:
    """The stack of a relay under some options, as `Form` has mechanisms."""

    name: str
    options: dict[str, Any]
    globals: tuple[str, ...] = ("none",)

    def build(self) -> torch.nn.Module:
        sizes = Sizes(width=WIDTH, heads=2)
        stack = StarConfig(**self.options).build(lambda _: None, 2, sizes)  # pyright: ignore[reportArgumentType]
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        return States(stack.double())

    tokens = Form.tokens


STARS = [
    Stars("star", {}),
    Stars("star as a ring", {"cyclic": True}),
    Stars("star of the library", {"variant": "fastnlp", "cyclic": True}),
]


HARD = {"hard_global_to_long": True, "hard_long_to_global": True, "clamp_tokens": 2}
STRUCTURED = [
    Form("etc in blocks", EtcConfig(radius_tokens=6, window="blocks", block_tokens=4, **HARD), causal=False),
    Form("etc in pieces", EtcConfig(radius_tokens=5, projections="pieces", clamp_tokens=None), causal=False),
    Form("etc, hard", EtcConfig(radius_tokens=3, projections="parts", shared_output=True, **HARD), causal=False),
]
"""Forms whose tokens belong to global ones, where there are any."""


def cases(form: Form | Stars, served: bool) -> Iterator[tuple[str, tuple[int, ...], str, str, int]]:
    """The name of each case of a form, how its rows are divided, their padding, the kind of global tokens, and how
    long a memory there is. A form that is refused is so before it looks at any of these."""
    kinds = [(kind, 0) for kind in (form.globals if len(form.globals) < 2 else ("none", "some"))]
    kinds += [("none", MEMORY)] if not isinstance(form, Stars) and form.causal else []
    for lengths, paddings in LENGTHS.items() if served else [(REFUSED, dict.fromkeys(("none", "row"), ALL))]:
        for padding, chosen in paddings.items():
            for globals_, memory in kinds[chosen] if len(kinds) > 1 else kinds:
                name = f"{form.name}, tokens {lengths}, padding {padding}"
                yield f"{name}, globals {globals_}, memory {memory}", lengths, padding, globals_, memory


def refusal(form: Form | Stars) -> str | None:
    """Why a mechanism reads whole rows, if it does."""
    return None if isinstance(form, Stars) else why_not(form.config, "sharded", causal=form.causal)


def main() -> None:
    dist.init_process_group("gloo")
    ring.ROWS = 8  # so that some parts are computed some queries at a time
    groups = {count: dist.new_group(list(range(count))) for count in sorted(set(map(len, LENGTHS)))}
    found: dict[str, float | str] = {}
    for form in (*FORMS, *STRUCTURED, *STARS):
        for number, (name, lengths, padding, globals_, memory) in enumerate(cases(form, served=refusal(form) is None)):
            if dist.get_rank() < len(lengths):
                try:
                    group, judge = groups[len(lengths)], number % len(lengths)
                    found[name] = difference(form, group, lengths, padding, globals_, memory, judge)
                except InputError as error:
                    found[name] = str(error)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        worst = {}
        for each in every:
            for name, value in each.items():
                known = worst.setdefault(name, value)
                if isinstance(known, str) != isinstance(value, str):
                    worst[name] = f"some processes refuse, others do not: {known}, {value}"
                elif not isinstance(value, str):
                    worst[name] = max(known, value)
        print(json.dumps(worst))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
