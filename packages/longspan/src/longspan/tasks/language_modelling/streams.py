"""Language modelling over contiguous streams: the corpus in columns, read segment by segment, with a memory or without.

Every column of a batch goes on where it ended in the batch before, nothing is shuffled, and a model whose stack keeps a
memory carries it along. Evaluation may read with another length of segments and memory than training.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import Columns, Stream
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.progress import progress_bar
from longspan.settings import LARGEST, BatchSize, Count, Range, Whole, check
from longspan.stacks import stack_config
from longspan.tasks.base import Losses, Metrics, Outcome, check_room
from longspan.tasks.language_modelling.corpus_task import CorpusTask, separator


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a text is read when it is scored; what is `None` is as in training."""

    segment_tokens: Count | None = None
    """Tokens read at once."""
    memory_tokens: Whole | None = None
    """Tokens of the past that each layer remembers; an option of the stack."""
    compressed_tokens: Whole | None = None
    """Compressed states that each layer remembers besides; an option of the stack."""
    clamp_tokens: Whole | None = None
    """Distances above it count as it; an option of the mechanisms with relative positions."""
    same_length: bool | None = None
    """Whether every token sees equally many before it; an option of the stack."""
    columns: BatchSize = 1
    """Streams side by side into which the text is cut: faster, and each begins without a past."""

    def __post_init__(self) -> None:
        check(self)

    def options(self, *names: str) -> dict[str, Any]:
        """Those of the named options that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class LanguageStream(CorpusTask):
    """Guess every token of contiguous streams, as Transformer-XL does.

    Attributes:
        max_tokens: length T of a segment; the columns of a batch are the documents of `optimisation.batch_size`.
        evaluation: how validation and `longspan evaluate` read.
    """

    name: ClassVar[str] = "language_stream"
    guessed: ClassVar[tuple[str, str]] = ("tokens", "bits_per_token")
    metrics: ClassVar[Metrics] = Metrics(
        names=("bits_per_character", "bits_per_byte", guessed[1], "perplexity", "accuracy"),
        lower_is_better=("bits_per_character", "bits_per_byte", guessed[1], "perplexity"),
    )

    max_tokens: Annotated[int, Range(1, LARGEST)] = 512
    evaluation: Reading = field(default_factory=Reading)

    def model_class(self) -> Any:
        """`LongspanForCausalLM`."""
        from longspan.models import LongspanForCausalLM

        return LongspanForCausalLM

    @property
    def segment_tokens(self) -> int:
        """Length of a segment in evaluation."""
        return self.evaluation.segment_tokens or self.max_tokens

    def check_model(self, config: Any) -> None:
        """Refuse segments longer than the model reads."""
        check_room(max(self.max_tokens, self.segment_tokens), config)

    def fitted(self, config: Any) -> Self:
        """As it is: a segment of 512 tokens fits every model that has a memory."""
        return self

    def dataset(
        self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> StreamSegments:
        """Segments of the corpus, which is tokenised into a folder below `folder` once."""
        files = self.token_files(rows, tokenizer, training=training, folder=folder)
        dataset = StreamSegments(Stream(files, separator(tokenizer)), self.max_tokens)
        if not training:
            dataset.cut(self.evaluation.columns, self.segment_tokens, "task.evaluation.columns")
        return dataset

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """`input_ids` `(B, T)` and `labels` `(B, T + 1)` int64; `place` is the segment and the first column."""
        return stack_segments

    @property
    def mode(self) -> str:
        """That a memory is carried along, with the lengths that evaluation gives."""
        read = self.evaluation
        memory = "" if read.memory_tokens is None else f" of {read.memory_tokens} tokens"
        if read.compressed_tokens is not None:
            memory += f", {read.compressed_tokens} compressed"
        return f"carried memory{memory}, segments of {self.segment_tokens} tokens"

    @property
    def flavour(self) -> str:
        """What the scores are, in words."""
        read = self.evaluation
        memory = "the model's memory" if read.memory_tokens is None else f"a memory of {read.memory_tokens} tokens"
        if read.compressed_tokens is not None:
            memory += f" and {read.compressed_tokens} compressed states"
        return (
            "Bits: −log2 of the probability of every token and every separator but the first, over the characters, "
            f"bytes or tokens; read in {read.columns} stream(s) by segments of {self.segment_tokens} tokens, with "
            f"{memory}, if it has one."
        )

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Corpus], *, batch_size: int) -> Outcome:
        """Bits, perplexity and accuracy over everything that is guessed; a line for each segment.

        All columns are read together, whatever `batch_size` is: their number is `evaluation.columns`.
        """
        with tempfile.TemporaryDirectory() as folder:
            dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path(folder))
            table = list(self.walk(model, dataset))
            counts = dict(dataset.stream.files.index)
        bits, correct, tokens = (sum(column) for column in zip(*table, strict=True))
        scores = {"bits_per_character": bits / counts["characters"], "bits_per_byte": bits / counts["bytes"]}
        scores |= {**self.bits_of(bits * math.log(2) / tokens), "accuracy": 100 * correct / tokens}
        lines = [
            {"segment": index, "tokens": count, "bits": round(value, 3), "correct": right}
            for index, (value, right, count) in enumerate(table)
        ]
        return Outcome(scores=scores, lines=lines, flavour=self.flavour, mode=self.mode)

    def losses(self) -> Losses:
        """Validation reads the segments in their order."""
        return replace(super().losses(), validation=self.validation_loss)

    def validation_loss(self, model: Any, dataset: Any) -> float:
        """Mean nats over all tokens, read as `evaluation` says."""
        bits, _, tokens = (sum(column) for column in zip(*self.walk(model, dataset), strict=True))
        return bits * math.log(2) / tokens

    def walk(self, model: Any, dataset: StreamSegments) -> Iterator[tuple[float, int, int]]:
        """The bits of every segment, of how many tokens the likeliest is right, and how many there are."""
        from longspan.models.sequence_parallel import part_of
        from longspan.models.stream_memory import StreamMemory
        from longspan.ops.shards import gathered_from

        reader, columns = self.reader(model, dataset.columns), dataset.columns
        group = reader.decoder.sequence_group
        was_training, carried = reader.training, StreamMemory(reader.config)
        reader.eval()
        try:
            for segment in progress_bar(range(columns.segments), doing="reading"):
                ids = torch.from_numpy(columns.segment(segment)).to(reader.device)
                if group is not None:
                    part = part_of({"input_ids": ids[:, :-1], "following": ids[:, 1:]}, group)
                    ids = torch.cat([part["input_ids"][:, :1], part["following"]], dim=1)
                nats, right, cache = reader.score(ids, input_ids=ids[:, :-1], **carried.before(segment, 0))
                carried.after(segment, 0, cache)
                counts: Any = torch.stack([nats.double().sum(), right.sum(), torch.tensor(len(nats)).to(right.device)])
                if group is not None:
                    counts = gathered_from(counts, group).sum(0)
                total, hits, count = counts.tolist()
                yield total / math.log(2), int(hits), int(count)
        finally:
            reader.train(was_training)

    def reader(self, model: Any, columns: Columns) -> Any:
        """The model, or the same weights with the lengths of `evaluation`."""
        from longspan.models.language_model import with_options

        read = self.evaluation
        if read.memory_tokens is not None and read.memory_tokens > columns.tokens:
            raise InputError(
                f"task.evaluation.memory_tokens is {read.memory_tokens}, but a column has {columns.tokens} tokens; "
                "give at most so many, or fewer columns"
            )
        try:
            stack = read.options("memory_tokens", "compressed_tokens", "same_length")
            reader = with_options(model, stack=stack, attention=read.options("clamp_tokens"))
        except InputError as error:
            raise InputError(f"task.evaluation does not fit the model: {error}") from error
        if read.compressed_tokens is None:
            return reader
        made: Any = stack_config(reader.config.stack)
        covered = made.memory_sizes.covered
        if covered > columns.tokens:
            raise InputError(
                f"task.evaluation.compressed_tokens is {read.compressed_tokens}, with which the memory covers "
                f"{covered} tokens, but a column has {columns.tokens}; give fewer, or fewer columns"
            )
        return reader


class StreamSegments(Dataset[dict[str, Any]]):
    """The segments of all columns: first the first segment of each column, then the second of each, and so on.

    In this order, batches of B columns, and pieces of such batches, go on where those before ended.
    """

    in_order = True
    """Must not be shuffled."""

    def __init__(self, stream: Stream, segment_tokens: int) -> None:
        self.stream = stream
        self.cut(1, segment_tokens, "the number of columns")

    def cut(self, columns: int, segment_tokens: int, name: str) -> None:
        """Set how many columns there are."""
        self.columns = Columns(self.stream, columns=columns, segment_tokens=segment_tokens, name=name)

    def set_batch_size(self, columns: int) -> None:
        """As many columns as an update of the weights has documents."""
        self.cut(columns, self.columns.segment_tokens, "optimisation.batch_size")

    def __len__(self) -> int:
        """Segments of all columns together."""
        return self.columns.segments * self.columns.columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`ids` `(T + 1,)`, the last of them only to be guessed, and their `place`: segment and column."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        segment, column = divmod(index, self.columns.columns)
        return {"ids": self.columns.read(segment, column), "place": (segment, column)}


def stack_segments(features: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of one segment of neighbouring columns."""
    ids = torch.stack([torch.from_numpy(feature["ids"]) for feature in features])
    labels: Tensor = ids.clone()
    labels[:, 0] = IGNORED
    return {"input_ids": ids[:, :-1].contiguous(), "labels": labels, "place": features[0]["place"]}
