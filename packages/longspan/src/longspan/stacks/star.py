"""The star: every token attends to its two neighbours, itself and a relay, and the relay attends to every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention import Tokens
from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.shards import Shards, attend_all, gathered_from, ring
from longspan.patterns import Full
from longspan.stacks.base import Sizes, StackConfig, StackOutput, StackReturns
from longspan.stacks.block import Block, BlockState
from longspan.stacks.sequential import Layers


@dataclass(frozen=True, kw_only=True)
class StarConfig(StackConfig):
    """Satellites and a relay (Guo et al. 2019, "Star-Transformer", arXiv 1902.09113, section 3).

    Attributes:
        variant: "paper", each step followed by ReLU and LayerNorm, without biases, tokens at the ends of a text having
            one neighbour; or "fastnlp", as in the authors' library: LayerNorm before the tokens' attention and none on
            the relay, LeakyReLU, biases, and at the ends a neighbour of zeros that is part of the softmax.
        cyclic: whether the last token and the first are neighbours, as in the paper's figure.
    """

    stack: ClassVar[str] = "star"
    supports: ClassVar[frozenset[str]] = frozenset({"sharded"})
    causal: ClassVar[bool] = False
    unused: ClassVar[Mapping[str, str]] = {
        "attention": "which brings its own",
        "normalization": "whose variant determines where it normalises",
        "intermediate_size": "which has no feed-forward layers",
        "activation_function": "which has no feed-forward layers",
        "activation_dropout": "which has no feed-forward layers",
        "global_tokens": "whose relay already sees every token and is seen by each",
        "decoder_layers": "which has no causal form, since its relay gathers every token and hands it to all",
    }

    variant: Literal["paper", "fastnlp"] = "paper"
    cyclic: bool = False

    def returns(self) -> StackReturns:
        return StackReturns(normalized=True, summary=True)

    def sent(self, *, width: int, heads: int, processes: int, number: int, tokens: int = 0, passes: int = 1) -> int:
        """Keys and values of the tokens at both of its ends; in float32 the relay's attention, the sums of its weights
        and the largest of its scores; and the keys and values of both ends of a ring.
        """
        neighbours = number * 2 * width * min(2, processes - 1)
        gathered = ring(4 * (width + heads), processes) + ring(4 * heads, processes)
        return passes * (neighbours + gathered + (ring(number * 4 * width, processes) if self.cyclic else 0))

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Star:
        if sizes.causal:
            raise InputError(
                f"stack 'star' cannot write text: it is one {self.unused['decoder_layers']}; choose another stack"
            )
        return Star([StarStep(self, sizes) for _ in range(layers)], self)


class Projections(nn.Module):
    """Queries, keys, values and the output of one attention."""

    def __init__(self, sizes: Sizes, *, bias: bool) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.attention_dropout
        self.query, self.key, self.value, self.output = (
            nn.Linear(sizes.width, sizes.width, bias=bias) for _ in range(4)
        )

    @property
    def dropout_prob(self) -> float:
        """Returns the current probability of dropping a weight."""
        return self.dropout if self.training else 0.0

    def heads_of(self, projection: nn.Module, hidden: Tensor) -> Tensor:
        """Projects states `(B, T, E)` with `projection` and splits them into heads, `(B, H, T, D)`."""
        return projected(projection, hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def merged(self, context: Tensor) -> Tensor:
        """Applies the output projection to the heads `(B, H, T, D)`, `(B, T, E)`."""
        return projected(self.output, context.transpose(1, 2).flatten(2))


class Neighbours:
    """The tokens before and after each token, in rows with padding.

    Args:
        real: `(B, T)` bool.
        cyclic: whether the first real token of a row follows its last.
        shards: the sequence parallelism of rows; `None` if each process has whole rows.

    Attributes:
        present: `(B, T)` bool, True if there is a real token before, and if there is one after.
    """

    def __init__(self, real: Tensor, *, cyclic: bool = False, shards: Shards | None = None) -> None:
        self.ends: tuple[Tensor, Tensor] | None = None
        self.shards = shards
        if shards is None:
            before, after = _shifted(real, 1), _shifted(real, -1)
        else:
            before, after = (flags.bool() for flags in _beside(real.to(torch.uint8), shards))
        if cyclic:
            first, last = real & (real.cumsum(1) == 1), real & (real.flip(1).cumsum(1).flip(1) == 1)
            if shards is not None:
                there = gathered_from(real.any(1), shards.group)
                first = first & ~there[: shards.rank].any(0)[:, None]
                last = last & ~there[shards.rank + 1 :].any(0)[:, None]
            self.ends, before, after = (first, last), before | first, after | last
        self.present = before, after

    def of(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the states before and after each token, `(B, H, T, D)` each, zeros at the ends of a row
        without a ring.
        """
        if self.shards is None:
            before, after = _shifted(hidden, 1, (0, 0)), _shifted(hidden, -1, (0, 0))
        else:
            before, after = (states.transpose(1, 2) for states in _beside(hidden.transpose(1, 2), self.shards))
        if self.ends is None:
            return before, after
        first, last = (end[:, None, :, None] for end in self.ends)
        at_ends = torch.stack([(hidden * end).sum(2, keepdim=True) for end in (first, last)])
        at_first, at_last = at_ends if self.shards is None else self.shards.summed(at_ends, "ends")
        return torch.where(first, at_last, before), torch.where(last, at_first, after)


