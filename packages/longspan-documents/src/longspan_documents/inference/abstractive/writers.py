"""Generative models with a common interface: encode texts, then generate a summary of each.

`OwnWriter` runs Longspan's classes and the architectures that convert to them: BART, mBART, LED, Pegasus,
BigBird-Pegasus, Marian. `SequenceWriter` runs any other encoder-decoder of transformers (T5, PEGASUS-X, LongT5, …), and
`ChatWriter` of `longspan_documents.inference.abstractive.chat` causal language models that follow instructions.
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
"""Tokens of a batch of parts, padding included."""
FARTHEST = 16
"""A model is lengthened to at most this multiple of its own length, as LED was made from BART (Beltagy et al. 2020,
7)."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The requested summary of a text.

    Attributes:
        query: the topic of the summary, or None.
        extent: its length, for models that follow instructions.
        what: the kind of text: a document, a part of one, or the concatenated summaries of its parts.
    """

    query: str | None = None
    extent: Extent = field(default_factory=Extent)
    what: Literal["document", "part", "summaries"] = "document"


class Written(NamedTuple):
    """A generated summary, and whether it ended before the maximum length."""

    text: str
    ended: bool = True


class Writer:
    """A loaded generative model.

    Args:
        model: on its device.
        tokenizer: the tokenizer of the model.
        source: folder or Hub name of the model, for messages.
        decoding: options of generation.
        config_json: the model's `config.json`.
        language: ISO 639-1 code of the texts, for multilingual models.

    Attributes:
        limit: maximum input length in tokens; None if it is unlimited.
        options: keyword arguments of `generate`.
        prefix: text before every input, such as T5's "summarize: ".
    """

    follows: ClassVar[bool] = False
    """Whether the model follows instructions, and so can be prompted for a length and a query."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        source: str,
        decoding: Decoding,
        config_json: dict[str, Any],
        language: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.source, self.decoding = model, tokenizer, source, decoding
        self.options = generation_options(model, tokenizer, source, decoding, config_json, language)
        self.prefix = prefix_of(config_json)
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
        """Maximum number of new tokens."""
        return self.options.get("max_new_tokens") or self.model.generation_config.max_new_tokens or 0

    def _limit(self) -> tuple[int | None, bool]:
        """Returns the maximum input length in tokens, and whether a table of positions limits it."""
        raise NotImplementedError

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """Encode a text; returns `input_ids`, a list, and further features.

        Raises:
            InputError: there is a query, and the model does not read queries.
        """
        raise NotImplementedError

    def lengthened(self, tokens: int) -> Self | None:
        """Returns this model lengthened to an input of `tokens`; None if that is not possible."""
        return None

    def with_options(self, options: dict[str, Any]) -> Self:
        """Returns a copy whose options of `generate` are updated with these.

        `max_length`, which includes the decoder's start token, replaces `max_new_tokens`.

        Raises:
            InputError: there are more new tokens than the model can generate.
        """
        options = dict(options)
        if (most := options.pop("max_length", None)) is not None:
            check_kind(most, "max_length", Integral, "a whole number")
            options["max_new_tokens"] = most - 1
        writer = copy.copy(self)
        writer.options = self.options | options
        if "max_new_tokens" in writer.options:
            check_length(self.model, self.source, writer.options)
        return writer

    def write(self, encoded: Sequence[dict[str, Any]], stream: Callable[[str], None] | None = None) -> list[Written]:
        """Generate a summary of each text.

        Args:
            encoded: texts encoded by `encode`.
            stream: called with each piece of the output as it is generated, if there is one text only.

        Raises:
            InputError: the configuration of the model does not allow generation.
        """
        texts = [Written("")] * len(encoded)
        for chosen, written in self.write_batches(encoded, stream if len(encoded) == 1 else None):
            for index, text in zip(chosen, written, strict=True):
                texts[index] = text
        return texts

    def write_batches(
        self, encoded: Sequence[dict[str, Any]], stream: Callable[[str], None] | None = None
    ) -> Iterator[tuple[list[int], list[Written]]]:
        """Generate in batches of similar length; yields the indices of the texts and their summaries. Arguments and
        errors as in `write`."""
        from longspan.progress import progress_bar

        lengths = [len(features["input_ids"]) for features in encoded]
        batches = batches_of(lengths, self._batch_tokens())
        if self._counts_padding():
            batches = [list(equal) for chosen in batches for _, equal in groupby(chosen, lengths.__getitem__)]
        for chosen in progress_bar(batches, doing="writing"):
            yield chosen, self._write([encoded[index] for index in chosen], stream)

    def _batch_tokens(self) -> int:
        return BATCH_TOKENS

    def _counts_padding(self) -> bool:
        """Whether the output for a text depends on padding in its batch."""
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
            if failed:  # not an error of the model: the output stream is full or closed
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
        """Returns the new tokens of a row, without the decoder's start token, which may equal the end token."""
        return row[1:].tolist()

    def _inputs(self, batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns arguments of `generate` for a batch: `input_ids` and `attention_mask` `(B, S)`, with right
        padding."""
        padding = self.tokenizer.pad_token_id
        ids, real = padded([features["input_ids"] for features in batch], 0 if padding is None else padding)
        return {"input_ids": ids, "attention_mask": real.long()}

    def _text(self, row: Any, inputs: dict[str, Any]) -> str:
        return self.tokenizer.decode(row, skip_special_tokens=True).strip()


class SequenceWriter(Writer):
    """An encoder-decoder of transformers, run unchanged."""

    def _limit(self) -> tuple[int | None, bool]:
        return source_limit(self.model, self.tokenizer)

    def lengthened(self, tokens: int) -> Self | None:
        """Use windows as wide as the original input length; only for relative positions, as in T5. See
        `Writer.lengthened`."""
        from longspan.checkpoints.lengthening.in_place import read_further

        length, ends = self._limit()
        assert length is not None
        wanted = doubled(length, tokens)
        if (
            ends
            or wanted > FARTHEST * length
            or self.decoding.max_source_tokens
            or not read_further(self.model, length)
        ):
            return None
        longer = copy.copy(self)  # shares the model, which gives the same result as before for texts that are no longer
        longer.limit = wanted
        return longer

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """Encode a text; these models read no query. See `Writer.encode`."""
        if asked.query is not None:
            raise InputError(
                f"model {self.source!r} reads no query, since it was not trained on any; leave the query "
                f"{asked.query!r} or the model out"
            )
        return {"input_ids": list(self.tokenizer(self.prefix + text, verbose=False)["input_ids"])}


class OwnWriter(Writer):
    """A Longspan encoder-decoder or prefix language model.

    Args:
        task: the task whose tagger computes the importance of each token, for a model that weighs tokens; else None.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        source: str,
        decoding: Decoding,
        config_json: dict[str, Any],
        language: str | None = None,
        task: Any | None = None,
    ) -> None:
        super().__init__(model, tokenizer, source, decoding, config_json, language)
        self.task = task
        self.global_ids = _global_ids(tokenizer) if config_json.get("model_type") == "led" else None
        self._longer: tuple[int, Self] | None = None

    def _limit(self) -> tuple[int, bool]:
        positions = self.model.config.max_position_embeddings
        return positions if self.model.config.is_encoder_decoder else positions - self.new_tokens - 1, True

    def _batch_tokens(self) -> int:
        # A prefix language model generates after its source, where padding would be.
        return BATCH_TOKENS if self.model.config.is_encoder_decoder else 1

    def _counts_padding(self) -> bool:
        from longspan.attention.support import supports

        config = self.model.config
        layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
        return not all(supports(layer, "padding") for layer in layers)

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """Encode a text, with its query in front as global tokens, and with the importance of tokens for models that
        weigh them. See `Writer.encode`."""
        from longspan.data.summaries.rows import SummaryRow

        task, query = self.task, asked.query
        if query is not None:
            from longspan.tasks import task_of_folder

            task = task_of_folder(Path(self.source))
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
            leading = torch.tensor([[features["global_tokens"]] for features in batch])
            inputs["global_attention_mask"] = torch.arange(length) < leading
        elif self.global_ids is not None:
            marked = torch.isin(inputs["input_ids"], torch.tensor(self.global_ids))
            inputs["global_attention_mask"] = marked | (torch.arange(length) == 0)
        if "importance" in batch[0]:
            rows = [[*features["importance"], *[0.0] * (length - len(features["importance"]))] for features in batch]
            inputs["importance"] = torch.tensor(rows)
        return inputs

    def lengthened(self, tokens: int) -> Self | None:
        """Replace full attention by windows as wide as the original input length, so that no two tokens in a window
        share one of the repeated positions; other mechanisms stay. See `Writer.lengthened`."""
        from longspan.checkpoints.lengthening.lengthen import lengthen

        config = self.model.config
        length = config.max_position_embeddings
        spare = length - self._limit()[0]  # room for the output after the text, in a decoder-only model
        wanted = doubled(length, tokens + spare)
        if wanted > FARTHEST * length or self.task is not None or self.decoding.max_source_tokens is not None:
            return None
        if self._longer is None or self._longer[0] != wanted:
            layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
            windows = [layer.windows_instead(length) for layer in layers]
            attention = layers if None in windows or not config.is_encoder_decoder else windows[0]
            try:
                model = lengthen(self.model, attention=attention, max_tokens=wanted)
            except InputError:  # a stack with its own attention, or positions that cannot be repeated
                return None
            longer = type(self)(model, self.tokenizer, self.source, self.decoding, {})
            longer.options, longer.prefix, longer.global_ids = self.options, self.prefix, self.global_ids
            longer.limit = wanted - spare
            self._longer = (wanted, longer)
        return self._longer[1]


def doubled(length: int, tokens: int) -> int:
    """Returns the length of a model, doubled until it is at least `tokens`."""
    while length < tokens:
        length *= 2
    return length


def _global_ids(tokenizer: Any) -> list[int]:
    """Returns the tokens that are global in a published LED besides the first: PRIMERA's document separators (Xiao et
    al. 2022, 2.1)."""
    return [number for token, number in tokenizer.get_added_vocab().items() if token == "<doc-sep>"]
