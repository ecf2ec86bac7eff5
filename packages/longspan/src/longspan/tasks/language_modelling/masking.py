"""Masked chunks of a tokenised corpus.

Masks are computed from a key with raw numbers of a counter-based generator. In training the key is (seed, epoch,
chunk), so that masks change in every epoch and a resumed run has the same ones; in validation it is the chunk's content
alone, so that any two models with the same tokenizer have the same masks, for any order, batch or seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from longspan.data.corpus.tokens import TOKENS, Stream
from longspan.data.ragged import Ragged
from longspan.models.losses import IGNORED
from longspan.tasks.language_modelling.segments import Segments
from longspan.tasks.packing import Packing
from longspan.tasks.predicting import example_key


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How tokens are masked (Devlin et al. 2019, §3.1).

    Attributes:
        probability: share of the tokens of a chunk that are predicted, without special tokens; the number is rounded,
            and at least one.
        mask_share: share of these that are replaced by the mask token.
        random_share: share that is replaced by random ordinary tokens; the rest is unchanged.
        mask_id: the mask token.
        ordinary: `(N,)` int64, ids that are not special tokens.
    """

    probability: float
    mask_share: float
    random_share: float
    mask_id: int
    ordinary: np.ndarray

    def apply(self, ids: np.ndarray, fixed: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and labels, both `(T,)` int64, for the ids `(T,)`; those with `fixed` `(T,)` bool
        are never masked.
        """
        free = np.flatnonzero(~fixed)
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        if not len(free):
            return ids, labels
        count = max(1, round(self.probability * len(free)))
        # numpy guarantees that raw 64-bit numbers are the same in all releases.
        raw = np.random.Philox(key=key).random_raw(len(free) + 2 * count)
        chosen = free[np.sort(np.argsort(raw[: len(free)], kind="stable")[:count])]
        share = (raw[len(free) : len(free) + count] >> np.uint64(11)) * 2.0**-53
        others = self.ordinary[raw[len(free) + count :] % np.uint64(len(self.ordinary))]
        labels[chosen] = ids[chosen]
        hidden = np.where(share < self.mask_share + self.random_share, others, ids[chosen])
        shown = ids.copy()
        shown[chosen] = np.where(share < self.mask_share, self.mask_id, hidden)
        return shown, labels


@dataclass(eq=False, kw_only=True)
class Masks:
    """Makes rows of training of the contents of chunks, with special tokens and masks.

    Attributes:
        masking: how tokens are masked.
        special_ids: ids that are never masked.
        before: special tokens at the beginning of each chunk.
        after: special tokens at its end.
        max_tokens: length of a chunk with them.
        segments: how chunks are split into segments, each with a summary token before the chunk; None for none.
    """

    masking: Masking
    special_ids: np.ndarray
    before: list[int]
    after: list[int]
    max_tokens: int
    segments: Segments | None = None

    @property
    def room(self) -> int:
        """The number of tokens of a chunk without the special ones."""
        summaries = 0 if self.segments is None else self.segments.count
        return self.max_tokens - len(self.before) - len(self.after) - summaries

    def row(self, content: np.ndarray, key: int) -> dict[str, Any]:
        """Returns `input_ids` and `labels` of a chunk, `(T,)` int64; with segments, also those of `with_segments`."""
        ids = np.concatenate([self.before, content, self.after]).astype(np.int64)
        fixed = np.isin(ids, self.special_ids)
        if self.segments is not None:
            return self.with_segments(self.segments, content, ids, fixed, key)
        shown, labels = self.masking.apply(ids, fixed, key)
        return {"input_ids": shown, "labels": labels}

    def with_segments(
        self, segments: Segments, content: np.ndarray, ids: np.ndarray, fixed: np.ndarray, key: int
    ) -> dict[str, Any]:
        """Returns a chunk after the summary tokens of its segments: also `belongs_to` `(T,)` int64, the number of
        `summaries`, and the original hidden `segments` with the positions of their tokens, `segment_places`. Words of
        hidden segments are not predicted individually.
        """
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


@dataclass(eq=False, kw_only=True)
class MaskedChunks(Masks, Dataset[dict[str, Any]]):
    """Chunks of at most `max_tokens` tokens, including special tokens, masked on access.

    Attributes:
        files: the tokenised corpus.
        between: the token between two documents in a chunk; with None, a chunk has only one document.
        max_tokens: length of a chunk; only the last of a document (or of the corpus) is shorter.
        seed: random seed of the training masks; None uses each chunk's content instead of seed, epoch and number.
    """

    files: Ragged
    between: int | None
    seed: int | None

    def __post_init__(self) -> None:
        self.epoch = 0
        self.ends = self.files.ends
        self.stream = None if self.between is None else Stream(self.files, self.between)
        # The end of each document, counted in chunks.
        self.chunks = np.cumsum(-(-np.diff(self.ends, prepend=0) // self.room))

    def __len__(self) -> int:
        """Returns the number of chunks."""
        if self.stream is None:
            return int(self.chunks[-1])
        return -(-(len(self.stream) - 1) // self.room)

    def packing(self) -> Packing:
        """Returns how the documents fill the chunks, without the summary tokens."""
        if self.stream is None:
            last, size = self.chunks - 1, self.files.values
            first = np.append(0, self.chunks[:-1])
            kept = self.chunks > first  # blank documents have no chunk
            first, last = first[kept], last[kept]
        else:  # the first token is a separator, which no chunk has
            starts, size = self.stream.starts, len(self.stream) - 1
            first = np.maximum(starts - 1, 0) // self.room
            last = np.maximum(np.append(starts[1:], len(self.stream)) - 2, 0) // self.room
        special = len(self.before) + len(self.after)
        tokens = size + len(self) * special
        return Packing.of_rows(first, last, rows=len(self), row_tokens=self.room + special, tokens=tokens)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the masks."""
        self.epoch = epoch

    def content(self, index: int) -> np.ndarray:
        """Returns the ids of a chunk without its first and last special tokens."""
        if self.stream is not None:
            # There is no separator before the first document.
            return self.stream.read(1 + index * self.room, 1 + (index + 1) * self.room)
        document = int(np.searchsorted(self.chunks, index, side="right"))
        start = int(self.ends[document - 1]) if document else 0
        start += (index - (int(self.chunks[document - 1]) if document else 0)) * self.room
        return self.files.read(TOKENS, start, min(start + self.room, int(self.ends[document])))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the row of a chunk, see `Masks.row`."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        content = self.content(index)
        return self.row(content, example_key(self.seed, self.epoch, index, content.astype("<i8").tobytes()))
