"""`attend_relative`: attention in a window whose scores also depend on where two tokens stand to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.relative_operator import relative_attention
from longspan.ops.relative_reference import attend_relative_reference

BACKENDS = ("auto", "reference", "blocked")
SHORT_SCORES = 1 << 18
"""Up to this many scores in all, autograd's dense steps train faster than tiles that recompute them."""


def attend_relative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    *,
    left: int,
    right: int,
    scale: float,
    key_mask: Tensor | None = None,
    slots: Tensor | None = None,
    global_bias: Tensor | None = None,
    dropout_prob: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention over a window with disentangled scores, and over the keys of global tokens, in one softmax.

    `scale·(q_i·k_j + q_i·K^r[j − i] + k_j·Q^r[j − i])` for a key j in the window of query i (DeBERTa, He et al. 2020,
    arXiv 2006.03654, equation 4), `scale·q_i·k_g + bias_ig` for a global key g, which counts once. Values have no
    position. A query that sees nothing gives zeros; the rows of global queries are not treated apart.

    Args:
        query, key, value: `(B, H, T, D)`.
        position_key: `(H, left + 1 + right, D)`, projected table by offset j − i, from −left to right (paper: K^r).
        position_query: the same for the third term (paper: Q^r).
        left, right: tokens on each side of the window.
        scale: factor on all three terms.
        key_mask: `(B, T)` bool, True where a token is real; `None` means all are.
        slots: `(B, G)` int64 distinct positions of real global tokens, −1 in unused slots.
        global_bias: `(B, H, T, G)`, added to the scaled scores of the global keys, in the dtype of the query or in
            float32; needs `slots`.
        dropout_prob: probability of dropping an attention weight.
        backend: `"reference"` (dense, quadratic memory), `"blocked"` (tiles, linear memory, any device; a short input
            is one tile), or `"auto"`, the cheaper one.

    Returns:
        `(B, H, T, D)` in the dtype of the query.

    Raises:
        InputError: shapes or dtypes do not fit, or an unknown backend.
    """
    _check(query, key, value, position_key, position_query, left + 1 + right, slots, global_bias, backend)
    inputs = (query, key, value, position_key, position_query)
    if slots is None or slots.shape[1] == 0:
        slots = global_bias = None
    if backend == "reference" or (backend == "auto" and _reference_is_cheaper(inputs, dropout_prob)):
        options = {"left": left, "right": right, "scale": scale, "dropout_prob": dropout_prob}
        return attend_relative_reference(*inputs, key_mask, slots, global_bias, **options)
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    return relative_attention(*inputs, global_bias, key_mask, slots, seed, left, right, scale, dropout_prob)


def _reference_is_cheaper(inputs: tuple[Tensor, ...], dropout_prob: float) -> bool:
    """Whether a short input is to be trained on; a compiled graph must serve every length and keeps to the tiles.

    Dropout counts as training even without gradients: reentrant checkpointing computes its first pass without them, and
    the second must drop the same weights.
    """
    if torch.compiler.is_compiling() or inputs[0].is_cuda:
        return False
    batch, heads, length = inputs[0].shape[:3]
    learns = dropout_prob > 0 or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs))
    return learns and batch * heads * length**2 <= SHORT_SCORES


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    offsets: int,
    slots: Tensor | None,
    global_bias: Tensor | None,
    backend: str,
) -> None:
    """Refuse what does not fit together, in one sentence each."""
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r} does not exist; choose one of {', '.join(BACKENDS)}")
    if query.ndim != 4 or not query.shape == key.shape == value.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
        raise InputError(f"query, key and value have shapes {shapes}; give all the same, (B, H, T, D)")
    tables = {"position_key": position_key, "position_query": position_query}
    for name, table in tables.items():
        if table.shape != (query.shape[1], offsets, query.shape[3]):
            raise InputError(
                f"{name} has shape {tuple(table.shape)}; a window of {offsets} tokens needs "
                f"{(query.shape[1], offsets, query.shape[3])}"
            )
    if (slots is None) != (global_bias is None):
        raise InputError("global_bias belongs to slots; give both or neither")
    if slots is not None and global_bias is not None and global_bias.shape != (*query.shape[:3], slots.shape[1]):
        raise InputError(
            f"global_bias has shape {tuple(global_bias.shape)}; {slots.shape[1]} slots need "
            f"{(*query.shape[:3], slots.shape[1])}"
        )
    for name, tensor in {"key": key, "value": value, **tables}.items():
        if tensor.dtype != query.dtype:
            raise InputError(f"{name} is {tensor.dtype} and query {query.dtype}; give all the same")
    if global_bias is not None and global_bias.dtype not in (query.dtype, torch.float32):
        raise InputError(f"global_bias is {global_bias.dtype} and query {query.dtype}; give the same, or float32")
