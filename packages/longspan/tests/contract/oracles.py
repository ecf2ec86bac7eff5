"""Dense layers, from weights of every query on every key: what each mechanism's output and gradients must equal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.ops.attend.reference import dense_weights


def gathered(module: Any, hidden: Tensor, tokens: Tokens, weights: Tensor) -> Tensor:
    """Dense weights times values, `(B, T, E)`; global queries may have values of their own."""
    context = weights.to(hidden.dtype) @ module.split_heads(module.value(hidden))
    is_global = tokens.global_mask(hidden.shape[1])
    if is_global is not None and hasattr(module, "global_value"):
        rows = weights.to(hidden.dtype) @ module.split_heads(module.global_value(hidden))
        context = torch.where(is_global[:, None, :, None], rows, context)
    if tokens.prefix is not None and hasattr(module, "source_value"):
        count = tokens.prefix.count
        rows = weights[:, :, :count].to(hidden.dtype) @ module.split_heads(module.source_value(hidden))
        context = torch.cat([rows, context[:, :, count:]], 2)
    return module.merge_heads(context)


def one_level(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Values weighed by `weights`, then the output projection."""
    return module.output(gathered(module, hidden, tokens, module.weights(hidden, tokens)))


def level_after_level(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Poolingformer's `(Y₁ + Y₂ + …) W_o`, arXiv 2105.04371, every window and every pool by itself."""
    total = gathered(module, hidden, tokens, module.weights(hidden, tokens, level=1))
    for level in range(2, 2 + len(module.config.pools)):
        total = total + each_from_its_first(module, total, tokens.mask, level)
    return module.output(total)


def each_from_its_first(module: Any, below: Tensor, mask: Tensor | None, level: int) -> Tensor:
    """A further level, each row by itself and without what is padded before its first real token: `(B, T, E)`."""
    if mask is None:
        return further_level(module, below, mask, level)
    context = torch.zeros_like(below)
    for row in range(len(below)):
        start = int(mask[row].nonzero()[0]) if mask[row].any() else 0
        rest = slice(start, None)
        context[row, rest] = further_level(module, below[row : row + 1, rest], mask[row : row + 1, rest], level)[0]
    return context


def further_level(module: Any, below: Tensor, mask: Tensor | None, level: int) -> Tensor:
    """Every query over every pool whose whole kernel is in its window, which ends at the query in the causal form."""
    levels, length, suffix = module.config.pools[level - 2], below.shape[1], "" if level == 2 else f"_{level}"
    prefix = "" if module.config.tie_levels else "pooled_"
    projections = {
        name: getattr(module, f"{prefix}{name}{suffix if prefix else ''}") for name in ("query", "key", "value")
    }
    real = torch.ones(below.shape[:2], dtype=torch.bool) if mask is None else mask
    centres = torch.arange(0, length, levels.stride if module.config.windows == "shared" else 1)
    taps = centres[:, None] + torch.arange(levels.kernel) - levels.kernel // 2
    first_taps, last_taps = taps[:, 0], taps[:, -1]
    inside, taps = (taps >= 0) & (taps < length), taps.clamp(0, length - 1)
    valid = (inside & real[:, taps])[:, None, :, :, None]
    valid = valid | ~valid.any(3, keepdim=True)  # a pool without a real token is hidden below

    def pools(name: str) -> Tensor:
        vectors = module.split_heads(projections[name](below))
        tapped = vectors[:, :, taps]
        if levels.pooling == "max":
            return tapped.masked_fill(~valid, -torch.inf).amax(3)
        scores = torch.zeros_like(tapped[..., :1])
        if levels.pooling == "ldconv":
            weight = getattr(module, f"pool_{name}_weight{suffix}")
            scores = (vectors[:, :, centres] @ weight.transpose(1, 2))[..., None]
        return (scores.masked_fill(~valid, -torch.inf).softmax(3) * tapped).sum(3)

    place = torch.arange(length)[:, None]
    last = place + (0 if module.causal else levels.right_tokens)
    seen = (first_taps >= place - levels.left_tokens) & (last_taps <= last)
    if module.config.windows == "per_query":
        seen = seen & ((first_taps - place + levels.left_tokens) % levels.stride == 0)
    query = module.split_heads(projections["query"](below))
    seen = seen & real[:, None, None, centres] & real[:, None, :, None]
    weights = dense_weights(query, pools("key"), seen, scale=module.head_width**-0.5)
    return module.merge_heads(weights.to(below.dtype) @ pools("value"))


def with_ends(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """BigBird's layer, in which more tokens are global than those that are marked."""
    return one_level(module, hidden, module.with_ends(hidden, tokens))


def through_slots(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Linformer's `softmax(Q (E K)ᵀ) (F V) W_o`, each row by itself and without its padding."""
    rows, tables = [], module.tables
    if tables is None and tokens.relative is not None:  # those that all layers share
        tables = partial(tuple, tokens.relative)
    for row, states in enumerate(hidden):
        real = states if tokens.mask is None else states[tokens.mask[row]]
        rows.append(row_through_slots(module, states, real, tables))
    return module.output(torch.stack(rows) if rows else hidden)


def row_through_slots(module: Any, queries: Tensor, real: Tensor, tables: Any) -> Tensor:
    """What `(T, E)` queries gather from the slots of `(N, E)` real tokens, head after head: `(T, E)`."""
    config, heads, gathered = module.config, range(module.heads), []
    first, last = (None, None) if tables is None else (tables()[0], tables()[-1])

    def slots(project: Any, table: Tensor | None) -> list[Tensor]:
        vectors = real if config.compress_input else project(real)
        parts = [shortened(config, each, table, head) for head, each in enumerate(vectors.chunk(module.heads, -1))]
        return list(project(torch.cat(parts, -1)).chunk(module.heads, -1)) if config.compress_input else parts

    keys, values = slots(module.key, first), slots(module.value, last)
    for head, query in zip(heads, module.query(queries).chunk(module.heads, -1), strict=True):
        seen = torch.ones(len(query), len(keys[head]), dtype=torch.bool)
        weights = dense_weights(query, keys[head], seen, scale=module.scale)
        gathered.append(weights.to(query.dtype) @ values[head])
    return torch.cat(gathered, -1)


def shortened(config: Any, vectors: Tensor, table: Tensor | None, head: int) -> Tensor:
    """The slots of one head's `(N, D)` tokens."""
    if table is not None:
        table = table[head % len(table)]
    if not config.pools:
        assert table is not None
        return table[:, : len(vectors)] @ vectors
    if not len(vectors):
        return vectors
    found = []
    for block in vectors.split(config.block_tokens):
        if table is not None:
            found.append((block * table[: len(block)]).sum(0))
        else:
            found.append(block.amax(0) if config.projection == "max" else block.mean(0))
    return torch.stack(found)


def through_blocks(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Memory-compressed attention, each row by itself and without its padding, query after query."""
    size, context = module.config.stride, torch.zeros_like(hidden)
    for row, states in enumerate(hidden):
        places = torch.arange(len(states)) if tokens.mask is None else tokens.mask[row].nonzero().flatten()
        query, *vectors = (
            module.split_heads(project(states[places])) for project in (module.query, module.key, module.value)
        )
        keys, values = (blocks_by_hand(module, *each) for each in zip(("key", "value"), vectors, strict=True))
        for number, place in enumerate(places):
            sees = 1 + (number + 1) // size if module.causal else keys.shape[1]
            weights = dense_weights(
                query[:, number : number + 1], keys[:, :sees], torch.ones(sees) > 0, scale=module.scale
            )
            context[row, place] = (weights.to(hidden.dtype) @ values[:, :sees]).flatten()
    return module.output(context)


def blocks_by_hand(module: Any, name: str, vectors: Tensor) -> Tensor:
    """The null and the blocks of `(H, N, D)` keys or values, the last of which may be shorter: `(H, 1 + M, D)`."""
    found = [getattr(module, f"null_{name}")]
    for block in vectors.split(module.config.stride, dim=1) if vectors.shape[1] else ():
        if module.config.pooling == "conv":
            weight = getattr(module, f"pool_{name}_weight")[:, : block.shape[1]]
            found.append(torch.einsum("hnd,hnde->he", block, weight) + getattr(module, f"pool_{name}_bias"))
        else:
            found.append(block.amax(1) if module.config.pooling == "max" else block.mean(1))
    return torch.stack(found, 1)


def in_four_pieces(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """ETC, each row by itself: every query over every key of both parts, with the label of each pair."""
    out = torch.zeros_like(hidden) + module.output.bias
    is_global = tokens.global_mask(hidden.shape[1])
    for row, states in enumerate(hidden):
        real = torch.ones(len(states), dtype=torch.bool) if tokens.mask is None else tokens.mask[row]
        owners = torch.full((len(states),), -1) if tokens.belongs_to is None else tokens.belongs_to[row]
        places = {"long": real if is_global is None else real & ~is_global[row]}
        places["global"] = real & ~places["long"]
        parts = {name: states[flags] for name, flags in places.items()}
        owned = owners[places["long"]][:, None] == torch.arange(len(parts["global"]))
        free = (owners[places["long"]] < 0)[:, None]
        for name in parts:
            output = getattr(module, "global_output", module.output) if name == "global" else module.output
            out[row, places[name]] = output(read_by(module, name, parts, owned, free))
    return out


def read_by(module: Any, name: str, parts: dict[str, Tensor], owned: Tensor, free: Tensor) -> Tensor:
    """What the queries of a part of one row gather from both parts, `(N, E)`."""
    config, other = module.config, "global" if name == "long" else "long"

    def projected(part: str, kind: str) -> Tensor:
        names = [f"{name}_to_{part}_{kind}"] * (part != name) + [f"{name}_{kind}", kind]
        return module.split_heads(next(getattr(module, each) for each in names if hasattr(module, each))(parts[part]))

    query = projected(name, "query")
    key, value = (torch.cat([projected(part, kind) for part in (name, other)], 1) for kind in ("key", "value"))
    own, beside = torch.arange(query.shape[1]), len(parts[other])
    crossing, hard = owned, config.hard_long_to_global
    shown = module.pattern_behind(0).of_length(len(own)).visible(own[:, None], own).expand(module.heads, -1, -1)
    if name == "global":
        crossing, free, hard, shown = owned.T, free.T, config.hard_global_to_long, torch.ones_like(shown)
    across = (crossing | free if hard else crossing >= 0).expand(module.heads, len(own), beside)
    bias = None
    if config.clamp_tokens is not None:
        most = config.clamp_tokens
        label = torch.cat([(own - own[:, None]).clamp(-most, most) + most, 2 * most + 1 + crossing.long()], 1)
        table, extra = getattr(module, f"{name}_labels"), getattr(module, f"{name}_label_bias")
        bias = (torch.einsum("hnd,hnmd->hnm", query, table[:, label]) + extra[:, label]) * module.scale
    weights = dense_weights(query, key, torch.cat([shown, across], 2), scale=module.scale, bias=bias)
    return (weights.to(value.dtype) @ value).transpose(0, 1).flatten(1)


ORACLES: dict[str, Callable[[Any, Tensor, Tokens], Tensor]] = {
    "poolingformer": level_after_level,
    "fusion": level_after_level,
    "bigbird": with_ends,
    "etc": in_four_pieces,
    "linformer": through_slots,
    "compressed": through_blocks,
}
"""Mechanism → its dense layer, where that is more than `one_level`."""


def oracle(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """The mechanism's dense layer: `(B, T, E)` → `(B, T, E)`."""
    return ORACLES.get(module.config.mechanism, one_level)(module, hidden, tokens)
