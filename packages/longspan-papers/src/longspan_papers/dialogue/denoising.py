"""Window-based denoising, DialogLM's pre-training: input a dialogue with a disturbed window, output the window.

Source: Zhong et al. 2022, arXiv 2109.02492. Dialogues are written once to files in the run's folder, so that their
number is not limited by memory; the noise is drawn anew in every epoch, and is fixed in validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from longspan.data.ragged import Ragged, fingerprint_of
from longspan.data.turns import Dialogue
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import Count, check_keys, show
from longspan.tasks.base import Metrics
from longspan.tasks.language_modelling.corpus_task import GuessingTask
from longspan.tasks.predicting import example_key
from longspan.tasks.row_sources import RowSource, identities_of, rows_of
from longspan.tasks.tokenizers import encode, encode_target, padding_id
from longspan.tasks.writing import WritingTask, collate
from longspan_papers.dialogue.noises import NoiseConfig
from longspan_papers.dialogue.noising import Trace, noise
from longspan_papers.dialogue.pieces import read_piece, token_counter, write_dialogues
from longspan_papers.dialogue.reading import DIALOGUES, read_dialogues

TOKENIZERS_OWN = ("mask", "speaker_mask", "start", "end")
"""Fields of the noise that the task sets, since they must be tokens."""


class DialogueSource(RowSource):
    """A data set, file or folder of dialogues."""

    kind = DIALOGUES

    def rows(self) -> Iterator[Dialogue]:
        """Yields its dialogues, one at a time."""
        return read_dialogues(self.source, self.split, self.limit, on_error=self.on_error)


@dataclass(frozen=True, kw_only=True)
class DialogueDenoising(WritingTask, GuessingTask):
    """Reconstructs a window of a dialogue from the dialogue with this window disturbed.

    Attributes:
        max_source_tokens: maximum tokens of a dialogue, which is truncated at the end of a turn.
        max_target_tokens: longest window, special tokens included; longer turns are split at sentence ends.
        setting: the noise of the "paper", or of the "script" that its authors published.
        noise: changes to the setting, by the names of `NoiseConfig`, such as `{window_share: 0.2, permute: 0}`.
        without: noises that are switched off.
        global_tokens: "first" makes the first token global (LED), "none" none.
    """

    name: ClassVar[str] = "dialogue_denoising"
    counts_rows: ClassVar[bool] = False
    guessed: ClassVar[tuple[str, str]] = ("tokens", "bits_per_token")
    metrics: ClassVar[Metrics] = Metrics(
        names=(guessed[1], "perplexity", "accuracy"),
        lower_is_better=(guessed[1], "perplexity"),
    )

    max_target_tokens: Count = 512
    setting: Literal["paper", "script"] = "paper"
    noise: dict[str, Any] = field(default_factory=dict)
    without: tuple[Literal["speakers", "split", "merge", "infill", "permute"], ...] = ()
    global_tokens: Literal["first", "none"] = "first"

    def __post_init__(self) -> None:
        """Raises `InputError` for unknown noise options."""
        super().__post_init__()
        known = [name for name in NoiseConfig.__dataclass_fields__ if name not in TOKENIZERS_OWN]
        check_keys(self.noise, known, "task.noise")
        _ = self.config("[MASK]")

    def config(self, mask: str) -> NoiseConfig:
        """Returns the noise, for a tokenizer with this mask token."""
        setting: dict[str, Any] = {**self.noise, "mask": mask}
        if self.setting == "script":
            setting["speaker_mask"] = mask
        whole = NoiseConfig.published(self.setting, **setting)
        return NoiseConfig.published(self.setting, **{**setting, **whole.without(*self.without)})

    def new_tokens(self) -> Sequence[str]:
        """Returns the speaker mask, if it differs from the mask token, and the markers of the window."""
        config = self.config("[MASK]")
        speaker_masks = [] if config.speaker_mask == config.mask else [config.speaker_mask]
        return [*speaker_masks, *([config.start, config.end] if config.markers else [])]

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Any]:
        """Locates the source without reading it. `limit` counts dialogues over all sources."""
        return DialogueSource.located(source, split, limit, on_error=on_error)

    def corpus(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yields every dialogue."""
        return (dialogue.text for dialogue in rows_of(rows))

    def dataset(
        self, rows: Sequence[Any], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> NoisedDialogues:
        """Returns pieces of the dialogues, written once to `folder/chunks-train` or `folder/chunks-validation`."""
        if getattr(tokenizer, "mask_token", None) is None:
            raise InputError("the tokenizer has no mask_token, which hides words; set it, or use another tokenizer")
        if missing := [
            token for token in self.new_tokens() if tokenizer.convert_tokens_to_ids(token) == tokenizer.unk_token_id
        ]:
            raise InputError(f"the tokenizer lacks {show(missing)}; add them with add_tokens(…, special_tokens=True)")
        special = tokenizer.num_special_tokens_to_add()
        room, longest = self.max_source_tokens - special - 2, self.max_target_tokens - special
        if min(room, longest) < 8:
            name = "max_source_tokens" if room < longest else "max_target_tokens"
            raise InputError(f"task.{name}={getattr(self, name)} leaves no room for a turn; raise it")
        limits = {"room": room, "longest_turn": longest}
        pieces = write_dialogues(
            folder / f"chunks-{'train' if training else 'validation'}",
            fingerprint_of(tokenizer, limits, identities_of(rows)),
            rows_of(rows),
            token_counter(tokenizer),
            **limits,
        )
        return NoisedDialogues(pieces, self, tokenizer, seed if training else None)

    def features(self, source: str, target: str, tokenizer: Any) -> dict[str, Any]:
        """Returns `input_ids`, `labels`, and the number of global tokens."""
        ids, _ = encode(tokenizer, source, max_tokens=self.max_source_tokens)
        labels = encode_target(tokenizer, target, max_tokens=self.max_target_tokens)
        return {"input_ids": ids, "labels": labels, "global_tokens": int(self.global_tokens == "first")}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, which pads B dialogues to `input_ids` (B, S) with both masks, and `labels` (B, T)."""
        return partial(collate, padding=padding_id(tokenizer))

    @property
    def flavour(self) -> str:
        """Description of the scores."""
        return (
            "Bits per token: −log2 of the probability of each token of the window, behind the true ones before it; "
            f"the noise of the {self.setting}, drawn by each dialogue's content."
        )

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Returns `(B, 3)` float64 sums over the window's tokens: bits, correct tokens, tokens."""
        labels, real = batch["labels"], batch["labels"] != IGNORED
        logits = model(**batch).logits.float()
        nats = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        right = (logits.argmax(-1) == labels) & real
        return torch.stack([nats.view_as(labels).double().sum(1) / math.log(2), right.sum(1), real.sum(1)], dim=1).cpu()


@dataclass(eq=False)
class NoisedDialogues(Dataset[dict[str, Any]]):
    """Pieces of dialogues with noise, which is drawn on access.

    Attributes:
        pieces: as written by `write_dialogues`.
        task: which noise, and maximum lengths.
        tokenizer: of transformers.
        seed: of training; None derives the noise from the content of each piece.
    """

    pieces: Ragged
    task: DialogueDenoising
    tokenizer: Any
    seed: int | None
    epoch: int = 0

    @cached_property
    def config(self) -> NoiseConfig:
        """The noise; a window is never longer than the maximum target."""
        config = self.task.config(self.tokenizer.mask_token)
        room = self.task.max_target_tokens - self.tokenizer.num_special_tokens_to_add()
        most = min(config.window_most, room)
        return NoiseConfig(**{**vars(config), "window_most": most})

    def __len__(self) -> int:
        return len(self.pieces)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose noise is drawn."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns `input_ids`, `labels` and `global_tokens` of a piece."""
        index = range(len(self))[index]
        piece, content = read_piece(self.pieces, index)
        sizes = {turn.line: tokens for turn, tokens in piece}
        rng = Random(example_key(self.seed, self.epoch, index, content))
        source, target, trace = noise([turn for turn, _ in piece], rng, self.config, count=sizes.__getitem__)
        return self.task.features(
            self._shortened(source, trace, [tokens for _, tokens in piece]), target, self.tokenizer
        )

    def _shortened(self, source: str, trace: Trace, sizes: list[int]) -> str:
        """Drops the turns furthest from the window if the noise has made the source too long."""
        _, count = encode(self.tokenizer, source, max_tokens=self.task.max_source_tokens)
        excess = count - self.task.max_source_tokens
        lines = source.split("\n")
        before, behind = trace.window[0], len(sizes) - trace.window[1]
        first, last = 0, 0
        while excess > 0 and (first < before or last < behind):
            if before - first >= behind - last:
                excess -= sizes[first]
                first += 1
            else:
                last += 1
                excess -= sizes[len(sizes) - last]
        return "\n".join(lines[first : len(lines) - last])
