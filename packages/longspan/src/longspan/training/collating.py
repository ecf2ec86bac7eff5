"""Global tokens in batches of a collator of transformers, which pads only the names that it knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.settings import check_kind, check_several, show

MASK = "global_attention_mask"


class DataCollatorWithGlobalAttention:
    """Wraps a data collator, and adds a `global_attention_mask` `(B, T)` int64, 1 = global, to its batches.

    A row has the mask of its features if they have one, padded with 0 on the same side as the row; otherwise its tokens
    with one of `global_token_ids` are global. Padding is never global.

    Args:
        collator: returns tensors `input_ids` and `attention_mask` `(B, T)` of the features, such as
            `transformers.DataCollatorWithPadding` or `DataCollatorForSeq2Seq`.
        global_token_ids: ids such as that of `[SEP]` or `<doc-sep>`.

    Raises:
        InputError: when called: a mask of another length than its `input_ids`, or no mask and no ids.
    """

    def __init__(self, collator: Callable[[list[Any]], Any], global_token_ids: Collection[int] = ()) -> None:
        if not callable(collator):
            raise InputError(f"collator is {show(collator)}; give a function that makes a batch of rows")
        check_several(global_token_ids, "global_token_ids", "ids of tokens")
        for one in global_token_ids:
            check_kind(one, "global_token_ids", Integral, "whole numbers, the ids of tokens")
        self.collator = collator
        self.global_token_ids = list(global_token_ids)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        check_several(features, "features", "rows, each a mapping with 'input_ids'")
        for row, feature in enumerate(features):
            check_kind(feature, f"row {row} of features", Mapping, "a mapping with 'input_ids'")
        masks = [feature.get(MASK) for feature in features]
        for row, (mask, feature) in enumerate(zip(masks, features, strict=True)):
            if mask is None and not self.global_token_ids:
                raise InputError(f"row {row} has no {MASK}; give it one, or name global_token_ids")
            if mask is not None and len(mask) != len(feature["input_ids"]):
                raise InputError(
                    f"{MASK} of row {row} has {len(mask)} values for {len(feature['input_ids'])} input_ids; give "
                    "one each"
                )
        batch = self.collator([{name: value for name, value in row.items() if name != MASK} for row in features])
        missing = [name for name in ("input_ids", "attention_mask") if not isinstance(batch.get(name), Tensor)]
        if missing:
            raise InputError(f"collator={show(self.collator)} makes no tensor {missing[0]!r}; use one that does")
        ids, real = batch["input_ids"], batch["attention_mask"].bool()
        marked = torch.isin(ids, torch.tensor(self.global_token_ids, dtype=ids.dtype, device=ids.device))
        for row, mask in enumerate(masks):
            if mask is not None:
                marked[row, _places(real[row], len(mask))] = torch.as_tensor(mask, device=ids.device).bool()
        batch[MASK] = (marked & real).long()
        return batch


def _places(real: Tensor, length: int) -> slice:
    """Returns the slice of a row of that length in its padding, on the left or on the right."""
    padding = len(real) - length
    on_left = padding > 0 and not bool(real[:padding].any()) and bool(real[-1])
    return slice(padding, None) if on_left else slice(0, length)
