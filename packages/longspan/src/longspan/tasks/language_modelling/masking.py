"""Masked chunks of a tokenised corpus: which tokens are hidden, and what the model sees in their place.

Everything follows from a key, by raw numbers of a counter-based generator: in training the key is (seed, epoch,
chunk), so that masks are new in every epoch and a resumed run sees the same ones; in validation it is the chunk's
content alone, so that any two models with one tokenizer see the same holes, whatever the order, the batch or the seed.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from longspan.data.corpus.tokens import TOKENS, Stream
from longspan.data.ragged import Ragged
from longspan.models.losses import IGNORED
from longspan.tasks.language_modelling.segments import Segments
from longspan.tasks.predicting import example_key


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How tokens are hidden (Devlin et al. 2019, §3.1).

    Attributes:
        probability: share of the tokens of a chunk that are to be predicted, special tokens not counted; the number is
            rounded, and at least one.
        mask_share: of these, the share that is replaced by the mask token.
        random_share: the share that is replaced by any ordinary token; the rest stays as it is.
        mask_id: the mask token.
        ordinary: `(N,)` int64, ids that are no special tokens.
    """

    probability: float
    mask_share: float
    random_share: float
    mask_id: int
    ordinary: np.ndarray

    def apply(self, ids: np.ndarray, fixed: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels, both `(T,)` int64, for the ids `(T,)` of which `fixed` `(T,)` bool are never chosen."""
        free = np.flatnonzero(~fixed)
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        if not len(free):
            return ids, labels
        count = max(1, round(self.probability * len(free)))
        # Raw 64-bit numbers are guaranteed to stay the same from one release of numpy to the next.
        raw = np.random.Philox(key=key).random_raw(len(free) + 2 * count)
        chosen = free[np.sort(np.argsort(raw[: len(free)], kind="stable")[:count])]
        share = (raw[len(free) : len(free) + count] >> np.uint64(11)) * 2.0**-53
        others = self.ordinary[raw[len(free) + count :] % np.uint64(len(self.ordinary))]
        labels[chosen] = ids[chosen]
        hidden = np.where(share < self.mask_share + self.random_share, others, ids[chosen])
        shown = ids.copy()
        shown[chosen] = np.where(share < self.mask_share, self.mask_id, hidden)
        return shown, labels


@dataclass(eq=False)
class MaskedChunks(Dataset[dict[str, Any]]):
    """Chunks of at most `max_tokens` tokens, special tokens included, masked when they are asked for.

    Attributes:
        files: the tokenised corpus.
        masking: how tokens are hidden.
        special_ids: ids that are never hidden.
        before: special tokens at the beginning of each chunk.
        after: special tokens at its end.
        between: the token between two documents in a chunk; None lets no chunk hold two documents.
        max_tokens: length of a chunk; only the last of a document (or of the corpus) is shorter.
        seed: of the training masks; None takes each chunk's content instead of seed, epoch and number.
        segments: how chunks are cut into segments with a summary token each, which stand before all others; None has
            none.
    """

    files: Ragged
    masking: Masking
    special_ids: np.ndarray
    _: KW_ONLY
    before: list[int]
    after: list[int]
    between: int | None
    max_tokens: int
    seed: int | None
    segments: Segments | None = None

    def __post_init__(self) -> None:
        summaries = 0 if self.segments is None else self.segments.count
        self.room = self.max_tokens - len(self.before) - len(self.after) - summaries
        self.epoch = 0
        self.ends = self.files.ends
        self.stream = None if self.between is None else Stream(self.files, self.between)
        # Where each document ends, counted in chunks.
        self.chunks = np.cumsum(-(-np.diff(self.ends, prepend=0) // self.room))

    def __len__(self) -> int:
        """Number of chunks."""
        if self.stream is None:
            return int(self.chunks[-1])
        return -(-(len(self.stream) - 1) // self.room)

    def set_epoch(self, epoch: int) -> None:
        """Take the masks of this epoch from now on."""
        self.epoch = epoch

    def content(self, index: int) -> np.ndarray:
        """The ids of a chunk without the special tokens around it."""
        if self.stream is not None:
            # No separator stands before the first document.
            return self.stream.read(1 + index * self.room, 1 + (index + 1) * self.room)
        document = int(np.searchsorted(self.chunks, index, side="right"))
        start = int(self.ends[document - 1]) if document else 0
        start += (index - (int(self.chunks[document - 1]) if document else 0)) * self.room
        return self.files.read(TOKENS, start, min(start + self.room, int(self.ends[document])))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`input_ids` and `labels` of a chunk, `(T,)` int64; with segments, what `with_segments` adds."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        content = self.content(index)
        ids = np.concatenate([self.before, content, self.after]).astype(np.int64)
        fixed = np.isin(ids, self.special_ids)
        key = example_key(self.seed, self.epoch, index, content.astype("<i8").tobytes())
        if self.segments is not None:
            return self.with_segments(self.segments, content, ids, fixed, key)
        shown, labels = self.masking.apply(ids, fixed, key)
        return {"input_ids": shown, "labels": labels}

    def with_segments(
        self, segments: Segments, content: np.ndarray, ids: np.ndarray, fixed: np.ndarray, key: int
    ) -> dict[str, Any]:
        """A chunk behind the summary tokens of its segments: also `belongs_to` `(T,)` int64, the number of `summaries`,
        and the hidden `segments` as they were with the places of their tokens, `segment_places`. What a hidden segment
        says is not to be guessed word by word."""
        owners = segments.owners(content)
        count = int(owners.max()) + 1 if len(owners) else 0
        hidden = segments.hidden(count, key)
        summary, before = np.full(count, segments.summary_id), np.full(count + len(self.before), -1)
        belongs = np.concatenate([before, owners, np.full(len(self.after), -1)]).astype(np.int64)
        whole = np.isin(belongs, hidden)
        ids = np.concatenate([summary, ids]).astype(np.int64)
        fixed = np.concatenate([np.ones(count, dtype=bool), fixed]) | whole
        shown, labels = self.masking.apply(ids, fixed, key)
        shown = np.where(whole, self.masking.mask_id, shown)
        return {
            "input_ids": shown,
            "labels": labels,
            "belongs_to": belongs,
            "summaries": count,
            "segments": [np.append(summary[:1], content[owners == each]) for each in hidden],
            "segment_places": hidden,
        }
