"""Models that write, behind one door: texts in as token ids, and out comes what the model writes about each.

`OwnWriter` runs Longspan's classes, and what they were made from: BART, mBART, LED, Pegasus, BigBird-Pegasus, Marian.
`SequenceWriter` runs any other encoder–decoder of transformers as it is (T5, PEGASUS-X, LongT5, …), and `ChatWriter` of
`longspan_documents.inference.abstractive.chat` causal models that follow instructions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from longspan.errors import InputError, one_sentence
from longspan.settings import LARGEST, check_kind
from longspan_documents.inference.abstractive.options import check_length, generation_options, prefix_of, source_limit
from longspan_documents.inference.encoders import batches_of, padded
from longspan_documents.inference.results import Extent
from longspan_documents.inference.verbs import Decoding

BATCH_TOKENS = 8_192
"""Tokens, padding included, of a batch of parts."""
FARTHEST = 16
"""A model is lengthened to so many times its own length at most, as LED was made from BART (Beltagy et al. 2020, 7)."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is wanted of a text.

    Attributes:
        query: what the summary is to be about, or None.
        extent: how long it is to be, for models that follow instructions.
        what: the text is: a document, a part of one, or summaries of its parts, one behind the other.
    """

    query: str | None = None
    extent: Extent = field(default_factory=Extent)
    what: Literal["document", "part", "summaries"] = "document"


class Written(NamedTuple):
    """What a model wrote about a text, and whether it came to an end before the longest length did."""

    text: str
    ended: bool = True


class Writer:
    """A model that writes, ready for any number of texts.

    Args:
        model, tokenizer: loaded, on one device.
        source: folder or name of the model, for messages.
        decoding: how it writes.
        said: its `config.json`.
        language: ISO 639-1 code of the texts, for models that write several and are told which.

    Attributes:
        limit: tokens that it reads at once; None where nothing bounds it.
        options: keyword arguments of `generate`.
        prefix: what stands before every text, such as T5's "summarize: ".
    """

    follows: ClassVar[bool] = False
    """Whether it follows instructions, so that it can be told a length and a query."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        source: str,
        decoding: Decoding,
        said: dict[str, Any],
        language: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.source, self.decoding = model, tokenizer, source, decoding
        self.options = generation_options(model, tokenizer, source, decoding, said, language)
        self.prefix = prefix_of(said)
        self.limit, ends = self._limit()
        most = decoding.max_source_tokens
        if most is not None:
            if self.limit is not None and ends and most > self.limit:
                raise InputError(
                    f"max_source_tokens={most} is more than the {self.limit} tokens that model {source!r} has "
                    "positions for; lower it, or leave it out"
                )
            self.limit = most

    @property
    def new_tokens(self) -> int:
        """Tokens that it may write."""
        return self.options.get("max_new_tokens") or self.model.generation_config.max_new_tokens or 0

    def _limit(self) -> tuple[int | None, bool]:
        """How many tokens it reads at once, and whether it has no positions behind them."""
        raise NotImplementedError

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """A text as the model reads it: `input_ids`, a list, and what else belongs to them.

        Raises:
            InputError: a query that the model does not read.
        """
        raise NotImplementedError

    def lengthened(self, tokens: int) -> Self | None:
        """This model, made to read so many tokens; None where it cannot be."""
        return None

    def with_options(self, options: dict[str, Any]) -> Self:
        """This model, told more of `generate`'s arguments, which come before its own.

        `max_length`, which counts the token that a decoder starts from, takes the place of `max_new_tokens`.

        Raises:
            InputError: more new tokens than it can write.
        """
        options = dict(options)
        if (most := options.pop("max_length", None)) is not None:
            check_kind(most, "max_length", Integral, "a whole number")
            options["max_new_tokens"] = most - 1
        told = copy.copy(self)
        told.options = self.options | options
        if "max_new_tokens" in told.options:
            check_length(self.model, self.source, told.options)
        return told

    def write(self, encoded: Sequence[dict[str, Any]], stream: Callable[[str], None] | None = None) -> list[Written]:
        """What the model writes about each text.

        Args:
            encoded: what `encode` gave.
            stream: called with each piece of the first text, of one alone, as it is written.

        Raises:
            InputError: the model cannot write as it is configured.
        """
        texts = [Written("")] * len(encoded)
        for chosen, written in self.write_batches(encoded, stream if len(encoded) == 1 else None):
            for index, text in zip(chosen, written, strict=True):
                texts[index] = text
        return texts

    def write_batches(
        self, encoded: Sequence[dict[str, Any]], stream: Callable[[str], None] | None = None
    ) -> Iterator[tuple[list[int], list[Written]]]:
        """The same in batches of texts of like length, as they are done: the places of the texts, and what was written;
        arguments and errors as in `write`."""
        from longspan.progress import progress_bar

        lengths = [len(each["input_ids"]) for each in encoded]
        batches = batches_of(lengths, self._batch_tokens())
        if self._counts_padding():
            batches = [list(equal) for chosen in batches for _, equal in groupby(chosen, lengths.__getitem__)]
        for chosen in progress_bar(batches, doing="writing"):
            yield chosen, self._write([encoded[index] for index in chosen], stream)

    def _batch_tokens(self) -> int:
        return BATCH_TOKENS

    def _counts_padding(self) -> bool:
        """Whether what it writes of a text depends on the padding beside it."""
        return False

    def _write(self, batch: Sequence[dict[str, Any]], stream: Callable[[str], None] | None) -> list[Written]:
        import torch

        from longspan.inference.generate import streamer_of

        inputs = {name: value.to(self.model.device) for name, value in self._inputs(batch).items()}
        failed: list[Exception] = []
        beams = self.options.get("num_beams") or self.model.generation_config.num_beams or 1
        streamer = None if stream is None or beams > 1 else streamer_of(self.tokenizer, stream, failed)
        try:
            with (
                torch.inference_mode(),
                one_sentence(f"model {self.source!r} cannot write a summary as it is configured"),
            ):
                output = self.model.generate(**inputs, **self.options, streamer=streamer)
        except InputError:
            if failed:  # not the model: the output is full, or closed
                raise failed[0] from None
            raise
        ends = self.options.get("eos_token_id", self.model.generation_config.eos_token_id)
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        written = [
            Written(self._text(row, inputs), not ends or not ends.isdisjoint(self._new(row, inputs))) for row in output
        ]
        if stream is not None and streamer is None:
            stream(written[0].text)
        return written

    def _new(self, row: Any, inputs: dict[str, Any]) -> list[int]:
        """The tokens of a row that were written; the first of a decoder, which may be one that ends, was not."""
        return row[1:].tolist()

    def _inputs(self, batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Arguments of `generate` for a batch: `input_ids` and `attention_mask` `(B, S)`, padded behind."""
        padding = self.tokenizer.pad_token_id
        ids, real = padded([each["input_ids"] for each in batch], 0 if padding is None else padding)
        return {"input_ids": ids, "attention_mask": real.long()}

    def _text(self, row: Any, inputs: dict[str, Any]) -> str:
        return self.tokenizer.decode(row, skip_special_tokens=True).strip()


class SequenceWriter(Writer):
    """An encoder–decoder of transformers, run as it is."""

    def _limit(self) -> tuple[int | None, bool]:
        return source_limit(self.model, self.tokenizer)

    def lengthened(self, tokens: int) -> Self | None:
        """See `Writer.lengthened`: T5's kind, which tells places by distance, sees windows as wide as it was long."""
        from longspan.checkpoints.lengthening.in_place import read_further

        own, ends = self._limit()
        assert own is not None
        wanted = doubled(own, tokens)
        if ends or wanted > FARTHEST * own or self.decoding.max_source_tokens or not read_further(self.model, own):
            return None
        longer = copy.copy(self)  # of the same model, in which texts that are no longer come out as before
        longer.limit = wanted
        return longer

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """See `Writer.encode`; such models read no query."""
        if asked.query is not None:
            raise InputError(
                f"model {self.source!r} reads no query, since it was not trained on any; leave the query "
                f"{asked.query!r} or the model out"
            )
        return {"input_ids": list(self.tokenizer(self.prefix + text, verbose=False)["input_ids"])}


class OwnWriter(Writer):
    """A Longspan encoder–decoder or prefix language model.

    Args:
        task: the task whose tagger tells how important each token is, for a model that weighs them; else None.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        source: str,
        decoding: Decoding,
        said: dict[str, Any],
        language: str | None = None,
        task: Any | None = None,
    ) -> None:
        super().__init__(model, tokenizer, source, decoding, said, language)
        self.task = task
        self.global_ids = _global_ids(tokenizer) if said.get("model_type") == "led" else None
        self._longer: tuple[int, Self] | None = None

    def _limit(self) -> tuple[int, bool]:
        positions = self.model.config.max_position_embeddings
        return positions if self.model.config.is_encoder_decoder else positions - self.new_tokens - 1, True

    def _batch_tokens(self) -> int:
        # A prefix language model writes behind its source, where padding would stand.
        return BATCH_TOKENS if self.model.config.is_encoder_decoder else 1

    def _counts_padding(self) -> bool:
        from longspan.attention.support import supports

        config = self.model.config
        layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
        return not all(supports(layer, "padding") for layer in layers)

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """See `Writer.encode`: a query stands before the text, and its tokens are global; a model that weighs tokens
        is told how important its tagger holds each."""
        from longspan.data.summaries.rows import SummaryRow

        task, query = self.task, asked.query
        if query is not None:
            from longspan.tasks import task_beside

            task = task_beside(Path(self.source))
            if task is None or getattr(task, "global_tokens", None) != "question":
                raise InputError(
                    f"model {self.source!r} reads no query, since it was not trained with task.global_tokens=question; "
                    f"leave the query {query!r} or the model out"
                )
        elif task is None:
            return {"input_ids": list(self.tokenizer(self.prefix + text, verbose=False)["input_ids"])}
        row = SummaryRow(id=self.source, pieces=(text,), question=query)
        features = replace(task, max_source_tokens=LARGEST).features(row, self.tokenizer)
        wanted = ("input_ids", "importance", *(("global_tokens",) if query is not None else ()))
        return {name: features[name] for name in wanted if name in features}

    def _inputs(self, batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch

        inputs = super()._inputs(batch)
        length = inputs["input_ids"].shape[1]
        if "global_tokens" in batch[0]:
            leading = torch.tensor([[each["global_tokens"]] for each in batch])
            inputs["global_attention_mask"] = torch.arange(length) < leading
        elif self.global_ids is not None:
            marked = torch.isin(inputs["input_ids"], torch.tensor(self.global_ids))
            inputs["global_attention_mask"] = marked | (torch.arange(length) == 0)
        if "importance" in batch[0]:
            rows = [[*each["importance"], *[0.0] * (length - len(each["importance"]))] for each in batch]
            inputs["importance"] = torch.tensor(rows)
        return inputs

    def lengthened(self, tokens: int) -> Self | None:
        """See `Writer.lengthened`. Full attention becomes windows as wide as the model was long, in which no two tokens
        have the same of the repeated positions; other mechanisms stay."""
        from longspan.checkpoints.lengthening.lengthen import lengthen

        config = self.model.config
        own = config.max_position_embeddings
        spare = own - self._limit()[0]  # for what is written behind the text, in one stack
        wanted = doubled(own, tokens + spare)
        if wanted > FARTHEST * own or self.task is not None or self.decoding.max_source_tokens is not None:
            return None
        if self._longer is None or self._longer[0] != wanted:
            layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
            windows = [layer.windows_instead(own) for layer in layers]
            attention = layers if None in windows or not config.is_encoder_decoder else windows[0]
            try:
                model = lengthen(self.model, attention=attention, max_tokens=wanted)
            except InputError:  # a stack with attention of its own, or positions that nobody can repeat
                return None
            longer = type(self)(model, self.tokenizer, self.source, self.decoding, {})
            longer.options, longer.prefix, longer.global_ids = self.options, self.prefix, self.global_ids
            longer.limit = wanted - spare
            self._longer = (wanted, longer)
        return self._longer[1]


def doubled(own: int, tokens: int) -> int:
    """The length of a model, doubled until it holds so many tokens."""
    while own < tokens:
        own *= 2
    return own


def _global_ids(tokenizer: Any) -> list[int]:
    """Tokens that are global in a published LED wherever they stand, besides the first of all: PRIMERA's between
    documents (Xiao et al. 2022, 2.1)."""
    return [number for token, number in tokenizer.get_added_vocab().items() if token == "<doc-sep>"]
