"""Summarisation with an encoder-decoder: rows to features, batches, summaries, ROUGE.

The first token is global by default, as in LED: the collator always creates the mask. Sentences of a summary are
separated by newlines in the target, for rougeLsum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan.settings import Form, Range
from longspan.stacks import stack_config
from longspan.tasks.base import Outcome
from longspan.tasks.metrics.rouge import Rouge
from longspan.tasks.predicting import FeatureRows
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.summaries.importance import UPPER_BOUND, labels_of, load_tagger, weights_of_labels
from longspan.tasks.tokenizers import encode, encode_placed, encode_target, padding_id
from longspan.tasks.writing import WritingTask, collate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Summarization(WritingTask, SummaryTask):
    """How rows become features and how summaries are scored; the options under `task:` in a recipe.

    Attributes:
        global_tokens: "first" makes the first token global (LED), "question" the question and the tokens before
            it, "none" none.
        prefix: text before every document, such as "summarize: ".
        stemmer: whether ROUGE uses Porter's stemmer.
        references: with several references, "max" or "mean" over them.
        rouge_tokens: "auto", "rouge_score" or "unicode"; see `Rouge`.
        importance: for models that weight tokens (the stack `top_down` with `pooling: importance`): "tagger" trains
            with the labels of the references and predicts with those of the `tagger` (AdaPool); "labels" always uses
            the labels, which is an upper bound (OracleAdaPool); "none" for other models.
        tagger: folder of a model that was trained for the task `importance`, with the same tokenizer.
        pad_to_multiple_of: pad batches to a multiple of this number of tokens; results do not depend on it.
    """

    name: ClassVar[str] = "summarization"
    generates: ClassVar[bool] = True

    global_tokens: Literal["first", "question", "none"] = "first"
    prefix: Annotated[str, Form(r"[\s\S]*", "a text", 10_000)] = ""
    stemmer: bool = False
    references: Literal["max", "mean"] = "max"
    rouge_tokens: Literal["auto", "rouge_score", "unicode"] = "auto"
    importance: Literal["none", "tagger", "labels"] = "none"
    tagger: str | None = None
    pad_to_multiple_of: Annotated[int, Range(1, 65_536)] = 1

    def __post_init__(self) -> None:
        """Raises `InputError` for a tagger without effect, and for a missing one."""
        super().__post_init__()
        if (self.importance == "tagger") != (self.tagger is not None):
            raise InputError(
                f"task.importance is {self.importance!r} and task.tagger is {self.tagger!r}; give the folder of a "
                "tagger with importance='tagger', and only there"
            )

    @property
    def rouge(self) -> Rouge:
        """Returns ROUGE with the options `stemmer`, `references` and `rouge_tokens`."""
        return Rouge(stemmer=self.stemmer, references=self.references, tokens=self.rouge_tokens)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more tokens than the model has positions for, and for importance in a model that does
        not weight tokens.
        """
        super().check_model(config)
        weighs = stack_config(config.stack).reads().importance
        if weighs != (self.importance != "none"):
            pooling = "weighs tokens by importance" if weighs else "does not weigh tokens"
            raise InputError(
                f"task.importance is {self.importance!r}, but the model {pooling}; give 'tagger' or 'labels' with "
                "model.stack={stack: top_down, pooling: importance}, and 'none' otherwise"
            )

    def dataset(
        self, rows: Sequence[SummaryRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """As in every summary task; also checks the tagger and its tokenizer before training."""
        if self.tagger is not None:
            load_tagger(self.tagger).check_tokenizer(tokenizer)
        return super().dataset(rows, tokenizer, training=training, seed=seed, folder=folder)

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Returns `input_ids`, `global_tokens` (the number of global first tokens) and, if the row has
        a summary, `labels`.

        Logs once that documents are truncated. Models that weight tokens also get their `importance`.

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
        if self.importance != "none":
            features["importance"] = self._importance(row, ids, tokenizer, oracle=self.importance == "labels")
        if row.references:
            features["labels"] = encode_target(tokenizer, row.reference, max_tokens=self.max_target_tokens)
        return features

    def training_features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """As `features`, with the importance from the reference."""
        if self.importance == "tagger":
            return replace(self, importance="labels", tagger=None).features(row, tokenizer)
        return self.features(row, tokenizer)

    def _importance(self, row: SummaryRow, ids: list[int], tokenizer: Any, *, oracle: bool) -> list[float]:
        """Returns the importance of each token, from the reference or else from the tagger; that of a question is 0."""
        first, pair = (self.prefix + row.source, None) if row.question is None else (row.question, row.source)
        first = first if pair is None else self.prefix + first
        again, offsets = encode_placed(tokenizer, first, pair=pair, max_tokens=self.max_source_tokens)
        assert again == ids
        if oracle:
            text = first if pair is None else pair
            return weights_of_labels(labels_of(offsets, text, row.reference, row.language))
        assert self.tagger is not None
        tagger = load_tagger(self.tagger)
        tagger.check_tokenizer(tokenizer)
        return tagger.probabilities(ids, offsets)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """As in every summary task; the flavour includes whether the model used labels of the references."""
        outcome = super().evaluate(model, tokenizer, rows, batch_size=batch_size)
        oracle = self.importance == "labels"
        return replace(outcome, flavour=f"{outcome.flavour}; {UPPER_BOUND}") if oracle else outcome

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads B rows to `input_ids` (B, S) with both masks, and `labels` (B, T), left out if no row has any."""
        return partial(collate, padding=padding_id(tokenizer), multiple=self.pad_to_multiple_of)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """Decodes `(rows, T)` token ids to summaries, one sentence per line; negative ids are padding.

        A summary without line breaks is split into sentences here, for rougeLsum.
        """
        if len(predictions) != len(rows):
            raise InputError(f"there are {len(predictions)} predictions for {len(rows)} rows; give one for each")
        ids = np.asarray(predictions)
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        decode = tokenizer.decode
        texts = (decode(row.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids)
        return [as_lines(text) for text in texts]


def as_lines(text: str) -> str:
    """Returns a summary with one sentence per line: unchanged if it has line breaks, else split into sentences."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) == 1:
        lines = [sentence.text for sentence in split_sentences(lines[0])]
    return "\n".join(lines)


@cache
def _warn_of_cut_documents(limit: int) -> None:
    """Logs it once for each limit."""
    logger.warning("some documents have more tokens than max_source_tokens=%d and are cut", limit)
