"""Sentence scoring and embedding in plain PyTorch: the mean state of each sentence, blocks over the sequence of
sentences, so that a score depends on the whole document, and documents of any length in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention import Tokens
from longspan.attention.base import input_dtype, projected
from longspan.errors import InputError
from longspan.models.encoder import Encoder, make_block
from longspan.models.fields import ModelFields
from longspan.models.heads.specs import SentenceEmbedding, SentenceScoring
from longspan.models.inputs import EncoderInputs
from longspan.stacks import stack_config
from longspan.stacks.block import Block

WAVES = 16
"""Sinusoids per kind of position; each has four numbers: sine and cosine, of the index and of the relative position."""
LONGEST_WAVE = 512.0
SEGMENT = 16_384
"""Tokens of a piece of a document, without its margins."""


def checked_ids(
    part: str, ids: Tensor | None, hidden: Tensor, attention_mask: Tensor | None, most: int | None
) -> tuple[Tensor, int]:
    """Returns the index of each token's sentence, or other part of the document, `(B, T)`, −1 at padding; and the
    number of parts.

    Args:
        part: "sentence" or "paragraph", as in argument names.
        ids: `(B, T)` as passed, −1 = none.
        hidden: `(B, T, E)`.
        attention_mask: `(B, T)`, or `None` if all tokens are real.
        most: the number of parts; by default the largest index plus one.
    """
    if ids is None:
        raise InputError(f"{part}_ids is missing; give the index of each token's {part}, (B, T), -1 for none")
    if ids.shape != hidden.shape[:2]:
        raise InputError(
            f"{part}_ids has shape {tuple(ids.shape)} but the input is {tuple(hidden.shape[:2])}; give one index per "
            "token"
        )
    ids = ids if attention_mask is None else ids.masked_fill(~attention_mask.bool(), -1)
    if most is not None and torch.compiler.is_compiling():
        return ids, most
    count = int(ids.max()) + 1 if ids.numel() else 0
    if most is not None and count > most:
        raise InputError(f"{part}_ids counts {count} {part}s but max_{part}s={most}, or the width of labels; give more")
    return ids, count if most is None else most


def mean_by_sentence(hidden: Tensor, sentence_ids: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Returns the mean state of each sentence's tokens, in time and memory linear in T and N.

    Args:
        hidden: `(B, T, E)`.
        sentence_ids: `(B, T)` int64 index of each token's sentence, −1 = none.
        sentences: N.

    Returns:
        `(B, N, E)` means, 0 for sentences without tokens; `(B, N)` bool, True where a sentence has tokens.
    """
    sums, counts = sums_and_counts(hidden, sentence_ids, sentences)
    return (sums / counts.clamp(min=1)[..., None]).to(hidden.dtype), counts > 0


