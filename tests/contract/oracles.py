"""Dense layers, from weights of every query on every key: what each mechanism's output and gradients must equal."""

from __future__ import annotations

from collections.abc import Callable
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


def two_levels(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Poolingformer's `(Y + Z) W_o`, arXiv 2105.04371, every window and every pool by itself."""
    first = gathered(module, hidden, tokens, module.weights(hidden, tokens, level=1))
    return module.output(first + each_from_its_first(module, first, tokens.mask) if module.config.has_pools else first)


def each_from_its_first(module: Any, first: Tensor, mask: Tensor | None) -> Tensor:
    """The second level, each row by itself and without what is padded before its first real token: `(B, T, E)`."""
    if mask is None:
        return second_level(module, first, mask)
    context = torch.zeros_like(first)
    for row in range(len(first)):
        start = int(mask[row].nonzero()[0]) if mask[row].any() else 0
        context[row, start:] = second_level(module, first[row : row + 1, start:], mask[row : row + 1, start:])[0]
    return context


def second_level(module: Any, first: Tensor, mask: Tensor | None) -> Tensor:
    """Every query over every pool whose whole kernel is in its window: `(B, T, E)`."""
    levels, length = module.config, first.shape[1]
    real = torch.ones(first.shape[:2], dtype=torch.bool) if mask is None else mask
    centres = torch.arange(0, length, levels.stride if levels.windows == "shared" else 1)
    taps = centres[:, None] + torch.arange(levels.kernel) - levels.kernel // 2
    inside, taps = (taps >= 0) & (taps < length), taps.clamp(0, length - 1)
    valid = (inside & real[:, taps])[:, None, :, :, None]
    valid = valid | ~valid.any(3, keepdim=True)  # a pool without a real token is hidden below

    def pools(name: str) -> Tensor:
        vectors = module.split_heads(module.second_level(name)(first))
        tapped = vectors[:, :, taps]
        if levels.pooling == "max":
            return tapped.masked_fill(~valid, -torch.inf).amax(3)
        scores = torch.zeros_like(tapped[..., :1])
        if levels.pooling == "ldconv":
            scores = (vectors[:, :, centres] @ getattr(module, f"pool_{name}_weight").transpose(1, 2))[..., None]
        return (scores.masked_fill(~valid, -torch.inf).softmax(3) * tapped).sum(3)

    offset, (left, right) = centres - torch.arange(length)[:, None], levels.centre_reach
    seen = (offset >= -left) & (offset <= right)
    if levels.windows == "per_query":
        seen = seen & ((offset + left) % levels.stride == 0)
    query = module.split_heads(module.second_level("query")(first))
    seen = seen & real[:, None, None, centres] & real[:, None, :, None]
    weights = dense_weights(query, pools("key"), seen, scale=module.head_width**-0.5)
    return module.merge_heads(weights.to(first.dtype) @ pools("value"))


def with_ends(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """BigBird's layer, in which more tokens are global than those that are marked."""
    return one_level(module, hidden, module.with_ends(hidden, tokens))


def through_slots(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Linformer's `softmax(Q (E K)ᵀ) (F V) W_o`, each row by itself and without its padding."""
    rows = []
    for row, states in enumerate(hidden):
        real = states if tokens.mask is None else states[tokens.mask[row]]
        rows.append(row_through_slots(module, states, real, module.tables))
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


ORACLES: dict[str, Callable[[Any, Tensor, Tokens], Tensor]] = {
    "poolingformer": two_levels,
    "fusion": two_levels,
    "bigbird": with_ends,
    "linformer": through_slots,
    "compressed": through_blocks,
}
"""Mechanism → its dense layer, where that is more than `one_level`."""


def oracle(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """The mechanism's dense layer: `(B, T, E)` → `(B, T, E)`."""
    return ORACLES.get(module.config.mechanism, one_level)(module, hidden, tokens)