def _beside(states: Tensor, shards: Shards) -> tuple[Tensor, Tensor]:
    """Returns the states before and after each of this process's tokens, of `(B, T_r, …)`; zeros at the
    ends of a row.
    """
    wide = shards.with_halo(states, 1, 1)
    first, end = shards.range_of(shards.rank)
    ends = int(first == 0), int(end == shards.total)
    wide = functional.pad(wide, (*(0, 0) * (states.ndim - 2), *ends))
    return wide[:, :-2], wide[:, 2:]


def _shifted(values: Tensor, by: int, behind: tuple[int, ...] = ()) -> Tensor:
    """Shifts values one position forward (1) or back (−1), with zeros at the end; `behind` are two zeros for each
    dimension after the positions, as `pad` expects.
    """
    padded = functional.pad(values, (*behind, 1, 0) if by > 0 else (*behind, 0, 1))
    place = values.ndim - 1 - len(behind) // 2
    return padded.narrow(place, 0 if by > 0 else 1, values.shape[place])


def attend_few(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    present: Sequence[Tensor | None],
    *,
    missing: str = "masked",
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes softmax attention of every query over C keys of its own, `(B, H, T, D)` → `(B, H, T, D)`,
    in linear memory.

    Args:
        query: `(B, H, T, D)`.
        keys: C tensors `(B, H, T, D)`, or `(B, H, 1, D)` for one that all tokens share.
        values: those of these keys.
        present: for each key `(B, T)` bool, True if it exists; `None` for all. Each query needs at least one key.
        missing: the replacement of a missing key: none ("masked"), or a key and a value of zeros, which are part of
            the softmax ("zero").
        dropout_prob: probability of dropping an attention weight.
    """
    scaled = query.to(torch.promote_types(query.dtype, torch.float32)) * query.shape[-1] ** -0.5
    scores = torch.stack([(scaled * key).sum(-1) for key in keys], dim=-1)
    everywhere = torch.ones((), dtype=torch.bool, device=query.device).expand(query.shape[0], query.shape[2])
    there = torch.stack([everywhere if flags is None else flags for flags in present], dim=-1)[:, None]
    scores = scores.masked_fill(~there, 0.0 if missing == "zero" else -torch.inf)
    weights = functional.dropout(scores.softmax(-1).masked_fill(~there, 0.0), dropout_prob).to(query.dtype)
    context = torch.zeros_like(query)
    for weight, value in zip(weights.unbind(-1), values, strict=True):
        context = context + weight[..., None] * value
    return context


class StarStep(nn.Module):
    """One step: the tokens attend to their neighbours and the relay, then the relay to the tokens."""

    def __init__(self, config: StarConfig, sizes: Sizes) -> None:
        super().__init__()
        self.published = config.variant == "fastnlp"
        self.ring = Projections(sizes, bias=self.published)
        self.relay = Projections(sizes, bias=self.published)
        self.ring_norm = nn.LayerNorm(sizes.width, eps=sizes.eps)
        self.relay_norm = None if self.published else nn.LayerNorm(sizes.width, eps=sizes.eps)

    def forward(
        self, hidden: Tensor, relay: Tensor, embedded: Tensor, real: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        """Returns tokens `(B, T, E)` and relay `(B, 1, E)` after the step; `embedded` `(B, T, E)` are the tokens before
        all steps, `real` is `(B, T)` bool.
        """
        hidden = self._around(hidden, relay, embedded, neighbours)
        hidden = self._after(hidden, None if self.published else self.ring_norm)
        hidden = hidden.masked_fill(~real[..., None], 0)
        return hidden, self._after(self._gathered(hidden, relay, real, neighbours.shards), self.relay_norm)

    def _around(self, hidden: Tensor, relay: Tensor, embedded: Tensor, neighbours: Neighbours) -> Tensor:
        """Computes attention of each token to the one before it, itself, the one after it, its embedding
        and the relay.
        """
        ring, hidden = self.ring, self.ring_norm(hidden) if self.published else hidden

        def contexts(projection: nn.Module) -> tuple[Tensor, ...]:
            own, first, star = (ring.heads_of(projection, states) for states in (hidden, embedded, relay))
            before, after = neighbours.of(own)
            return before, own, after, first, star

        before, after = neighbours.present
        context = attend_few(
            ring.heads_of(ring.query, hidden),
            contexts(ring.key),
            contexts(ring.value),
            (before, None, after, None, None),
            missing="zero" if self.published else "masked",
            dropout_prob=ring.dropout_prob,
        )
        return ring.merged(context)

    def _gathered(self, hidden: Tensor, relay: Tensor, real: Tensor, shards: Shards | None) -> Tensor:
        """Computes attention of the relay to itself and every real token, `(B, 1, E)`."""
        star, all_of_them = self.relay, torch.cat([relay, hidden], dim=1)
        query = star.heads_of(star.query, relay)
        key, value = (star.heads_of(projection, all_of_them) for projection in (star.key, star.value))
        if shards is not None:  # every process has the relay; it is counted once
            mask = functional.pad(real, (1, 0), value=shards.rank == 0)
            return star.merged(attend_all(query, key, value, mask, shards, "relay", dropout_prob=star.dropout_prob))
        context = attend(
            query,
            key,
            value,
            pattern=Full(),
            key_mask=functional.pad(real, (1, 0), value=True),
            dropout_prob=star.dropout_prob,
        )
        return star.merged(context)

    def _after(self, hidden: Tensor, norm: nn.Module | None) -> Tensor:
        """Applies the activation, and the LayerNorm if there is one."""
        hidden = functional.leaky_relu(hidden) if self.published else functional.relu(hidden)
        return hidden if norm is None else norm(hidden)


class Star(Layers):
    """The module of `StarConfig`: a list of its steps.

    Attributes:
        gradient_checkpointing: whether training saves only the states between steps; set by transformers
            with its function.
    """

    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., tuple[Tensor, Tensor]]

    def __init__(self, steps: list[StarStep], config: StarConfig) -> None:
        super().__init__(steps)
        self.config = config

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Maps `(B, T, E)` to states `(B, T, E)`; arguments as in `Sequential.forward`, of which only `hidden` and the
        mask are used.

        The relay is initialised as the mean of the real tokens. The summary is the elementwise maximum of the tokens
        plus the relay, or half of this in the variant "fastnlp".

        Raises:
            InputError: global tokens.
        """
        self.config.refuse_globals(tokens)
        shape, device = hidden.shape[:2], hidden.device
        real = torch.ones(shape, dtype=torch.bool, device=device) if tokens.mask is None else tokens.mask
        neighbours = Neighbours(real, cyclic=self.config.cyclic, shards=tokens.shards)
        embedded, all_hidden_states = hidden, [hidden]
        relay = _mean(hidden, real, tokens.shards)
        checkpoints = self.gradient_checkpointing and self.training
        for step in self:
            run = partial(self._gradient_checkpointing_func, step) if checkpoints else step
            hidden, relay = run(hidden, relay, embedded, real, neighbours)
            if output_hidden_states:
                all_hidden_states.append(hidden)
        return StackOutput(
            states=hidden,
            all_hidden_states=tuple(all_hidden_states) if output_hidden_states else None,
            summary=self._summed_up(hidden, relay, real, tokens.shards),
        )

    def _summed_up(self, hidden: Tensor, relay: Tensor, real: Tensor, shards: Shards | None) -> Tensor:
        """Returns the summary `(B, E)`; the relay alone for a row without a token."""
        lowest, there = torch.full_like(relay, -torch.inf), real.any(1, keepdim=True)
        greatest = torch.cat([hidden.masked_fill(~real[..., None], -torch.inf), lowest], dim=1).amax(1)
        if shards is not None:
            greatest, there = shards.gathered(greatest, "summary").amax(0), gathered_from(there, shards.group).any(0)
        both = greatest.masked_fill(~there, 0) + relay[:, 0]
        return both / 2 if self.config.variant == "fastnlp" else both


def _mean(hidden: Tensor, real: Tensor, shards: Shards | None) -> Tensor:
    """Returns the mean `(B, 1, E)` of the real tokens, 0 in a row without any."""
    total, count = hidden.masked_fill(~real[..., None], 0).sum(1, keepdim=True), real.sum(1)[:, None, None]
    if shards is not None:
        total, count = shards.summed(total, "mean"), gathered_from(count, shards.group).sum(0)
    return (total / count.clamp(min=1)).to(hidden.dtype)
