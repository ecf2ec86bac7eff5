"""FlexAttention: block tables from the tiles of a pattern, and one compiled program for all lengths; never dense.

Global keys follow those of the text, and the rows of global queries are a separate call, so that blocks depend on the
pattern alone, and data enters only through captured tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from longspan.errors import InputError
from longspan.ops.attend.call import Call, gather_slots, mask_of_slots, put_slots, row_lengths
from longspan.ops.attend.dense import attend_full
from longspan.ops.attend.flex_options import ONE_BLOCK, Reads, program_options
from longspan.ops.attend.flex_predicates import mask_mod_of
from longspan.ops.attend.flex_scores import (
    BITS,
    MOST_PRODUCTS,
    PRODUCTS_AT_ONCE,
    products_of,
    score_mod_of,
    with_dropout,
)
from longspan.ops.attend.flex_tables import Tables, block_mask_in_graph, tables_of_rows
from longspan.ops.attend.reference import attend_reference, column_terms, row_terms
from longspan.ops.attend.terms import Bias, GlobalKeyBias
from longspan.ops.compiled import compiled, compiling, failures
from longspan.ops.runtime import cached, shared_in_pass
from longspan.ops.tiles.arranged import Arranged, by_pattern, heads_only, permute
from longspan.ops.tiles.band import band_serves
from longspan.ops.tiles.blocked_operator import attend_blocked
from longspan.ops.tiles.layout import traits_of
from longspan.ops.tiles.split import NOTHING, parts_of, sets_of
from longspan.patterns import Full, Pattern, PerHead

LEAST_WIDTH = 16
"""Minimum head width for tensor cores."""
TYPES = (torch.float16, torch.bfloat16, torch.float32)


class FlexFailedError(InputError):
    """FlexAttention could not be compiled for a call."""


_failed: set[Hashable] = set()
"""Kinds of calls that could not be compiled, so that they are not tried in every layer and step."""
_unstaged: set[Hashable] = set()
"""Kinds of calls that fit into the shared memory of this GPU only with one block of keys loaded at a time. The loads of
captured tables are staged in addition to those of keys and values."""
TOO_LARGE = "out of resource"
"""Triton's message for a kernel that needs more shared memory than available."""


def flex_serves(call: Call) -> bool:
    """Whether FlexAttention supports a call efficiently: on CUDA, in half or single precision. Terms that learn are
    supported in windows, but not with dropout, which tiles draw otherwise, nor in a compiled graph. For inference in
    single precision, as with the bundled models, compilation would take longer than the document."""
    query = call.query
    return (
        query.is_cuda
        and query.dtype in TYPES
        and not (query.dtype == torch.float32 and torch.is_inference_mode_enabled())
        and query.shape[2] > 0
        and all(width >= LEAST_WIDTH and width & (width - 1) == 0 for width in (query.shape[-1], call.value.shape[-1]))
        and (not call.terms or products_of(call) <= MOST_PRODUCTS * query.shape[1])
        and (not _terms_learn(call) or _learns_in_tiles(call))
        and not (torch.compiler.is_compiling() and _needs_order(call.pattern))
        and (not _failed or compiles(_kind(call)))
    )


def _terms_learn(call: Call) -> bool:
    """Whether a tensor of the terms, or an operand of content terms, requires a gradient."""
    made = [call.query, call.key] if products_of(call) else []
    made += [tensor for term in call.terms for tensor in term.tensors]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in made)


def _learns_in_tiles(call: Call) -> bool:
    """Whether FlexAttention computes only the forward pass, and `longspan.ops.tiles.band` the gradients: those of
    tables are sums over all pairs, which FlexAttention would accumulate by an atomic operation for each pair."""
    return not call.dropout_prob and not torch.compiler.is_compiling() and band_serves(call)


def _needs_order(pattern: Pattern) -> bool:
    """Whether some head has distant keys, which a compiled graph leaves to tiles."""
    heads = (pattern.head(index) for index in range(pattern.heads or 1))
    return any(head_pattern.residues() is not None or head_pattern.near_far() is not None for head_pattern in heads)


