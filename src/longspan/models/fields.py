"""The fields of a model's configuration with their defaults and checks, as plain data without transformers.

`LongspanConfig` adds to them what transformers' models need; networks that only run read these alone, since importing
transformers takes longer than reading a short document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.layers import check_shared_tables, plain_layers, spread
from longspan.errors import InputError
from longspan.settings import Count, Dropout, Range, Whole, convert, hints_of, show
from longspan.stacks import stack_config

Layers = Annotated[int, Range(1, 1000)]
Width = Annotated[int, Range(1, 65_536)]
Heads = Annotated[int, Range(1, 1024)]
Token = Annotated[int, Range(0, 2**31 - 1)]


class _Limits:
    """The fields of `ModelFields` with their limits: beside it, since transformers reads its own annotations."""

    vocab_size: Annotated[int, Range(1, 100_000_000)]
    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    intermediate_size: Annotated[int, Range(1, 1_000_000)]
    decoder_layers: Annotated[int, Range(0, 1000)]
    decoder_attention_heads: Heads
    decoder_intermediate_size: Annotated[int, Range(1, 1_000_000)]
    max_position_embeddings: Count
    max_decoder_position_embeddings: Count
    position_offset: Annotated[int, Range(0, 1000)]
    positions_skip_padding: bool
    type_vocab_size: Annotated[int, Range(0, 1_000_000)]
    embedding_size: Width | None
    embedding_projection: Literal["after_norm", "before_norm"]
    embedding_norm: bool
    scale_embedding: bool
    normalization: Literal["post", "pre"]
    layer_norm_eps: Annotated[float, Range(above=0, maximum=1)]
    activation_function: str
    masked_lm_activation: str | None
    dropout: Dropout
    attention_dropout: Dropout
    activation_dropout: Dropout
    classifier_dropout: Dropout | None
    classifier_input_dropout: Dropout | None
    classifier_activation: str
    span_dropout: Dropout
    pooler: bool
    classification_head: Literal["dense", "pooler"]
    global_tokens: Literal["none", "first", "question"]
    max_global_tokens: Whole | None
    label_smoothing: Dropout
    wrap_labels: bool
    position_embedding: Literal["learned", "sinusoidal", "none"]
    position_period: Annotated[float, Range(above=2, maximum=1e12)]
    sentence_layers: Annotated[int, Range(0, 1000)]
    answer_types: Literal[2, 5]
    null_paragraph: bool
    question_loss_weights: tuple[Annotated[float, Range(0, 1e6)], ...]
    init_std: Annotated[float, Range(0, 100)]
    source_model_type: str | None
    source_name: str | None
    source_fields: dict[str, Any] | None
    use_cache: bool
    tie_word_embeddings: bool
    pad_token_id: Token | None
    bos_token_id: Token | None
    eos_token_id: Token | tuple[Token, ...] | None
    sep_token_id: Token | None
    decoder_start_token_id: Token | None
    forced_bos_token_id: Token | None
    forced_eos_token_id: Token | tuple[Token, ...] | None


LIMITS = hints_of(_Limits)
"""Field → its type with its limits."""


@dataclass(kw_only=True, repr=False, eq=False)
class ModelFields:
    """What a model is made of; `LongspanConfig` says what each field means, and which values are refused."""

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    decoder_layers: int = 0
    decoder_attention_heads: int | None = None
    decoder_intermediate_size: int | None = None
    max_position_embeddings: int = 16384
    max_decoder_position_embeddings: int | None = None
    position_offset: int = 2
    positions_skip_padding: bool = False
    type_vocab_size: int = 0
    embedding_size: int | None = None
    embedding_projection: Literal["after_norm", "before_norm"] = "after_norm"
    embedding_norm: bool = True
    scale_embedding: bool = False
    normalization: Literal["post", "pre"] = "post"
    layer_norm_eps: float = 1e-5
    activation_function: str = "gelu"
    masked_lm_activation: str | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    classifier_dropout: float | None = None
    classifier_input_dropout: float | None = None
    classifier_activation: str = "tanh"
    span_dropout: float = 0.0
    pooler: bool = False
    classification_head: Literal["dense", "pooler"] = "dense"
    attention: Any = "longformer"
    decoder_attention: Any = "full"
    stack: Any = "sequential"
    global_tokens: Literal["none", "first", "question"] = "none"
    max_global_tokens: int | None = None
    label_smoothing: float = 0.0
    wrap_labels: bool = False
    position_embedding: Literal["learned", "sinusoidal", "none"] = "learned"
    position_period: float = 10000.0
    sentence_layers: int = 0
    sentence_attention: Any = "longformer"
    answer_types: Literal[2, 5] = 2
    null_paragraph: bool = False
    question_loss_weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    init_std: float = 0.02
    source_model_type: str | None = None
    source_name: str | None = None
    source_fields: dict[str, Any] | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    sep_token_id: int | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None

    def settle(self) -> None:
        """Fill in what follows from other fields, and refuse what no model can have."""
        self.is_encoder_decoder = self.decoder_layers > 0
        if self.decoder_attention_heads is None:
            self.decoder_attention_heads = self.num_attention_heads
        if self.decoder_intermediate_size is None:
            self.decoder_intermediate_size = self.intermediate_size
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.max_decoder_position_embeddings is None:
            self.max_decoder_position_embeddings = self.max_position_embeddings
        if self.sep_token_id is None and isinstance(self.eos_token_id, int):
            self.sep_token_id = self.eos_token_id
        starts = self.is_encoder_decoder and not self.wrap_labels
        if starts and self.decoder_start_token_id is None and isinstance(self.eos_token_id, int):
            self.decoder_start_token_id = self.eos_token_id
        _check_sizes(self)
        self.attention = plain_layers(self.attention, self.num_hidden_layers)
        self.decoder_attention = plain_layers(self.decoder_attention, self.decoder_layers)
        self.stack = stack_config(self.stack).to_dict()
        self.sentence_attention = plain_layers(self.sentence_attention, self.sentence_layers)
        check_shared_tables([self.layer_attention(layer) for layer in range(self.num_hidden_layers)])

    @property
    def embedding_width(self) -> int:
        """Width of the encoder's embeddings before any projection."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    def layer_attention(self, layer: int) -> AttentionConfig:
        """The mechanism of encoder layer `layer`, with `attention_dropout` where its spec gives no dropout."""
        return self._layer_attention(self.attention, self.num_hidden_layers, layer)

    def decoder_layer_attention(self, layer: int) -> AttentionConfig:
        """The mechanism of decoder layer `layer`, over the output; read like `layer_attention`."""
        return self._layer_attention(self.decoder_attention, self.decoder_layers, layer)

    def _layer_attention(self, specs: Any, layers: int, layer: int) -> AttentionConfig:
        spec = spread(specs, layers)[layer]
        return attention_config({"dropout": self.attention_dropout, **spec})


