"""Features on access, padded batches, and a model's predictions, for all tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longspan.attention.features.packed import worth_packing
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.progress import progress_bar


class FeatureRows(Dataset[dict[str, Any]]):
    """Features of rows, computed on access: a large corpus is never tokenised in memory.

    Access by index makes resuming exact: a sampler can skip processed rows without computing them.
    """

    def __init__(self, rows: Sequence[Any], features: Callable[[Any], dict[str, Any]]) -> None:
        self.rows = rows
        self.features = features

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the features of one row."""
        return self.features(self.rows[index])


def example_key(seed: int | None, epoch: int, index: int, content: bytes) -> int:
    """Returns a 128-bit key for a random generator: in training, with a seed, a different one in every epoch; without a
    seed, from the content alone, so that any two models with the same tokenizer are validated on the same examples.
    """
    material = content if seed is None else np.array([seed, epoch, index], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(material, digest_size=16).digest(), "little")


def pad(
    features: Sequence[Mapping[str, Any]],
    fillers: Mapping[str, float],
    *,
    leading: Sequence[int] | None = None,
    multiple: int = 1,
) -> dict[str, Tensor]:
    """Pads features of B rows on the right to the longest, as a batch; the features are not changed.

    Args:
        features: lists or arrays by name, including `input_ids`.
        fillers: padding value of each name; a name that some row lacks is left out. int64, or float32 with
            a float value.
        leading: the number of global first tokens of each row; creates the `global_attention_mask`.
        multiple: widths are multiples of it; results do not depend on it.

    Returns:
        `(B, longest)` for each name; `attention_mask` and `global_attention_mask` bool, True = real, True = global.
    """
    batch: dict[str, Tensor] = {}
    for name, filler in fillers.items():
        if all(name in feature for feature in features):
            width = -(-max(len(feature[name]) for feature in features) // multiple) * multiple
            rows = np.full((len(features), width), filler, np.float32 if isinstance(filler, float) else np.int64)
            for row, feature in zip(rows, features, strict=True):
                row[: len(feature[name])] = feature[name]
            batch[name] = torch.from_numpy(rows)
    places = torch.arange(batch["input_ids"].shape[1])
    batch["attention_mask"] = places < torch.tensor([len(feature["input_ids"]) for feature in features])[:, None]
    if leading is not None:
        batch["global_attention_mask"] = places < torch.tensor(leading)[:, None]
    return batch


def without_padding(collator: Callable[[Any], dict[str, Any]], features: Any) -> dict[str, Any]:
    """Returns a collator's batch without padding: the N real tokens of all B rows packed into one row, `(1, N)` for
    each name, and `seq_idx` `(1, N)`, the document of each, instead of the `attention_mask`. A batch with so little
    padding that packing would be slower is not changed.

    Raises:
        InputError: the batch has no mask, or a field that is not per token.
    """
    collated = collator(features)
    batch = dict(collated)
    mask = batch.pop("attention_mask", None)
    if mask is None:
        raise InputError("padding_free packs what an attention_mask calls real, and the batches of this task have none")
    documents = torch.arange(len(mask))[:, None].expand(mask.shape)
    if "seq_idx" in batch:  # packed rows already
        own = batch.pop("seq_idx")
        documents = documents * (int(own.max()) + 1) + own
    flat: dict[str, Any] = {"seq_idx": documents[mask].unique(return_inverse=True)[1][None]}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            raise InputError(
                f"padding_free packs what is there for each token, and {name} of this task is not; leave "
                "optimisation.padding_free out, or the option of the task that brings it"
            )
        flat[name] = value[mask][None]
    return flat if worth_packing(mask.sum(1).tolist()) else collated


def labels_of_batch(batch: Mapping[str, Any]) -> float:
    """Returns the number of valid labels of a batch."""
    return float((batch["labels"] != IGNORED).sum())


def batches(model: Any, dataset: Any, collator: Callable[..., Any], batch_size: int) -> Iterator[dict[str, Any]]:
    """Yields batches of a map-style data set in order, on the model's device, with a progress bar.

    The model is in evaluation mode until the last one; callers use `torch.no_grad()`.
    """
    loader: Any = DataLoader(dataset, batch_size=batch_size, collate_fn=collator)
    was_training = model.training
    model.eval()
    try:
        for batch in progress_bar(loader, doing="predicting"):
            yield {
                name: value.to(model.device) if isinstance(value, torch.Tensor) else value
                for name, value in batch.items()
            }
    finally:
        model.train(was_training)


def predict(
    model: Any, dataset: Any, collator: Callable[..., Any], *, batch_size: int, generate: bool = False
) -> np.ndarray:
    """Returns the first output of `model.forward` for every row, or the token ids of `model.generate`.

    `(rows, …)`, padded with −100 if lengths differ. The model does not get the labels.
    """
    outputs: list[np.ndarray] = []
    for batch in batches(model, dataset, collator, batch_size):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.no_grad():
            output = model.generate(**inputs) if generate else model(**inputs)[0]
        outputs.extend(output.float().cpu().numpy() if output.is_floating_point() else output.cpu().numpy())
    widest = max((len(row) for row in outputs), default=0)
    padded = [
        np.pad(row, [(0, widest - len(row))] + [(0, 0)] * (row.ndim - 1), constant_values=IGNORED) for row in outputs
    ]
    return np.stack(padded) if padded else np.empty((0, 0))