def sums_and_counts(hidden: Tensor, sentence_ids: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Returns the sum of each sentence's states, `(B, N, E)` in at least float32, and their number, `(B, N)` int64."""
    rows, _, width = hidden.shape
    wide = torch.promote_types(hidden.dtype, torch.float32)
    sums = torch.zeros(rows * (sentences + 1), width, dtype=wide, device=hidden.device)
    sums = sums.index_add(0, _places(sentence_ids, sentences), hidden.flatten(0, 1).to(wide))
    sums = sums.unflatten(0, (rows, sentences + 1))[:, :sentences]
    return sums, tokens_by_sentence(sentence_ids, sentences)


def tokens_by_sentence(sentence_ids: Tensor, sentences: int) -> Tensor:
    """Returns the number of tokens of each sentence, `(B, T)` → `(B, N)` int64; arguments as in `mean_by_sentence`."""
    rows = sentence_ids.shape[0]
    place = _places(sentence_ids, sentences)
    counts = place.new_zeros(rows * (sentences + 1)).index_add(0, place, torch.ones_like(place))
    return counts.unflatten(0, (rows, sentences + 1))[:, :sentences]


def _places(sentence_ids: Tensor, sentences: int) -> Tensor:
    """Returns the index of each token's sentence in a flat `(B · (N + 1),)`; a row's last index is for tokens
    without a sentence.
    """
    place = torch.where(sentence_ids < 0, sentences, sentence_ids)
    first = torch.arange(sentence_ids.shape[0], device=sentence_ids.device)[:, None] * (sentences + 1)
    return (place + first).flatten()


def reach_of(config: ModelFields) -> tuple[int, int] | None:
    """Returns how many tokens to each side a final state can depend on, and the step by which pieces may start.

    None if the reach is unbounded: with global tokens, or a mechanism or stack with unbounded attention.
    """
    stack = stack_config(config.stack)
    if stack.brings_attention or stack.reads().parts:
        return None
    if config.global_tokens != "none" or config.num_memory_tokens or config.position_embedding != "sinusoidal":
        return None
    reach, step = 0, 1
    for layer in range(config.num_hidden_layers):
        own = config.layer_attention(layer).reach()
        if own.left is None or own.right is None:
            return None
        reach += max(own.left, own.right)
        step = math.lcm(step, own.period)
    return reach, step


@torch.inference_mode()
def sums_by_sentence(
    encoder: Encoder,
    input_ids: Tensor,
    sentence_ids: Tensor,
    weighted: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns the sum of the final states of each sentence's tokens, for `(T,)` ids and rising sentence
    indices, `(N, E)`.

    The states equal those of one pass over the whole document, in the memory of one piece: a token's state depends on
    the tokens within the reach of all layers together, so a piece is encoded with as many more on each side.

    `weighted` is an optional function of the states `(T, E)`, applied before they are summed, token by token.
    """
    config = encoder.config
    sentences = int(sentence_ids[-1]) + 1 if len(sentence_ids) else 0
    sums = torch.zeros(sentences, config.states_width, device=input_ids.device)
    bounded = reach_of(config)
    length = len(input_ids)
    reach, step = bounded or (length, 1)
    # Pieces shorter than their margins would be mostly margin.
    segment = max(SEGMENT, 4 * reach) if bounded else max(length, 1)
    segment -= segment % step
    for start in range(0, length, segment):
        stop = min(start + segment, length)
        first = max(0, start - reach) // step * step
        piece = input_ids[first : stop + reach]
        inputs = EncoderInputs(input_ids=piece[None])
        states = encoder.encode(inputs, first_position=first).states[0, start - first : stop - first]
        states = states if weighted is None else weighted(states)
        sums.index_add_(0, sentence_ids[start:stop], states.to(sums.dtype))
    return sums


def sentence_places(exists: Tensor, tokens: Tensor) -> Tensor:
    """Returns encodings of each sentence's position and length, for documents of any length.

    Sinusoids of the sentence's index, sinusoids of index / number of sentences, and the logarithm of its length. There
    is no table, hence no limit; padding changes nothing, since only existing sentences are counted.

    Args:
        exists: `(B, N)` bool, True where a row has that sentence.
        tokens: `(B, N)`, number of tokens of each sentence.

    Returns:
        `(B, N, 4·WAVES + 1)`.
    """
    wave = torch.linspace(0, math.log(LONGEST_WAVE), WAVES, device=exists.device).exp()
    index = (exists.cumsum(1) - 1).clamp(min=0).float()
    share = index / exists.sum(1, keepdim=True).clamp(min=1)
    angles = torch.cat([index[..., None] / wave, share[..., None] * wave], dim=-1)
    length = tokens.float().clamp(min=1).log()[..., None] / 4
    return torch.cat([angles.sin(), angles.cos(), length], dim=-1)


class SentenceLayers(nn.Module):
    """Blocks over sentence states, which add position, neighbours and the mean of the document."""

    def __init__(self, config: ModelFields, block: type[Block] = Block) -> None:
        super().__init__()
        # The model's own sizes, with the layers and the mechanism of the head.
        options, width = config.head_options(SentenceScoring), config.states_width
        data: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(ModelFields)}
        data.update(num_hidden_layers=options.layers, attention=options.attention, stack="sequential", head=None)
        inner = ModelFields(**data)
        self.place = nn.Linear(4 * WAVES + 1, width)
        self.layers = nn.ModuleList(make_block(inner, layer, kind=block) for layer in range(options.layers))
        self.final_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mix = nn.Linear(3 * width, width)
        self.activation = nn.GELU()

    def forward(self, states: Tensor, exists: Tensor, tokens: Tensor) -> Tensor:
        """Maps `(B, N, E)` states, `(B, N)` bool and `(B, N)` token counts to `(B, N, E)`, 0 for missing sentences."""
        hidden = states + projected(self.place, sentence_places(exists, tokens).to(states.dtype))
        hidden = hidden.masked_fill(~exists[..., None], 0)
        for layer in self.layers:
            hidden = layer(hidden, Tokens(mask=exists))
        hidden = self.final_norm(hidden).masked_fill(~exists[..., None], 0)
        # The topic of the document: sentences close to it are more representative.
        mean = hidden.sum(1, keepdim=True) / exists.sum(1).clamp(min=1)[:, None, None]
        mixed = projected(self.mix, torch.cat([hidden, hidden * mean, mean.expand_as(hidden)], dim=-1))
        return self.activation(mixed).masked_fill(~exists[..., None], 0)


class Scorer(nn.Module):
    """`output(dropout(activation(dense(x))))`: `(…, E)` → `(…)`."""

    def __init__(self, width: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return projected(self.output, self.dropout(self.activation(projected(self.dense, hidden)))).squeeze(-1)


class ScoresSentences(nn.Module):
    """Base class of sentence scorers: an encoder below, blocks over the sentences, and the scorer."""

    block: ClassVar[type[Block]] = Block
    """The class of the blocks over the sentences."""
    model: Any
    sentence_layers: SentenceLayers | None
    scorer: Scorer

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder."""
        options = config.head_options(SentenceScoring)
        dropout = config.dropout if options.dropout is None else options.dropout
        self.sentence_layers = SentenceLayers(config, self.block) if options.layers else None
        self.scorer = Scorer(config.states_width, nn.GELU(), dropout)

    def score(self, means: Tensor, counts: Tensor) -> Tensor:
        """Maps `(B, N, E)` means over each sentence's tokens, and their numbers `(B, N)`, to `(B, N)` scores."""
        if self.sentence_layers is not None:
            means = self.sentence_layers(means, counts > 0, counts)
        return self.scorer(means)

    @torch.inference_mode()
    def score_document(self, input_ids: Tensor, sentence_ids: Tensor) -> Tensor:
        """Returns scores `(N,)` of one document of any length, equal to those of `forward`, in the memory of a
        piece of it.

        Args:
            input_ids: `(T,)` int64, all real.
            sentence_ids: `(T,)` int64, rising from 0 to N − 1; every sentence has a token.
        """
        sums = sums_by_sentence(self.model.encoder, input_ids, sentence_ids)
        counts = tokens_by_sentence(sentence_ids[None], len(sums))
        means = (sums[None] / counts.clamp(min=1)[..., None]).to(input_dtype(self.scorer.dense))
        return self.score(means, counts)[0]


class EmbedsSentences(nn.Module):
    """Base class of sentence embedders: an encoder below, a weight for each token, and a projection."""

    model: Any
    weight: nn.Linear
    projection: nn.Linear

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder."""
        options = config.head_options(SentenceEmbedding)
        self.weight = nn.Linear(config.states_width, 1)
        self.projection = nn.Linear(config.states_width, options.dimensions, bias=False)

    def weighted(self, hidden: Tensor) -> Tensor:
        """Multiplies each token's state by its weight, `(…, E)` → `(…, E)`: "the" counts less than "photosynthesis"."""
        return hidden * functional.softplus(projected(self.weight, hidden))

    def embed(
        self,
        hidden: Tensor,
        sentence_ids: Tensor,
        sentences: int,
        passage_ids: Tensor | None = None,
        passages: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Maps `(B, T, E)` states and `(B, T)` indices to vectors of length 1 `(B, N + P, D)`, and their mask, `(B,
        N + P)`.

        P passages follow the N sentences. `passage_ids` `(B, N)` has each sentence's passage, −1 = none.
        """
        sums, counts = sums_and_counts(self.weighted(hidden), sentence_ids, sentences)
        exists = counts > 0
        if passage_ids is not None:
            # A passage's tokens are those of its sentences, so one pass over the document serves both.
            together, counts = sums_and_counts(sums, passage_ids.masked_fill(~exists, -1), passages)
            sums, exists = torch.cat([sums, together], 1), torch.cat([exists, counts > 0], 1)
        return self.finish_vectors(sums.to(hidden.dtype)), exists

    def finish_vectors(self, sums: Tensor) -> Tensor:
        """Maps weighted sums of states `(…, E)` to vectors of length 1 `(…, D)`; 0 stays 0."""
        return functional.normalize(projected(self.projection, sums).float(), dim=-1)

    @torch.inference_mode()
    def embed_document(self, input_ids: Tensor, sentence_ids: Tensor, passage_ids: Tensor | None = None) -> Tensor:
        """Returns vectors `(N + P, D)` of one document of any length, equal to those of `forward`, in the memory of a
        piece of it.

        Args:
            input_ids: `(T,)` int64, all real.
            sentence_ids: `(T,)` int64, rising from 0 to N − 1; every sentence has a token.
            passage_ids: `(N,)` int64 up to P − 1, see `embed`.
        """
        sums = sums_by_sentence(self.model.encoder, input_ids, sentence_ids, self.weighted)
        if passage_ids is not None and len(passage_ids):
            together, _ = sums_and_counts(sums[None], passage_ids[None], int(passage_ids.max()) + 1)
            sums = torch.cat([sums, together[0]])
        return self.finish_vectors(sums.to(input_dtype(self.projection)))


class EmbeddingNetwork(EmbedsSentences):
    """`LongspanForSentenceEmbedding` without transformers, with the same weights, for embedding whole documents."""

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({"encoder": Encoder(config)})
        self.add_layers(config)