def _check_sizes(config: ModelFields) -> None:
    """Raise `InputError` for the first size, probability or choice that no model can have."""
    for name, hint in LIMITS.items():
        convert(hint, getattr(config, name), name)
    for name in ("num_attention_heads", "decoder_attention_heads"):
        heads = getattr(config, name)
        if config.hidden_size % heads:
            raise InputError(
                f"{name}={heads} does not divide hidden_size={config.hidden_size}; choose a number of heads that does"
            )
    if config.decoder_layers and config.embedding_width != config.hidden_size:
        raise InputError(
            f"embedding_size={config.embedding_size} differs from hidden_size={config.hidden_size} in a model with a "
            "decoder, which shares its token table; leave it out"
        )
    if len(config.question_loss_weights) != 4:
        raise InputError(
            f"question_loss_weights is {show(config.question_loss_weights)}; it must be four numbers: for start, end, "
            "paragraph and type"
        )
    if config.pad_token_id is not None and config.pad_token_id >= config.vocab_size:
        raise InputError(
            f"pad_token_id is {config.pad_token_id}, but vocab_size is {config.vocab_size}; "
            "give a token of the vocabulary"
        )
    if config.classification_head == "pooler" and not config.pooler:
        raise InputError("classification_head='pooler' needs pooler=True; set it, or choose 'dense'")
    if config.positions_skip_padding and (config.position_offset < 1 or config.pad_token_id is None):
        raise InputError(
            f"positions_skip_padding=True needs a pad_token_id and a position_offset of at least 1 (given "
            f"{config.pad_token_id} and {config.position_offset}); padding uses row position_offset - 1"
        )
