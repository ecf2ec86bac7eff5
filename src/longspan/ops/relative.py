"""`attend_relative`: attention in a window whose scores also depend on where two tokens stand to each other."""

from __future__ import annotations

from torch import Tensor

from longspan.ops.relative_reference import attend_relative_reference


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
        global_bias: `(B, H, T, G)`, added to the scaled scores of the global keys; needs `slots`.
        dropout_prob: probability of dropping an attention weight.
        backend: `"reference"` (dense), or `"auto"`.

    Returns:
        `(B, H, T, D)` in the dtype of the query.
    """
    return attend_relative_reference(
        query,
        key,
        value,
        position_key,
        position_query,
        key_mask,
        slots,
        global_bias,
        left=left,
        right=right,
        scale=scale,
        dropout_prob=dropout_prob,
    )
