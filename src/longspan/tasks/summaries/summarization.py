"""Summarisation with an encoder and a decoder: rows to features, batches, summaries, ROUGE.

The first token is global by default, as in LED; whoever trains cannot forget it, because the collator always makes the
mask. Sentences of a summary are separated by newlines in the target, so that rougeLsum can be taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan.settings import Form, Range
from longspan.tasks.metrics.rouge import Rouge
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.tokenizers import encode, encode_target, padding_id
from longspan.tasks.writing import WritingTask, collate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Summarization(WritingTask, SummaryTask):
    """How rows become features and how summaries are scored; the options under `task:` in a recipe.

    Attributes:
        global_tokens: "first" makes the first token global (LED), "question" the question and what precedes it, "none"
            none.
        prefix: text before every document, such as "summarize: ".
        stemmer: ROUGE with Porter's stemmer.
        references: with several references, "max" or "mean" over them.
        rouge_tokens: "auto", "rouge_score" or "unicode"; see `Rouge`.
        pad_to_multiple_of: pad batches to a multiple of so many tokens; results do not depend on it.
    """

    name: ClassVar[str] = "summarization"
    generates: ClassVar[bool] = True

    global_tokens: Literal["first", "question", "none"] = "first"
    prefix: Annotated[str, Form(r"[\s\S]*", "a text", 10_000)] = ""
    stemmer: bool = False
    references: Literal["max", "mean"] = "max"
    rouge_tokens: Literal["auto", "rouge_score", "unicode"] = "auto"
    pad_to_multiple_of: Annotated[int, Range(1, 65_536)] = 1

    @property
    def rouge(self) -> Rouge:
        """As the options say."""
        return Rouge(stemmer=self.stemmer, references=self.references, tokens=self.rouge_tokens)

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """`input_ids`, `global_tokens` (how many leading tokens are global) and, where the row has a summary, `labels`.

        The log says once that documents are cut.

        Raises:
            InputError: the question alone is longer than `max_source_tokens`.
        """
        leading = 1
        if row.question is None:
            ids, count = encode(tokenizer, self.prefix + row.source, max_tokens=self.max_source_tokens)
        else:
            question = self.prefix + row.question
            leading = len(tokenizer(question)["input_ids"])
            if leading >= self.max_source_tokens:
                raise InputError(
                    f"the question of row {row.id!r} has {leading} tokens, which leaves nothing of "
                    f"max_source_tokens={self.max_source_tokens} for the document; raise max_source_tokens"
                )
            ids, count = encode(tokenizer, question, pair=row.source, max_tokens=self.max_source_tokens)
        if count > self.max_source_tokens:
            _warn_of_cut_documents(self.max_source_tokens)
        marked = {"first": 1, "question": leading, "none": 0}[self.global_tokens]
        features: dict[str, Any] = {"input_ids": ids, "global_tokens": min(marked, len(ids))}
        if row.references:
            features["labels"] = encode_target(tokenizer, row.reference, max_tokens=self.max_target_tokens)
        return features

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads B rows to `input_ids` (B, S) with both masks, and `labels` (B, T), left out where no row has any."""
        return partial(collate, padding=padding_id(tokenizer), multiple=self.pad_to_multiple_of)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """Summaries from `(rows, T)` token ids, one sentence per line; negative ids are padding.

        A summary whose model writes no line breaks is cut into sentences here, for rougeLsum.
        """
        if len(predictions) != len(rows):
            raise InputError(f"there are {len(predictions)} predictions for {len(rows)} rows; give one for each")
        ids = np.asarray(predictions)
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        decode = tokenizer.decode
        texts = (decode(row.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids)
        return [as_lines(text) for text in texts]


def as_lines(text: str) -> str:
    """A summary with one sentence per line: as it is where it has line breaks, else cut into sentences."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) == 1:
        lines = [sentence.text for sentence in split_sentences(lines[0])]
    return "\n".join(lines)


@cache
def _warn_of_cut_documents(limit: int) -> None:
    """Log it once for each limit."""
    logger.warning("some documents have more tokens than max_source_tokens=%d and are cut", limit)
