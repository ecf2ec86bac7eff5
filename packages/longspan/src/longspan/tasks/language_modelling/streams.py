"""Language modelling over contiguous streams: the corpus in columns, segment by segment, with a memory or without.

Every column of a batch continues that of the previous batch, nothing is shuffled, and a stack with a memory passes it
on. Evaluation may use other lengths of segments and memory than training.
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
    """Options of evaluation; `None` is as in training."""

    segment_tokens: Count | None = None
    """Tokens of a segment."""
    memory_tokens: Whole | None = None
    """Positions in each layer's memory; an option of the stack."""
    compressed_tokens: Whole | None = None
    """Compressed states in each layer's memory; an option of the stack."""
    clamp_tokens: Whole | None = None
    """Maximal distance, to which larger ones are clamped; an option of the mechanisms with relative positions."""
    same_length: bool | None = None
    """Whether every token attends to the same number of earlier ones; an option of the stack."""
    columns: BatchSize = 1
    """Number of parallel streams into which the text is split: faster, but each begins without a memory."""

    def __post_init__(self) -> None:
        check(self)

    def options(self, *names: str) -> dict[str, Any]:
        """Returns those of the named options that are set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class LanguageStream(CorpusTask):
    """Predicts every token of contiguous streams, as Transformer-XL does.

    Attributes:
        max_tokens: length T of a segment; the columns of a batch are the documents of `optimisation.batch_size`.
        evaluation: options of validation and `longspan evaluate`.
    """

    name: ClassVar[str] = "language_stream"
    streams: ClassVar[bool] = False
    guessed: ClassVar[tuple[str, str]] = ("tokens", "bits_per_token")
    metrics: ClassVar[Metrics] = Metrics(
        names=("bits_per_character", "bits_per_byte", guessed[1], "perplexity", "accuracy"),
        lower_is_better=("bits_per_character", "bits_per_byte", guessed[1], "perplexity"),
    )

    max_tokens: Annotated[int, Range(1, LARGEST)] = 512
    evaluation: Reading = field(default_factory=Reading)

    def model_class(self) -> Any:
        from longspan.models import LongspanForCausalLM

        return LongspanForCausalLM

    @property
    def segment_tokens(self) -> int:
        """Length of a segment in evaluation."""
        return self.evaluation.segment_tokens or self.max_tokens

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for segments longer than the model's inputs."""
        check_room(max(self.max_tokens, self.segment_tokens), config)

    def fitted(self, config: Any) -> Self:
        """Returns the task itself: a segment of 512 tokens fits every model with a memory."""
        return self

    def dataset(
        self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> StreamSegments:
        """Returns segments of the corpus, which is tokenised once into a folder below `folder`."""
        files = self.token_files(rows, tokenizer, training=training, folder=folder)
        dataset = StreamSegments(Stream(files, separator(tokenizer)), self.max_tokens)
        if not training:
            dataset.cut(self.evaluation.columns, self.segment_tokens, "task.evaluation.columns")
        return dataset

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Collates `input_ids` `(B, T)` and `labels` `(B, T + 1)` int64; `place` is the segment and the
        first column.
        """
        return stack_segments

    @property
    def mode(self) -> str:
        """Describes the evaluation with a memory, with its lengths."""
        read = self.evaluation
        memory = "" if read.memory_tokens is None else f" of {read.memory_tokens} tokens"
        if read.compressed_tokens is not None:
            memory += f", {read.compressed_tokens} compressed"
        return f"carried memory{memory}, segments of {self.segment_tokens} tokens"

    @property
    def flavour(self) -> str:
        """Describes the scores."""
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
        """Returns bits, perplexity and accuracy over all predicted tokens, and a line for each segment.

        All columns are processed together, for any `batch_size`: their number is `evaluation.columns`.
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
        """Validation processes the segments in order."""
        return replace(super().losses(), validation=self.validation_loss)

    def validation_loss(self, model: Any, dataset: Any) -> float:
        """Returns the mean nats over all tokens, with the options of `evaluation`."""
        bits, _, tokens = (sum(column) for column in zip(*self.walk(model, dataset), strict=True))
        return bits * math.log(2) / tokens

    def walk(self, model: Any, dataset: StreamSegments) -> Iterator[tuple[float, int, int]]:
        """Yields for every segment its bits, the number of right predictions, and the number of tokens."""
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
        """Returns the model, or one with the same weights and the options of `evaluation`."""
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

    In this order, batches of B columns, and parts of such batches, continue the previous ones.
    """

    in_order = True
    """Must not be shuffled."""

    def __init__(self, stream: Stream, segment_tokens: int) -> None:
        self.stream = stream
        self.cut(1, segment_tokens, "the number of columns")

    def cut(self, columns: int, segment_tokens: int, name: str) -> None:
        """Sets the number of columns."""
        self.columns = Columns(self.stream, columns=columns, segment_tokens=segment_tokens, name=name)

    def set_batch_size(self, columns: int) -> None:
        """Sets the number of columns to that of documents in an update."""
        self.cut(columns, self.columns.segment_tokens, "optimisation.batch_size")

    def __len__(self) -> int:
        """Returns the number of segments of all columns together."""
        return self.columns.segments * self.columns.columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns `ids` `(T + 1,)`, the last of which is only predicted, and their `place`: segment and column."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        segment, column = divmod(index, self.columns.columns)
        return {"ids": self.columns.read(segment, column), "place": (segment, column)}


def stack_segments(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a batch of one segment of neighbouring columns."""
    ids = torch.stack([torch.from_numpy(feature["ids"]) for feature in features])
    labels: Tensor = ids.clone()
    labels[:, 0] = IGNORED
    return {"input_ids": ids[:, :-1].contiguous(), "labels": labels, "place": features[0]["place"]}
