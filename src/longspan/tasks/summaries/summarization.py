"""Summarisation with an encoder and a decoder: rows to features, batches, summaries, ROUGE.

The first token is global by default, as in LED; whoever trains cannot forget it, because the collator always makes the
mask. Sentences of a summary are separated by newlines in the target, so that rougeLsum can be taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import Count, Form, Range
from longspan.tasks.base import Outcome
from longspan.tasks.metrics.rouge import MEASURES, Rouge
from longspan.tasks.predicting import FeatureRows, pad, predict
from longspan.tasks.summaries.base import SummaryTask, prediction_lines
from longspan.tasks.tokenizers import encode, encode_target, padding_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Summarization(SummaryTask):
    """How rows become features and how summaries are scored; the options under `task:` in a recipe.

    Attributes:
        max_source_tokens: a document is cut to so many tokens, special tokens included.
        max_target_tokens: a training target is cut to so many tokens; scores always use the whole reference.
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

    score_names: ClassVar[tuple[str, ...]] = MEASURES

    max_source_tokens: Count = 16384
    max_target_tokens: Count = 256
    global_tokens: Literal["first", "question", "none"] = "first"
    prefix: Annotated[str, Form(r"[\s\S]*", "a text", 10_000)] = ""
    stemmer: bool = False
    references: Literal["max", "mean"] = "max"
    rouge_tokens: Literal["auto", "rouge_score", "unicode"] = "auto"
    pad_to_multiple_of: Annotated[int, Range(1, 65_536)] = 1

    @property
    def flavour(self) -> str:
        """Which ROUGE `scores` gives, in words."""
        return self._rouge().flavour

    def model_class(self) -> Any:
        """`LongspanForConditionalGeneration`."""
        from longspan.models import LongspanForConditionalGeneration

        return LongspanForConditionalGeneration

    def check_model(self, config: Any) -> None:
        """Refuse more tokens than the model has positions for."""
        for name, room, remedy in (
            ("max_source_tokens", config.max_position_embeddings, "raise model.max_tokens"),
            ("max_target_tokens", config.max_decoder_position_embeddings, "lower it"),
        ):
            if getattr(self, name) > room:
                raise InputError(
                    f"task.{name} is {getattr(self, name)} but the model has positions for {room} tokens; {remedy}"
                )

    def fitted(self, config: Any) -> Self:
        """Read as much as the model has positions for, at most."""
        return replace(self, max_source_tokens=min(self.max_source_tokens, config.max_position_embeddings))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """Write a summary of every row, by the model's own generation settings, and take ROUGE."""
        dataset = FeatureRows(rows, partial(self.features, tokenizer=tokenizer))
        ids = predict(model, dataset, self.collator(tokenizer), batch_size=batch_size, generate=True)
        texts = self.texts(ids, rows, tokenizer)
        return Outcome(scores=self.scores(texts, rows), lines=prediction_lines(texts, rows), flavour=self.flavour)

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """`input_ids`, `global_tokens` (how many leading tokens are global) and, where the row has a summary, `labels`.

        Also `source_tokens` and `target_tokens`, the lengths before cutting. The log says once that documents are cut;
        `lengths` counts them.

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
        features: dict[str, Any] = {"input_ids": ids, "global_tokens": min(marked, len(ids)), "source_tokens": count}
        if row.references:
            labels, length = encode_target(tokenizer, row.reference, max_tokens=self.max_target_tokens)
            features |= {"labels": labels, "target_tokens": length}
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

    def scores(self, texts: Sequence[str], rows: Sequence[SummaryRow]) -> dict[str, float]:
        """Mean F of ROUGE-1, -2, -L and -Lsum in percent, against whole references; see `flavour`."""
        for row in rows:
            _ = row.reference  # a row without one raises, by its name
        return self._rouge().mean(texts, [row.references for row in rows])

    def metric(self, rows: Sequence[SummaryRow], tokenizer: Any) -> Callable[[Any], dict[str, float]]:
        """`compute_metrics` for a `Seq2SeqTrainer` of one's own, whose evaluation set is these rows in this order."""

        def compute(prediction: Any) -> dict[str, float]:
            ids = prediction.predictions
            return self.scores(self.texts(ids[0] if isinstance(ids, tuple) else ids, rows, tokenizer), rows)

        return compute

    def lengths(self, rows: Iterable[SummaryRow], tokenizer: Any) -> Lengths:
        """Tokenize a stream of rows and count: how long they are, and how many are cut."""
        sources: list[int] = []
        targets: list[int] = []
        for row in rows:
            features = self.features(row, tokenizer)
            sources.append(features["source_tokens"])
            targets += [features["target_tokens"]] if "target_tokens" in features else []
        return Lengths(
            source=Spread.of(sources, self.max_source_tokens), target=Spread.of(targets, self.max_target_tokens)
        )

    def _rouge(self) -> Rouge:
        return Rouge(stemmer=self.stemmer, references=self.references, tokens=self.rouge_tokens)


def collate(features: Sequence[dict[str, Any]], *, padding: int, multiple: int = 1) -> dict[str, Tensor]:
    """See `Summarization.collator`; the features' `global_tokens` say how many first tokens are global."""
    labelled = sum("labels" in feature for feature in features)
    if 0 < labelled < len(features):
        raise InputError(f"only {labelled} of {len(features)} rows in a batch have a summary; leave out the others")
    leading = [feature.get("global_tokens", 0) for feature in features]
    return pad(features, {"input_ids": padding, "labels": IGNORED}, leading=leading, multiple=multiple)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Token counts of many rows."""

    rows: int
    median: int
    ninetieth: int
    longest: int
    cut: int
    """Rows with more tokens than the limit."""

    @classmethod
    def of(cls, counts: Sequence[int], limit: int) -> Spread:
        """The spread of some counts; zeros where there are none."""
        if not counts:
            return cls(rows=0, median=0, ninetieth=0, longest=0, cut=0)
        median, ninetieth = (int(np.quantile(counts, share, method="higher")) for share in (0.5, 0.9))
        cut = sum(count > limit for count in counts)
        return cls(rows=len(counts), median=median, ninetieth=ninetieth, longest=max(counts), cut=cut)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long documents and summaries are, in tokens."""

    source: Spread
    target: Spread

    def __str__(self) -> str:
        """One line for each."""
        return "\n".join(
            f"{name}: {spread.rows} rows, median {spread.median} tokens, 90 % up to {spread.ninetieth}, "
            f"longest {spread.longest}; {spread.cut} are cut"
            for name, spread in (("documents", self.source), ("summaries", self.target))
        )


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
