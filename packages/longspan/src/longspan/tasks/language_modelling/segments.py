"""Segments of a chunk, each with a global summary token: their boundaries, and which are hidden.

Ainslie et al. 2020, "ETC", arXiv 2004.08483, section 3: a summary token for each sentence comes before the text as a
global token, and contrastive predictive coding hides all words of some sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.tasks.predicting import pad

ENDS = (".", "!", "?", "…", "。", "！", "？")
"""Last characters of a sentence's last token."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How chunks are split into segments.

    Attributes:
        count: the most segments of a chunk; the last one has the rest.
        ends: `(V,)` bool, the tokens that end a sentence; `None` for segments of equal size.
        size: tokens of segments of equal size.
        summary_id: the id of summary tokens.
        hidden_share: share of a chunk's segments whose words are all hidden, at least one if there are two;
            0 hides none.
    """

    count: int
    ends: np.ndarray | None
    size: int
    summary_id: int
    hidden_share: float = 0.0

    def owners(self, content: np.ndarray) -> np.ndarray:
        """Returns the number of each token's segment, `(N,)` int64, from 0 without gaps."""
        if self.ends is None:
            numbers = np.arange(len(content)) // self.size
        else:
            ends = self.ends[content]
            numbers = np.cumsum(ends) - ends  # a token that ends a sentence belongs to it
        return np.minimum(numbers, self.count - 1).astype(np.int64)

    def hidden(self, count: int, key: int) -> np.ndarray:
        """Returns which of `count` segments are hidden, in rising order."""
        if count < 2 or not self.hidden_share:
            return np.empty(0, dtype=np.int64)
        number = min(max(1, round(self.hidden_share * count)), count - 1)
        # Another stream of numbers than that of single tokens.
        raw = np.random.Philox(key=key ^ 1 << 127).random_raw(count)
        return np.sort(np.argsort(raw, kind="stable")[:number])


def sentence_ends(tokenizer: Any) -> np.ndarray:
    """Returns the tokens of a tokenizer that end a sentence, by their last character, `(V,)` bool."""
    return _sentence_ends(tokenizer, len(tokenizer))


@lru_cache(maxsize=1)  # cached, since training and validation rows use the same tokenizer
def _sentence_ends(tokenizer: Any, size: int) -> np.ndarray:
    special = set(tokenizer.all_special_ids)
    texts = [tokenizer.decode([number]).rstrip() for number in range(size)]
    return np.array([text.endswith(ENDS) and number not in special for number, text in enumerate(texts)])


def summary_token(tokenizer: Any) -> int:
    """Returns the id of summary tokens: the one at the beginning of a text, or else one that separates texts.

    Raises:
        InputError: the tokenizer has none of these.
    """
    for name in ("cls_token_id", "bos_token_id", "sep_token_id", "eos_token_id"):
        if (number := getattr(tokenizer, name, None)) is not None:
            return int(number)
    raise InputError("the tokenizer has no cls_token, bos_token, sep_token or eos_token for summaries; set one")


def padded_segments(features: Sequence[dict[str, Any]], padding: int) -> dict[str, Tensor]:
    """Pads the original hidden segments of B rows, each after its summary token: `contrast_ids` `(B, K, L)` int64,
    `contrast_mask` bool, and `contrast_places` `(B, K)` int64, the positions of the summary tokens, −1 without a
    segment; empty if no row has any.
    """
    most = max(len(feature["segments"]) for feature in features)
    if not most:
        return {}
    rows = [{"input_ids": segment} for feature in features for segment in feature["segments"]]
    filled = pad(rows, {"input_ids": padding})
    places = torch.full((len(features), most), -1)
    shape = (len(features), most, filled["input_ids"].shape[1])
    ids, mask = torch.full(shape, padding), torch.zeros(shape, dtype=torch.bool)
    start = 0
    for row, each in enumerate(features):
        count = len(each["segments"])
        places[row, :count] = torch.as_tensor(each["segment_places"])
        ids[row, :count] = filled["input_ids"][start : start + count]
        mask[row, :count] = filled["attention_mask"][start : start + count]
        start += count
    return {"contrast_ids": ids, "contrast_mask": mask, "contrast_places": places}
