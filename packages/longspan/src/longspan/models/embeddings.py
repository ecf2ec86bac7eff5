"""Token, position and type embeddings, in each of the published conventions."""

from __future__ import annotations

import logging
import math
import sys
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.attention.base import projected
from longspan.attention.features.packed import counted_in
from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveEmbedding
from longspan.ops.sinusoids import BASE, halved_sinusoids, interleaved_sinusoids
from longspan.stacks import stack_config

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


class Sinusoids(nn.Module):
    """Sines and cosines of a position, computed when needed: there is no table, hence no longest input.

    `sin(p·10000^(-2i/E))` in channel 2i and the cosine in channel 2i + 1 (Vaswani et al. 2017, section 3.5), p the
    position and E the width of the embeddings: wavelengths from 2π to nearly 2π·10000 tokens, or to nearly
    `position_period`, which replaces the number 10000. The amplitude is 1 with `scale_embedding`, as published, since
    token embeddings are then as large; without it, it is their `init_std`, which keeps the proportion.
    """

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.width = config.embedding_width
        self.base = BASE if config.position_period is None else config.position_period / (2 * math.pi)
        self.scale = 1.0 if config.scale_embedding else config.init_std

    def forward(self, position: Tensor) -> Tensor:
        """`(B, T)` positions → `(B, T, E)` float32."""
        return self.scale * interleaved_sinusoids(position, self.width, torch.float32, self.base)


class TwoToPeriodSinusoids(nn.Module):
    """Sinusoids of the bundled encoder: wavelengths from 2 to exactly `position_period` tokens, all sines before all
    cosines, of amplitude √2·`init_std` in every model. The first channel is always 0.
    """

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.width = config.embedding_width
        self.period = BASE if config.position_period is None else config.position_period
        self.scale = 2**0.5 * config.init_std

    def forward(self, position: Tensor) -> Tensor:
        """`(B, T)` positions → `(B, T, E)` float32."""
        half = (self.width + 1) // 2
        # Powers in float32 differ between processors, and thousands of tokens later so do angles. MPS has no float64.
        device = torch.device("cpu") if position.device.type == "mps" else position.device
        exponent = torch.linspace(0, 1, half, device=device, dtype=torch.float64)
        waves = (math.pi * (self.period / 2) ** -exponent).float().to(position.device)
        angle = position[..., None] * waves
        return self.scale * torch.cat([angle.sin(), angle.cos()], dim=-1)[..., : self.width]


class HalvedSinusoids(nn.Module):
    """Sinusoids of Marian and Pegasus: as `Sinusoids`, but all sines before all cosines, and of amplitude 1
    in every model.
    """

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.width = config.embedding_width
        self.base = BASE if config.position_period is None else config.position_period / (2 * math.pi)

    def forward(self, position: Tensor) -> Tensor:
        """`(B, T)` positions → `(B, T, E)` float32."""
        return halved_sinusoids(position, self.width, self.base)


SINUSOIDS = {"paper": Sinusoids, "halves": HalvedSinusoids, "two_to_period": TwoToPeriodSinusoids}
"""`sinusoids` of a configuration → module."""


class AxialPositions(nn.Module):
    """Two concatenated tables: position p has row p // n₂ of the first and row p mod n₂ of the second, n₁·n₂ positions
    with n₁ + n₂ rows.

    Kitaev et al. 2020, "Reformer", arXiv 2001.04451, appendix D, as in the authors' code.
    """

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        assert config.axial_shape is not None
        assert config.axial_widths is not None
        self.rows, self.columns = (
            nn.Embedding(*sizes) for sizes in zip(config.axial_shape, config.axial_widths, strict=True)
        )
        self.std = config.axial_std

    @property
    def num_embeddings(self) -> int:
        """The number of positions."""
        return self.rows.num_embeddings * self.columns.num_embeddings

    @torch.no_grad()
    def init_tables(self) -> None:
        """Initialises what was not loaded from a file."""
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=self.std)

    def forward(self, position: Tensor) -> Tensor:
        """Maps positions `(B, T)` int64 from 0 to n₁·n₂ − 1 to `(B, T, E)`, with E the sum of `axial_widths`."""
        count = self.columns.num_embeddings
        row = torch.div(position, count, rounding_mode="floor")
        return torch.cat([self.rows(row), self.columns(position - row * count)], dim=-1)


