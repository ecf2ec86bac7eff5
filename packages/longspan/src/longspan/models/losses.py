"""Losses of the task heads; every one of them is 0, with gradient 0, when nothing in the batch carries a label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.errors import InputError
from longspan.models.inputs import check_batch

if TYPE_CHECKING:
    from longspan.models.configuration import LongspanConfig

IGNORED = -100
"""The label of a token or sentence that has none."""


def token_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0, count: Tensor | int | None = None) -> Tensor:
    """Mean cross-entropy over the labels that are not −100, in float32 or wider.

    Args:
        logits: `(B, T, V)`.
        labels: `(B, T)` int64.
        smoothing: share of the target spread evenly over the vocabulary.
        count: divisor; `None` means the number of real labels of this batch.
    """
    check_labels(labels, logits.shape[:-1])
    try:  # a processor raises; a GPU, which would be waited for, aborts
        total = functional.cross_entropy(
            wide(logits).flatten(0, -2),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )
    except IndexError:
        classes = logits.shape[-1]
        beyond = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED)][0]
        raise InputError(
            f"labels holds {int(beyond)}, but the model tells {classes} classes apart; give numbers from 0 to "
            f"{classes - 1}, and {IGNORED} where there is nothing to guess"
        ) from None
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)


def document_loss(config: LongspanConfig, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of `(B, L)` logits by `config.problem_type`, or by what the labels look like when that is unset.

    One output: mean squared error. Whole-number labels `(B,)`: cross-entropy. Float labels `(B, L)`: binary
    cross-entropy per label.
    """
    kind = config.problem_type
    if kind is None:
        whole = not labels.is_floating_point()
        kind = "single_label_classification" if whole else "multi_label_classification"
        kind = "regression" if logits.shape[-1] == 1 else kind
    if kind == "single_label_classification":
        return token_loss(logits, labels.flatten())
    if labels.numel() != logits.numel():
        raise InputError(
            f"labels has shape {tuple(labels.shape)} but problem_type={kind!r} predicts {tuple(logits.shape)}; give "
            "one number for each"
        )
    labels = labels.reshape(logits.shape).to(logits.dtype)
    if kind == "regression":
        return functional.mse_loss(logits, labels)
    return functional.binary_cross_entropy_with_logits(logits, labels)


def span_loss(
    start: Tensor, end: Tensor, start_positions: Tensor, end_positions: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Scalar mean of `any_place_loss` of the two ends of an answer: logits `(B, T)`, positions as `places` there."""
    return (any_place_loss(start, start_positions, mask) + any_place_loss(end, end_positions, mask)) / 2


def any_place_loss(logits: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
    """`−log` of the probability that all right places of a row have together, mean over the rows that have one.

    With one right place this is cross-entropy; with several, any of them will do (Clark and Gardner 2018): `logsumexp`
    over all places less that over the right ones, `log Σ exp z − log Σ_right exp z`.

    Args:
        logits: `(B, T)`.
        places: `(B,)` or `(B, K)` int64; those outside the row are none, and one that comes twice counts once.
        mask: `(B, T)`, real tokens; padding is no place.
    """
    rows, length = logits.shape
    places = places.reshape(rows, -1)
    inside = (places >= 0) & (places < length)
    right = torch.zeros(rows, length + 1, dtype=torch.bool, device=logits.device)
    right = right.scatter(1, torch.where(inside, places, length), True)[:, :length]
    logits = wide(logits)
    if mask is not None:
        logits, right = logits.masked_fill(~mask.bool(), torch.finfo(logits.dtype).min), right & mask.bool()
    labelled = right.any(1)
    # A row without a right place takes all of them, so that its loss and its gradient are 0.
    chosen = logits.masked_fill(~(right | ~labelled[:, None]), float("-inf"))
    return (logits.logsumexp(1) - chosen.logsumexp(1)).sum() / labelled.sum().clamp(min=1)


def wide(logits: Tensor) -> Tensor:
    """The same numbers in float32, or in float64 where they are: losses of half-precision scores lose digits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def binary_loss(logits: Tensor, labels: Tensor, exists: Tensor | None) -> Tensor:
    """Mean binary cross-entropy, in float32, over the sentences or tokens that exist and have a label.

    Args:
        logits: `(B, N)`, any value where nothing exists.
        labels: `(B, N)` in [0, 1], −100 where there is none.
        exists: `(B, N)` bool or int; `None` means that all do.
    """
    check_labels(labels, logits.shape)
    counted = with_label(labels, exists)
    logits = logits.masked_fill(~counted, 0.0).float()
    targets = labels.masked_fill(~counted, 0.0).float()
    losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def with_label(labels: Tensor, exists: Tensor | None) -> Tensor:
    """Which sentences or tokens exist and have a label, bool; arguments as in `binary_loss`."""
    return labels != IGNORED if exists is None else (labels != IGNORED) & exists.bool()


def contrastive_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Mean over N of `-log softmax_j(p_i·t_j)` at j = i, in float32 at least; 0 for none: the right target among all of
    them (van den Oord et al. 2018, Contrastive Predictive Coding, arXiv 1807.03748, equation 4).

    Args:
        predicted, targets: `(N, E)`.
    """
    scores = wide(predicted) @ wide(targets).T
    right = torch.arange(len(scores), device=scores.device)
    return functional.cross_entropy(scores, right, reduction="sum") / max(1, len(scores))


PAIRS = 10
"""How much more similarities count than cosines, whose errors are larger: both then weigh about the same."""


def distillation_loss(vectors: Tensor, labels: Tensor, exists: Tensor) -> Tensor:
    """How far vectors are from a teacher's, each by itself and in pairs: `mean(1 − s·t) + 10 · mean((s·s′ − t·t′)²)`.

    The first part puts each vector where the teacher has it, the second keeps what search and centrality read, the
    similarity of two (Park et al. 2019, Relational Knowledge Distillation). Pairs are formed over the whole batch.

    Args:
        vectors: `(B, N, D)` of length 1.
        labels: `(B, N, D)` of length 1; 0 where there is no teacher's vector.
        exists: `(B, N)` bool.
    """
    check_labels(labels, vectors.shape)
    counted = (exists & (labels != 0).any(-1)).flatten()
    students, teachers = (each.flatten(0, 1).float() * counted[:, None] for each in (vectors, labels))
    count = counted.sum().clamp(min=1)
    single = (counted.float() - (students * teachers).sum(-1)).sum() / count
    # Those that do not count are 0, and so is what they add.
    pairs = (students @ students.T - teachers @ teachers.T).square().sum() / count**2
    return single + PAIRS * pairs


def check_labels(labels: Tensor, predicted: torch.Size) -> None:
    """Raise `InputError` unless `labels` have the shape of the predictions, one label for each."""
    check_batch("labels", labels)
    if labels.shape != predicted:
        raise InputError(
            f"labels has shape {tuple(labels.shape)}, the predictions {tuple(predicted)}; give one label each"
        )


def with_stack_loss(
    loss: Tensor | None, *outputs: Any, labels: Tensor | None = None, count: Tensor | int | None = None
) -> Tensor | None:
    """A model's loss and what the stacks of some `outputs` add to it; `None` without a loss.

    Where a loss is divided by the `count` of all labels in an update, the batch adds its share of them.
    """
    for output in outputs:
        extra = getattr(output, "stack_loss", None)
        if loss is not None and extra is not None:
            share = 1.0 if labels is None or count is None else (labels != IGNORED).sum() / count
            loss = loss + share * extra
    return loss
