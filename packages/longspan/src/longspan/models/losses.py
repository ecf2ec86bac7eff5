"""Losses of the task heads; each is 0, with gradient 0, for a batch without labels."""

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
    """Returns the mean cross-entropy over the labels that are not −100, in float32 or wider.

    Args:
        logits: `(B, T, V)`.
        labels: `(B, T)` int64.
        smoothing: share of the target spread evenly over the vocabulary.
        count: divisor; `None` means the number of real labels of this batch.
    """
    check_labels(labels, logits.shape[:-1])
    try:  # a CPU raises; a GPU, which is not synchronised, aborts
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
            f"labels holds {int(beyond)}, but the model has {classes} classes; give numbers from 0 to "
            f"{classes - 1}, and {IGNORED} where there is nothing to predict"
        ) from None
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)


def document_loss(config: LongspanConfig, logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the loss of `(B, L)` logits by `config.problem_type`, by default inferred from the labels.

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
    """Returns the scalar mean of `any_place_loss` of the two ends of an answer: logits `(B, T)`, positions
    as `places` there.
    """
    return (any_place_loss(start, start_positions, mask) + any_place_loss(end, end_positions, mask)) / 2


def any_place_loss(logits: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns `−log` of the total probability of all right positions of a row, mean over the rows that have one.

    With one right position this is cross-entropy; with several, any of them counts (Clark and Gardner 2018):
    `logsumexp` over all positions less that over the right ones, `log Σ exp z − log Σ_right exp z`.

    Args:
        logits: `(B, T)`.
        places: `(B,)` or `(B, K)` int64; those outside the row are ignored, and duplicates count once.
        mask: `(B, T)`, real tokens; padding is excluded.
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
    # In a row without a right position all count as right, so that its loss and its gradient are 0.
    chosen = logits.masked_fill(~(right | ~labelled[:, None]), float("-inf"))
    return (logits.logsumexp(1) - chosen.logsumexp(1)).sum() / labelled.sum().clamp(min=1)


def wide(logits: Tensor) -> Tensor:
    """Converts to float32, unless they are float64: losses of half-precision scores would be imprecise."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def binary_loss(logits: Tensor, labels: Tensor, exists: Tensor | None) -> Tensor:
    """Returns the mean binary cross-entropy, in float32, over the sentences or tokens that exist and have a label.

    Args:
        logits: `(B, N)`, any value for missing ones.
        labels: `(B, N)` in [0, 1], −100 for none.
        exists: `(B, N)` bool or int; `None` means that all do.
    """
    check_labels(labels, logits.shape)
    counted = with_label(labels, exists)
    logits = logits.masked_fill(~counted, 0.0).float()
    targets = labels.masked_fill(~counted, 0.0).float()
    losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def with_label(labels: Tensor, exists: Tensor | None) -> Tensor:
    """Returns which sentences or tokens exist and have a label, bool; arguments as in `binary_loss`."""
    return labels != IGNORED if exists is None else (labels != IGNORED) & exists.bool()


def contrastive_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean over N of `-log softmax_j(p_i·t_j)` at j = i, in float32 at least, 0 for N = 0: each
    prediction selects its target among all of them (van den Oord et al. 2018, Contrastive Predictive Coding, arXiv
    1807.03748, equation 4).

    Args:
        predicted, targets: `(N, E)`.
    """
    scores = wide(predicted) @ wide(targets).T
    right = torch.arange(len(scores), device=scores.device)
    return functional.cross_entropy(scores, right, reduction="sum") / max(1, len(scores))


PAIRS = 10
"""Weight of the errors of similarities relative to those of cosines, which are larger; both then
contribute about equally.
"""


def distillation_loss(vectors: Tensor, labels: Tensor, exists: Tensor) -> Tensor:
    """Returns the distance of vectors from a teacher's, singly and in pairs: `mean(1 − s·t) + 10 ·
    mean((s·s′ − t·t′)²)`.

    The first term compares each vector with the teacher's, the second the similarities of pairs, which search and
    centrality use (Park et al. 2019, Relational Knowledge Distillation). Pairs are formed over the whole batch.

    Args:
        vectors: `(B, N, D)` of length 1.
        labels: `(B, N, D)` of length 1; 0 without a teacher's vector.
        exists: `(B, N)` bool.
    """
    check_labels(labels, vectors.shape)
    counted = (exists & (labels != 0).any(-1)).flatten()
    students, teachers = (tensor.flatten(0, 1).float() * counted[:, None] for tensor in (vectors, labels))
    count = counted.sum().clamp(min=1)
    single = (counted.float() - (students * teachers).sum(-1)).sum() / count
    # Missing ones are 0, and contribute 0.
    pairs = (students @ students.T - teachers @ teachers.T).square().sum() / count**2
    return single + PAIRS * pairs


def check_labels(labels: Tensor, predicted: torch.Size) -> None:
    """Raises `InputError` unless `labels` have the shape of the predictions."""
    check_batch("labels", labels)
    if labels.shape != predicted:
        raise InputError(
            f"labels has shape {tuple(labels.shape)}, the predictions {tuple(predicted)}; give one label each"
        )


def with_stack_loss(
    loss: Tensor | None, *outputs: Any, labels: Tensor | None = None, count: Tensor | int | None = None
) -> Tensor | None:
    """Returns a model's loss plus the losses of the stacks in `outputs`; `None` without a loss.

    If a loss is divided by the `count` of all labels in an update, the batch adds its share of them.
    """
    for output in outputs:
        extra = getattr(output, "stack_loss", None)
        if loss is not None and extra is not None:
            share = 1.0 if labels is None or count is None else (labels != IGNORED).sum() / count
            loss = loss + share * extra
    return loss