def attend_flex(call: Call) -> Tensor:
    """Computes attention with FlexAttention.

    Raises:
        InputError: the call has an unsupported dtype, or dropout or a gradient on a CPU.
        FlexFailedError: it cannot be compiled for this pattern on this machine.
    """
    _check(call)
    query, value, slots = call.query, call.value, call.slots
    if not query.numel() or not call.key.numel():
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    if _terms_learn(call) and _learns_in_tiles(call):
        return attend_blocked(call, forward=_by_products)
    near = tuple(term for term in call.terms if not isinstance(term, GlobalKeyBias))
    columns = column_terms(call) if call.terms and slots is not None else None
    result = _by_products(replace(call, terms=near if columns is None else (*near, GlobalKeyBias(columns))))
    if slots is None or not call.global_rows:
        return result
    bias, rows = row_terms(call) if call.terms else None, gather_slots(query, slots)
    rows = replace(
        call, query=rows, pattern=Full(), slots=None, query_offset=0, terms=() if bias is None else (Bias(bias),)
    )
    return put_slots(result, attend_full(rows) if bias is None else attend_reference(rows), slots)


def _by_products(call: Call) -> Tensor:
    """Computes the output of all queries and keys, in groups of heads, which bounds the memory of precomputed content
    terms."""
    heads, products = call.query.shape[1], products_of(call)
    if products <= PRODUCTS_AT_ONCE:
        return _in_turns(call)
    step = max(1, heads * PRODUCTS_AT_ONCE // products)
    runs = [list(range(first, min(first + step, heads))) for first in range(0, heads, step)]
    patterns = [
        call.pattern if call.pattern.heads is None else PerHead([call.pattern.head(head) for head in run])
        for run in runs
    ]
    parts = [_in_turns(heads_only(call, run, pattern)) for run, pattern in zip(runs, patterns, strict=True)]
    return torch.cat(parts, dim=1)


def _in_turns(call: Call) -> Tensor:
    """Computes the output of all queries: in one call, or in turns for heads whose positions are permuted."""
    turns = turns_of(call)
    if len(turns) == 1:
        return _over_sets(turns[0][1])
    order = torch.tensor([head for heads, _ in turns for head in heads]).argsort()
    return torch.cat([_over_sets(parts) for _, parts in turns], dim=1)[:, order.to(call.query.device)]


def turns_of(call: Call) -> list[tuple[list[int], list[Arranged]]]:
    """Returns groups of heads and their sets of keys: sorted by residue class, or gathered. Blocks of 128 would hold
    few visible keys of a pattern with every n-th key, and still compute all of them."""
    everything = list(range(call.query.shape[1]))
    if torch.compiler.is_compiling() or not traits_of(call.pattern).is_rearranged:
        return [(everything, [Arranged(call)])]
    turns, plain = [], []
    for pattern, members in by_pattern(call.pattern).items():
        heads = everything if call.pattern.heads is None else members
        own = call if len(heads) == len(everything) else heads_only(call, heads, pattern)
        own = replace(own, pattern=pattern)
        sets = sets_of(own) if call.query.is_cuda else None  # on a CPU FlexAttention returns no log-sum-exp
        permuted = permute(own) if sets is None and pattern.residues() is not None else None
        if sets is not None or permuted is not None:
            turns.append((heads, [permuted] if sets is None else parts_of(own, sets)))
        else:
            plain += heads
    if len(plain) == len(everything):
        return [(everything, [Arranged(call)])]
    if plain:
        own = [call.pattern.head(head) for head in sorted(plain)]
        rest = own[0] if len(set(own)) == 1 else PerHead(own)
        turns.append((sorted(plain), [Arranged(heads_only(call, sorted(plain), rest))]))
    return turns


def _over_sets(parts: list[Arranged]) -> Tensor:
    """Combines the softmax over several sets of keys by their log-sum-exp."""
    if len(parts) == 1:
        return parts[0].output(_by_pattern(parts[0].call)[0])
    results = [(part, *_by_pattern(part.call, logs=True)) for part in parts]
    # A query that sees nothing of a set has −∞, which would make the gradients of the others NaN.
    logs = torch.stack([part.output(logs[..., None].clamp(min=-NOTHING)) for part, _, logs in results])  # pyright: ignore[reportOptionalSubscript]
    outputs = torch.stack([part.output(output) for part, output, _ in results])
    return (torch.softmax(logs, 0) * outputs).sum(0).to(outputs.dtype)


def _by_pattern(call: Call, logs: bool = False) -> tuple[Tensor, Tensor | None]:
    """Computes the output over the pattern and global keys, and with `logs` the log-sum-exp, `(B, H, T)`."""
    query, key, value, slots, keys = call.query, call.key, call.value, call.slots, call.key.shape[2]
    sizes = (call.pattern, query.shape[2], keys, call.query_offset, query.device)
    block_mask = block_mask_of(*sizes, call.key_mask, slots)
    if slots is not None:
        key, value = (torch.cat([tensor, gather_slots(tensor, slots)], dim=2) for tensor in (key, value))
    options: dict[str, Any] = {"block_mask": block_mask, "scale": call.scale}
    options |= program_options(query, _reads(call))
    flex = flex_attention if torch.compiler.is_compiling() else partial(_compiled, call)
    score_mod, prob = score_mod_of(call), call.dropout_prob
    if not prob and not logs:
        return flex(query, key, value, score_mod=score_mod, **options), None
    options["return_aux"] = AuxRequest(lse=True)
    if not prob:
        result, aux = flex(query, key, value, score_mod=score_mod, **options)
        return result, aux.lse
    # The log-sum-exp without dropout does not depend on the values, so the narrowest values suffice.
    total = flex(query, key, value[..., :16], score_mod=score_mod, **options)[1].lse
    seed = torch.randint(1 << BITS, (1,), device=query.device)
    dropped = with_dropout(score_mod, seed, prob, query.shape[1])
    result, aux = flex(query, key, value, score_mod=dropped, **options)
    factors = (aux.lse.clamp(min=-NOTHING) - total.clamp(min=-NOTHING)).exp() / (1 - prob if prob < 1 else 1)
    return (result * factors[..., None]).to(result.dtype), total


def _reads(call: Call) -> Reads:
    """Returns what the mask and the scores of a call read."""
    if products_of(call):
        return "products"
    traits = traits_of(call.pattern)
    by_row = call.key_mask is not None or call.slots is not None or traits.reads_length
    return "tables" if by_row or call.terms or traits.heads is not None else "positions"


def _compiled(call: Call, *tensors: Tensor, **options: Any) -> Any:
    return run_compiled(_kind(call), f"pattern {call.pattern} in {call.query.dtype}", *tensors, **options)


def compiles(kind: Hashable) -> bool:
    """Whether no call of this kind has failed to compile."""
    return kind not in _failed


def run_compiled(kind: Hashable, what: str, *tensors: Tensor, **options: Any) -> Any:
    """Runs FlexAttention on queries, keys and values, with its other arguments as options, compiled at the first call
    of its kind.

    Raises:
        FlexFailedError: it cannot be compiled; `what` describes the call in the message. `compiles` is False from then
            on.
    """
    try:
        # Inductor's CPU kernel accepts no variable lengths.
        with compiling(dynamic=tensors[0].is_cuda):
            if kind in _unstaged:
                options["kernel_options"] = options.get("kernel_options", {}) | ONE_BLOCK
            return _kernel()(*tensors, **options)
    except failures() as error:
        if TOO_LARGE in str(error) and kind not in _unstaged:
            _unstaged.add(kind)
            return run_compiled(kind, what, *tensors, **options)
        _failed.add(kind)
        reason = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
        raise FlexFailedError(
            f"backend='flex' cannot be compiled for {what} ({reason}); use backend='blocked'"
        ) from error


def _kind(call: Call) -> tuple[Any, ...]:
    """Returns the key under which compilability is recorded."""
    kinds, widths = tuple(type(term) for term in call.terms), (call.query.shape[-1], call.value.shape[-1])
    return call.pattern, call.query.dtype, call.query.device.type, widths, kinds, call.dropout_prob > 0


def _kernel() -> Callable[..., Any]:
    """Returns FlexAttention compiled as one graph: in parts it would be dense."""
    return compiled(flex_attention)


def block_mask_of(
    pattern: Pattern,
    queries: int,
    keys: int,
    query_offset: int,
    device: torch.device,
    key_mask: Tensor | None = None,
    slots: Tensor | None = None,
) -> BlockMask:
    """Returns FlexAttention's mask: tables of partial and full blocks, and the predicate inside partial ones.

    `key_mask` is `(B, S)` bool; the keys of the slots `(B, G)` follow those of the text, where they are hidden.
    """
    sizes = (pattern, queries, keys, query_offset, device)
    if key_mask is None and slots is None:
        return _block_mask_of_pattern(*sizes)[1]
    return _block_mask_of_data(*sizes, key_mask, slots)[1]


def _block_mask(
    pattern: Pattern,
    queries: int,
    keys: int,
    query_offset: int,
    device: torch.device,
    key_mask: Tensor | None = None,
    slots: Tensor | None = None,
) -> tuple[Tables | None, BlockMask]:
    """As `block_mask_of`, and returns the tables, from which a cache computes its size."""
    real, global_count = key_mask, 0 if slots is None else slots.shape[1]
    if slots is not None:
        near = ~mask_of_slots(slots, keys)
        real = torch.cat([near if key_mask is None else near & key_mask, slots >= 0], dim=1)
    mask_mod = mask_mod_of(pattern, queries, keys, query_offset, key_mask, real, device)
    sizes = (queries, keys, query_offset, global_count)
    if torch.compiler.is_compiling():
        shown = pattern
        if pattern.reads_length:
            mask = torch.ones(1, keys, dtype=torch.bool, device=device) if key_mask is None else key_mask
            shown = pattern.of_length(row_lengths(mask)[:, None, None])
        return None, block_mask_in_graph(shown, *sizes, mask_mod, device)
    tables = tables_of_rows(pattern, *sizes, device, key_mask)
    tables = tables if real is None else tables.thinned(real)
    return tables, tables.block_mask(queries, keys + global_count, mask_mod)


_block_mask_of_pattern, _block_mask_of_data = cached(_block_mask), shared_in_pass(_block_mask)


def _check(call: Call) -> None:
    device, prob = call.query.device, call.dropout_prob
    if not call.query.is_cuda and device.type != "cpu":
        raise InputError(f"backend='flex' runs on CUDA and processors, and query is on {device}; use backend='blocked'")
    if device.type == "cpu" and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors):
        raise InputError("backend='flex' has no gradients on a processor, and one is needed; use backend='blocked'")
    if call.query.dtype not in TYPES:
        raise InputError(f"backend='flex' serves no {call.query.dtype}; use backend='blocked', or float32")
    if call.query.is_cuda and (width := min(call.query.shape[-1], call.value.shape[-1])) < LEAST_WIDTH:
        raise InputError(f"backend='flex' takes heads of {LEAST_WIDTH} numbers or more, not {width}; use 'blocked'")
    if prob and device.type == "cpu":
        raise InputError(
            f"backend='flex' has no dropout on a processor, and dropout_prob={prob}; use backend='blocked'"
        )
    if products_of(call) > MOST_PRODUCTS * call.query.shape[1]:
        raise InputError(
            f"backend='flex' makes all products of tokens and positions before, which are {products_of(call):,} in "
            f"{call.query.shape[1]} heads here; use backend='blocked'"
        )
