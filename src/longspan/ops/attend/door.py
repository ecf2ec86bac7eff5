"""`attend`: one attention operator for every pattern, with several ways to compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend.call import Call, checked
from longspan.ops.attend.dense import attend_dense, attend_full, dense_is_cheaper, full_serves
from longspan.ops.attend.flex import attend_flex, flex_serves
from longspan.ops.attend.lengths import by_length, joined
from longspan.ops.attend.reference import attend_reference
from longspan.ops.attend.terms import Term
from longspan.ops.tiles.blocked_operator import attend_blocked
from longspan.ops.transforms import has_tangent, needs_reference
from longspan.patterns import Pattern

BACKENDS = {"reference": attend_reference, "blocked": attend_blocked, "flex": attend_flex}
WAYS = {"full": attend_full, "dense": attend_dense, **BACKENDS}
"""The backends, and what `auto` may take besides."""
SHORT_SCORES = 1 << 18
"""Up to this many scores in all, relative positions train faster in autograd's dense steps than in tiles that recompute
them."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: Pattern,
    terms: Sequence[Term] = (),
    key_mask: Tensor | None = None,
    globals: Tensor | None = None,
    global_rows: bool = True,
    scale: float | None = None,
    dropout_prob: float = 0.0,
    query_offset: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention of each query over the keys that `pattern` lets it see.

    `softmax(scale·(QKᵀ + content terms) + biases) V` over the visible keys only (Vaswani et al. 2017, eq. 1); a query
    that sees nothing gives zeros.

    Args:
        query: `(B, H, T, D)`.
        key: `(B, H, S, D)`.
        value: `(B, H, S, Dv)`.
        pattern: which pairs of positions may attend, for all heads or `PerHead`.
        terms: what is added to the scores, of `longspan.ops.attend.terms`: `Bias`, `GlobalKeyBias`,
            `ContentToPosition`, `PositionToContent`, `PositionBias`; any number of each.
        key_mask: `(B, S)` bool, True where a key is real; `None` means all are.
        globals: tokens that see every real key and are seen by every query, whatever the pattern: a `(B, S)` bool
            mask, or `(B, G)` int64 positions with −1 in unused slots (a static count, for `torch.compile` and
            `torch.export`). Needs T = S. A padded global token is ignored, one that is named twice counts once.
        global_rows: False gives the global tokens as keys only: their own rows follow the pattern.
        scale: factor on the scores, `D ** -0.5` by default.
        dropout_prob: probability of dropping an attention weight.
        query_offset: position of the first query, for queries that continue a sequence of keys.
        backend: `"reference"` (dense, quadratic memory), `"blocked"` (tiles, linear memory, any device), `"flex"`
            (FlexAttention on CUDA, without terms), or `"auto"`, the cheapest that serves the call. All keep scores and
            softmax in float32 at least, so results agree up to the rounding of the inputs' type. Forward-mode
            derivatives, and those of `torch.func`, come from `"reference"`.

    Returns:
        `(B, H, T, Dv)` in the dtype of the query.

    Raises:
        InputError: shapes or dtypes do not fit, or the chosen backend cannot serve the call.
    """
    if not isinstance(backend, str) or (backend != "auto" and backend not in BACKENDS):
        raise InputError(f"backend={backend!r} does not exist; choose one of auto, {', '.join(BACKENDS)}")
    options = {"key_mask": key_mask, "globals": globals, "global_rows": global_rows, "scale": scale}
    call = checked(
        query, key, value, pattern, terms, **options, dropout_prob=dropout_prob, query_offset=query_offset
    )  # fmt: skip
    return joined(_parts(call, backend), lambda part: _computed(part, backend))


def _parts(call: Call, backend: str) -> list[tuple[Tensor | None, Call]]:
    """The call by rows of one length each where its pattern reads that, unless the way it goes tells rows apart itself:
    what does not look at the data, and FlexAttention, which would be compiled for every length."""
    if not call.pattern.reads_length or torch.compiler.is_compiling() or needs_reference(*call.tensors):
        return [(None, call)]
    flex = flex_serves(call) if backend == "auto" else backend == "flex"
    return [(None, call)] if flex or backend == "reference" else by_length(call)


def _computed(call: Call, backend: str) -> Tensor:
    return WAYS[_choose(call) if backend == "auto" else _checked_choice(call, backend)](call)


def _checked_choice(call: Call, backend: str) -> str:
    """The backend asked for.

    Raises:
        InputError: it cannot give the derivatives that are asked for.
    """
    if backend != "reference" and needs_reference(*call.tensors):
        raise InputError(
            f"backend={backend!r} has no forward-mode derivatives and none by torch.func, which are asked for; "
            "use backend='reference', or plain backward"
        )
    return backend


def _choose(call: Call) -> str:
    """What `auto` takes: the cheapest that serves the call."""
    if has_tangent(*call.tensors):  # PyTorch's own kernels have no forward mode either
        return "reference"
    plain = len(call.terms) == 0
    if plain and call.slots is None and full_serves(call):
        return "full"
    if needs_reference(*call.tensors):
        return "reference"
    if flex_serves(call):
        chosen = "flex"
    elif plain and not call.dropout_prob and dense_is_cheaper(call):
        return "dense"
    else:
        chosen = "reference" if call.has_offsets and _trains_short(call) else "blocked"
    return chosen


def _trains_short(call: Call) -> bool:
    """Whether a short input is to be trained on; a compiled graph must serve every length and keeps to the tiles.

    Dropout counts as training even without gradients: reentrant checkpointing computes its first pass without them, and
    the second must drop the same weights.
    """
    if torch.compiler.is_compiling() or call.query.is_cuda:
        return False
    learns = call.dropout_prob > 0 or (torch.is_grad_enabled() and any(each.requires_grad for each in call.tensors))
    return learns and call.query.shape[:3].numel() * call.key.shape[2] <= SHORT_SCORES
