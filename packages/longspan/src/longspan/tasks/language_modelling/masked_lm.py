"""Masked-language-model pre-training: documents in chunks, some tokens masked, scored by the bits to predict them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.attention import MECHANISMS
from longspan.attention.support import supports
from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import token_blocks, windows
from longspan.errors import InputError
from longspan.models.heads.specs import Weight
from longspan.models.losses import IGNORED
from longspan.settings import Range, Share, Whole
from longspan.tasks.base import Metrics, room_for
from longspan.tasks.language_modelling.corpus_task import CorpusTask, separator
from longspan.tasks.language_modelling.masking import MaskedChunks, Masking, Masks
from longspan.tasks.language_modelling.segments import Segments, padded_segments, sentence_ends, summary_token
from longspan.tasks.predicting import example_key, pad
from longspan.tasks.tokenizers import padding_id


@dataclass(frozen=True, kw_only=True)
class MaskedLM(CorpusTask):
    """Predicts masked tokens (Devlin et al. 2019; Poolingformer thesis: 15 % of the tokens of each chunk).

    Attributes:
        cross_documents: let chunks continue from one document to the next, with an end-of-text token between them.
        mask_probability: share of a chunk's tokens that are predicted; special tokens and padding never are.
        mask_share: share of these that are replaced by the mask token.
        random_share: share that is replaced by a random token; the rest is unchanged.
        global_tokens: "first" makes the first token of each chunk global, "none" none.
        summary_tokens: G, the number of summary tokens: global tokens before each chunk, one for each segment, to which
            the segment's tokens belong (Ainslie et al. 2020, ETC); for mechanisms with structure. 0 for none.
        segments: kind of segments: "sentences", which end with a token that ends with `.`, `!`, `?` or `…`; or
            "blocks", G of equal size. If a chunk has more sentences, its last segment has the rest.
        hidden_segments: share of the segments of a training chunk whose words are all hidden, for the contrastive loss.
        contrast_weight: weight of contrastive predictive coding: a hidden segment's summary token selects its segment
            among the hidden segments of the batch, each encoded alone. 0 disables it, and hides none.
    """

    name: ClassVar[str] = "masked_lm"
    head: ClassVar[str | None] = "masked_lm"
    guessed: ClassVar[tuple[str, str]] = ("masked", "bits_per_masked_token")
    metrics: ClassVar[Metrics] = Metrics(
        names=(guessed[1], "perplexity", "accuracy"),
        lower_is_better=(guessed[1], "perplexity"),
    )

    cross_documents: bool = False
    mask_probability: Annotated[float, Range(above=0, maximum=1)] = 0.15
    mask_share: Share = 0.8
    random_share: Share = 0.1
    global_tokens: Literal["first", "none"] = "none"
    summary_tokens: Whole = 0
    segments: Literal["sentences", "blocks"] = "sentences"
    hidden_segments: Annotated[float, Range(above=0, below=1)] = 0.1
    contrast_weight: Weight = 0.0

    def __post_init__(self) -> None:
        """Raises `InputError` for impossible options."""
        super().__post_init__()
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise InputError(
                f"mask_share={self.mask_share} and random_share={self.random_share} are more than 1 together; lower one"
            )
        if self.summary_tokens and self.global_tokens == "first":
            raise InputError(
                f"global_tokens='first' and summary_tokens={self.summary_tokens} both choose the global tokens; leave "
                "one out"
            )
        if self.contrast_weight and self.summary_tokens < 2:
            raise InputError(
                f"contrast_weight={self.contrast_weight:g} compares summary tokens, and summary_tokens="
                f"{self.summary_tokens} leaves nothing to compare; raise it, or set contrast_weight to 0"
            )

    def model_fields(self) -> dict[str, Any]:
        """Returns the global tokens, so that the model is the same without a mask; and the options of
        the contrastive loss.
        """
        fields = super().model_fields() | {"global_tokens": self.global_tokens}
        if self.contrast_weight:
            fields["head"] = {"head": self.head, "contrast_weight": self.contrast_weight}
        return fields

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for chunks longer than the model's inputs, and for summary tokens that no
        layer supports.
        """
        super().check_model(config)
        if self.summary_tokens:
            for layer in range(config.num_hidden_layers):
                attention = config.layer_attention(layer)
                if not supports(attention, "structure"):
                    serving = ", ".join(name for name, kind in MECHANISMS.items() if supports(kind, "structure"))
                    raise InputError(
                        f"task.summary_tokens={self.summary_tokens} needs attention that reads structure, and "
                        f"{attention.mechanism!r} in layer {layer} does not; choose one that does ({serving}), or set "
                        "summary_tokens to 0"
                    )

    def fitted(self, config: Any) -> Self:
        """Returns the task with chunks of at most as many tokens as the model has positions for, and its
        global token.
        """
        chosen = "first" if config.global_tokens == "first" else "none"
        return replace(self, max_tokens=room_for(self.max_tokens, config), global_tokens=chosen)

    def dataset(
        self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> MaskedChunks:
        """Returns masked chunks; the corpus is tokenised once, into `folder/tokens-train` or `-validation`."""
        options = self._masks(tokenizer, hides=training)
        return MaskedChunks(
            files=self.token_files(rows, tokenizer, training=training, folder=folder),
            between=separator(tokenizer) if self.cross_documents else None,
            seed=seed if training else None,
            **options,
        )

    def _streamed_chunks(
        self, corpora: Sequence[Corpus], tokenizer: Any, *, seed: int, limit: int | None
    ) -> tuple[Callable[[], Iterator[Any]], Callable[[Any, int], dict[str, Any]]]:
        """As the chunks of `dataset`; masks depend on the seed and the number of a row."""
        masks = Masks(**self._masks(tokenizer, hides=True))
        between = separator(tokenizer) if self.cross_documents else None

        def chunks() -> Iterator[Any]:
            blocks = token_blocks(corpora, tokenizer, limit=limit, separator=between)
            texts: Iterable[Iterable[np.ndarray]]
            if between is None:
                texts = (group for _, group in groupby(blocks, lambda block: int(block[1, 0])))
            else:  # without a separator before the first document
                texts = [chain((block[:, 1:] for block in islice(blocks, 1)), blocks)]
            for text in texts:
                yield from (chunk[0] for chunk in windows(text, size=masks.room, step=masks.room))

        return chunks, lambda content, number: masks.row(content, example_key(seed, 0, number, b""))

    def _masks(self, tokenizer: Any, *, hides: bool) -> dict[str, Any]:
        """Returns the fields of `Masks` for a tokenizer; only training `hides` whole segments."""
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise InputError("the tokenizer has no mask_token, which hides tokens; set it, or use another tokenizer")
        before, after = around(tokenizer)
        room = self.max_tokens - len(before) - len(after) - self.summary_tokens
        if room <= 0:
            also = f" and summary_tokens={self.summary_tokens}" if self.summary_tokens else ""
            raise InputError(
                f"max_tokens={self.max_tokens} leaves no room in addition to the special tokens{also}; raise it"
            )
        special = np.array(sorted({*tokenizer.all_special_ids}), dtype=np.int64)
        masking = Masking(
            probability=self.mask_probability,
            mask_share=self.mask_share,
            random_share=self.random_share,
            mask_id=tokenizer.mask_token_id,
            ordinary=np.setdiff1d(np.arange(len(tokenizer)), special),
        )
        return {
            "masking": masking,
            "special_ids": special,
            "before": before,
            "after": after,
            "max_tokens": self.max_tokens,
            "segments": self._segments(tokenizer, room, hides=hides) if self.summary_tokens else None,
        }

    def _segments(self, tokenizer: Any, room: int, *, hides: bool) -> Segments:
        """Returns how chunks of up to `room` tokens are split; only training hides whole segments."""
        return Segments(
            count=self.summary_tokens,
            ends=sentence_ends(tokenizer) if self.segments == "sentences" else None,
            size=-(-room // self.summary_tokens),
            summary_id=summary_token(tokenizer),
            hidden_share=self.hidden_segments if hides and self.contrast_weight else 0.0,
        )

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads chunks to `input_ids`, `labels` `(B, T)` int64, `attention_mask`, `global_attention_mask`
        bool; with summary tokens also to `belongs_to` `(B, T)` int64 and the inputs of the contrastive
        loss, see `padded_segments`.
        """
        padding, first = padding_id(tokenizer), int(self.global_tokens == "first")
        fillers = {"input_ids": padding, "labels": IGNORED, "belongs_to": -1}

        def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
            if not self.summary_tokens:
                return pad(features, fillers, leading=[first] * len(features))
            batch = pad(features, fillers, leading=[feature["summaries"] for feature in features])
            return batch | padded_segments(features, padding)

        return collate

    @property
    def flavour(self) -> str:
        """Describes the scores."""
        return (
            f"Bits per masked token: −log2 of the probability of each hidden token, {100 * self.mask_probability:g} % "
            f"of the tokens of chunks of up to {self.max_tokens}, chosen by each chunk's content."
        )

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Returns sums over the masked tokens, `(B, 3)` float64: bits, how many are right, and their number."""
        hidden = batch["labels"] != IGNORED
        labels = batch["labels"][hidden]
        logits = model(**batch, only_masked=True).logits.float()
        bits = cross_entropy(logits, labels, reduction="none").double() / math.log(2)
        each = torch.stack([bits, (logits.argmax(-1) == labels).double(), torch.ones_like(bits)], dim=1)
        chunk = hidden.nonzero()[:, 0]
        return each.new_zeros(len(hidden), 3).index_add(0, chunk, each).cpu()


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens that the tokenizer adds before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True, return_attention_mask=False)
    ids, mask = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
    if all(mask):
        return [], []
    first = mask.index(0)
    last = len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