class MemoryVectors(nn.Module):
    """The M memory tokens of a model with `num_memory_tokens`, learned or sinusoidal."""

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.count = config.num_memory_tokens
        learned = config.memory_embedding == "learned"
        self.table = nn.Embedding(self.count, config.embedding_width) if learned else Sinusoids(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns `(B, M, F)`, equal in every row, in the dtype of `hidden` `(B, …)`."""
        vectors = self.table(torch.arange(self.count, device=hidden.device)[None])
        return vectors.to(hidden.dtype).expand(hidden.shape[0], -1, -1)


class Embeddings(nn.Module):
    """Sum of token, position and type embeddings (the last two if the model has them), normalised, and projected from F
    to the model's width E if they differ; memory tokens of the model come first.

    Args:
        config: its `position_embedding`, `position_offset`, `positions_skip_padding`, `type_vocab_size`,
            `embedding_size`, `embedding_projection`, `embedding_norm` and `scale_embedding` choose the convention.
        decoder: whether these are the decoder's, with its own positions and no token types.
    """

    def __init__(self, config: ModelFields, *, decoder: bool = False) -> None:
        super().__init__()
        width = config.embedding_width
        self.limit = "max_decoder_position_embeddings" if decoder else "max_position_embeddings"
        self.positions: int = getattr(config, self.limit)
        adaptive = config.cutoffs is not None
        self.token = (
            AdaptiveEmbedding(config) if adaptive else nn.Embedding(config.vocab_size, width, config.pad_token_id)
        )
        self.memory = MemoryVectors(config) if config.num_memory_tokens and not decoder else None
        self.position = _positions(config, self.positions, decoder=decoder)
        self.unbounded = stack_config(config.stack).reads().unbounded
        types = 0 if decoder else config.type_vocab_size
        self.token_type = nn.Embedding(types, width) if types else None
        self.project_first = config.embedding_projection == "before_norm"
        self.projection = None
        if width != config.hidden_size:
            self.projection = nn.Linear(width, config.hidden_size, bias=not self.project_first)
        width = config.hidden_size if self.project_first else width
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)
        self.scale = width**0.5 if config.scale_embedding else 1.0
        self.offset = config.position_offset
        self.published = config.source_model_type
        self.padding = config.pad_token_id if config.positions_skip_padding and not decoder else None

    @property
    def max_tokens(self) -> int:
        """The longest input of the position table, or of the configuration if there is no table."""
        if isinstance(self.position, nn.Embedding):
            return self.position.num_embeddings - self.offset
        if isinstance(self.position, AxialPositions):
            return min(self.positions, self.position.num_embeddings - self.offset)
        return self.positions if self.position is None and not self.unbounded else sys.maxsize

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        first_position: int = 0,
        position_ids: Tensor | None = None,
        border: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Maps `(B, T)` ids, or `(B, T, F)` embeddings, to `(B, M + T, E)`: M memory tokens and the tokens, of which
        the first has the position `first_position`.

        `position_ids` `(1 or B, T)` are rows of the position table, as in transformers: `position_offset` is that of a
        first token. Token types are `(B, T)`, or `(B, T, K)` for K types per token, whose embeddings are added.
        Positions are counted from the first real token of each row by a `mask` `(B, T)`, so that padding before it
        changes nothing. They restart from 0 at the `border` `(B,)` of a row, and in each of several `documents` of a
        row, `(B, T)`, of which none may be longer than the table. Those of a published model count from the beginning
        of the row, as in transformers.

        Raises:
            InputError: neither or both inputs given; the input is longer than the position table; token types for a
                model without them; on a CPU, ids or types out of range of the tables.
        """
        given = the_given(input_ids, inputs_embeds)
        rows, length = given.shape[:2]
        longest, counted = first_position + length, None
        if documents is not None and length:
            counted = counted_in(documents, torch.ones_like(documents))
            longest = int(counted.max())
        if longest > self.max_tokens:
            remedy = "generate fewer tokens"
            if "decoder" not in self.limit:
                remedy = "give the model more positions with longspan.lengthen"
            raise InputError(
                f"{longest} tokens are more than {self.limit}={self.max_tokens} of this model; shorten "
                f"them, or {remedy}"
            )
        if position_ids is not None:
            self._check_positions(position_ids, given)
        try:  # a CPU raises; a GPU, which is not synchronised, aborts
            hidden = self.token(given) * self.scale if inputs_embeds is None else inputs_embeds
        except IndexError:
            raise self._beyond_vocabulary(given) from None

        if self.token_type is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros((rows, length), dtype=torch.long, device=hidden.device)
            try:
                types = self.token_type(token_type_ids)
            except IndexError:
                raise InputError(
                    f"token_type_ids holds {first_beyond(token_type_ids, self.token_type.num_embeddings)}, but "
                    f"type_vocab_size={self.token_type.num_embeddings} of this model; give numbers from 0 to "
                    f"{self.token_type.num_embeddings - 1}"
                ) from None
            hidden = hidden + (types.sum(2) if token_type_ids.dim() == 3 else types)
        elif token_type_ids is not None:
            raise InputError("token_type_ids was given but this model has type_vocab_size=0; leave it out")

        if self.position is not None:
            if position_ids is None:
                if self.padding is not None and input_ids is not None:
                    real = input_ids != self.padding
                    count = real.cumsum(1) if documents is None else counted_in(documents, real)
                    position_ids = (count * real) + (self.offset - 1)
                elif counted is not None:
                    position_ids = counted + (self.offset - 1)
                else:
                    first = first_position + self.offset
                    position_ids = torch.arange(first, first + length, device=hidden.device)[None]
                    if mask is not None and mask.shape == (rows, length):  # others are checked with all masks
                        # A compiled program cannot check it, and a GPU would be synchronised.
                        unknown = torch.compiler.is_compiling() or mask.is_cuda
                        padded = unknown or not bool(mask[:, :1].all())
                        if padded and self.published is not None:
                            if not unknown:
                                warn_of_left_padding(self.published)
                        elif padded:
                            before = (mask.to(hidden.device).cumsum(1) == 0).sum(1, keepdim=True)
                            position_ids = (position_ids - before).clamp(min=self.offset)
                position_ids = position_ids if border is None else self._restarted(position_ids, border)
            hidden = hidden + self.position(position_ids).to(hidden.dtype)
        if self.memory is not None:
            hidden = torch.cat([self.memory(hidden), hidden], 1)

        if self.projection is not None and self.project_first:
            hidden = projected(self.projection, hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        hidden = self.dropout(hidden)
        return hidden if self.projection is None or self.project_first else projected(self.projection, hidden)

    def of_tokens(self, input_ids: Tensor) -> Tensor:
        """Maps `(B, T)` ids to `(B, T, F)`, the equivalent of `inputs_embeds`."""
        try:
            return self.token(input_ids) * self.scale
        except IndexError:
            raise self._beyond_vocabulary(input_ids) from None

    def _beyond_vocabulary(self, ids: Tensor) -> InputError:
        entries: int = self.token.num_embeddings
        name = "decoder_input_ids (or labels, which they are made of)" if "decoder" in self.limit else "input_ids"
        return InputError(
            f"{name} holds {first_beyond(ids, entries)}, but vocab_size={entries} of this model, whose ids go from 0 "
            f"to {entries - 1}; give ids of its own tokenizer, or add rows with resize_token_embeddings"
        )

    def _check_positions(self, position_ids: Tensor, source: Tensor) -> None:
        if self.position is None:
            raise InputError("position_ids was given but this model has no absolute positions; leave it out")
        if position_ids.shape not in (source.shape[:2], (1, source.shape[1])):
            raise InputError(
                f"position_ids has shape {tuple(position_ids.shape)} but the input is {tuple(source.shape[:2])}; give "
                "one per token"
            )
        table = self.position
        if torch.compiler.is_compiling() or not isinstance(table, nn.Embedding | AxialPositions):
            return
        if not position_ids.numel() or position_ids.is_cuda:  # a GPU checks this itself, and would be synchronised here
            return
        lowest, highest = int(position_ids.min()), int(position_ids.max())
        if lowest < 0 or highest >= table.num_embeddings:
            raise InputError(
                f"position_ids goes from {lowest} to {highest} but the table has rows 0 to "
                f"{table.num_embeddings - 1}; stay within"
            )

    def _restarted(self, rows: Tensor, border: Tensor) -> Tensor:
        """Returns rows of the position table `(1 or B, T)` that restart with that of a first token at each border
        `(B,)`, `(B, T)`; padding with a row of its own keeps it.
        """
        length = rows.shape[1]
        rows = rows.expand(border.shape[0], length)
        if length == 0:
            return rows
        before = rows.gather(1, border.clamp(max=length - 1)[:, None]) - self.offset
        inside = torch.arange(length, device=rows.device) >= border[:, None]
        return torch.where(inside & (rows >= self.offset), rows - before, rows)


def _positions(config: ModelFields, positions: int, *, decoder: bool) -> nn.Module | None:
    """Returns tables, the sinusoids, or `None`. A decoder has its own length. It has no relative positions, so it needs
    a table unless its stack adds positions.
    """
    if config.position_embedding == "axial" and not decoder:
        return AxialPositions(config)
    if config.position_embedding == "sinusoidal":
        return SINUSOIDS[config.sinusoids](config)
    if config.position_embedding == "none" and not (decoder and stack_config(config.stack).decoder_table()):
        return None
    return nn.Embedding(positions + config.position_offset, config.embedding_width)


@cache
def warn_of_left_padding(model_type: str) -> None:
    """Logs once, for a published architecture, that padding on the left shifts its positions."""
    logger.warning(
        "attention_mask has padding on the left: positions of %s count from the beginning of the row, as in "
        "transformers, so that a text comes out otherwise than alone; pad on the right",
        model_type,
    )


def first_beyond(numbers: Tensor, count: int) -> int:
    """Returns the first number outside 0, …, `count` − 1; there must be one."""
    return int(numbers[(numbers < 0) | (numbers >= count)][0])


def the_given(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Returns ids or embeddings, whichever is given; raises `InputError` for neither, both or other types."""
    for name, tensor, shape in (("input_ids", input_ids, "(B, T)"), ("inputs_embeds", inputs_embeds, "(B, T, E)")):
        if tensor is not None and tensor.dim() < 2:
            raise InputError(f"{name} has shape {tuple(tensor.shape)}; give {shape}")
    if input_ids is not None and inputs_embeds is None:
        return input_ids
    if inputs_embeds is not None and input_ids is None:
        return inputs_embeds
    given = "neither" if input_ids is None else "both"
    raise InputError(f"give exactly one of input_ids and inputs_embeds ({given} given)")
