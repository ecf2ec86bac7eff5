"""The fields of a model's configuration, each with its type, default and meaning, and the checks between them.

They are plain data without transformers, whose import takes longer than encoding a short document; `LongspanConfig`
adds what transformers' models need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.layers import check_longest, check_shared_tables, plain_layers, spread
from longspan.attention.support import since, why_not
from longspan.errors import InputError
from longspan.models.heads import HeadSpec, head_spec
from longspan.settings import Count, Dropout, Range, Whole, convert, hints_of, show
from longspan.stacks import StackConfig, stack_config

Spec = TypeVar("Spec", bound=HeadSpec)

SHORTEST_WAVE = 2 * math.pi
"""Period of the fastest sinusoid, in tokens."""
Layers = Annotated[int, Range(1, 1000)]
Width = Annotated[int, Range(1, 65_536)]
Heads = Annotated[int, Range(1, 1024)]
Token = Annotated[int, Range(0, 2**31 - 1)]


@dataclass(kw_only=True, repr=False, eq=False)
class ModelFields:
    """The fields of a model's configuration: types, limits, defaults and meaning. Those without a description
    are transformers' own.
    """

    vocab_size: Annotated[int, Range(1, 100_000_000)] = 50265
    """Number of token embeddings."""
    hidden_size: Width = 768
    """Model width E."""
    num_hidden_layers: Layers = 6
    """Encoder layers."""
    num_attention_heads: Heads = 12
    """Encoder heads H; must divide `hidden_size`."""
    intermediate_size: Annotated[int, Range(1, 1_000_000)] = 3072
    """Width of the encoder's feed-forward layers."""
    decoder_layers: Annotated[int, Range(0, 1000)] = 0
    """Decoder layers; 0 means that there is no decoder."""
    decoder_attention_heads: Heads | None = None
    """Heads of the decoder; `None` means as many as the encoder."""
    decoder_intermediate_size: Annotated[int, Range(1, 1_000_000)] | None = None
    """Feed-forward width of the decoder; `None` means the encoder's."""
    max_position_embeddings: Count = 16384
    """The longest input, in tokens (the table holds `position_offset` rows more)."""
    max_decoder_position_embeddings: Count | None = None
    """The longest output; `None` means `max_position_embeddings`."""
    position_offset: Annotated[int, Range(0, 1000)] = 2
    """Row of the first token in the position tables: 2 for BART and RoBERTa, 0 for BERT."""
    positions_skip_padding: bool = False
    """False: the row is the index in the input (BART, BERT), counted from the first real token of the attention mask,
    or in a published model from the beginning of the row; True: tokens other than `pad_token_id` are counted, and
    padding gets row `position_offset - 1` (RoBERTa, Longformer).
    """
    type_vocab_size: Annotated[int, Range(0, 1_000_000)] = 0
    """Rows of the token-type table: 2 for BERT, 1 for RoBERTa, 0 for none (BART)."""
    embedding_size: Width | None = None
    """Width of the embeddings if it is not E (ELECTRA, DeBERTa-v2), projected by a linear layer; `None` means E.
    Encoders without a decoder only.
    """
    embedding_projection: Literal["after_norm", "before_norm"] = "after_norm"
    """Position of that layer: "after_norm", with a bias (ELECTRA), or "before_norm", without one (DeBERTa)."""
    cutoffs: tuple[Count, ...] | None = None
    """First words of the clusters of a large vocabulary, whose words are numbered by frequency: adaptive embeddings
    and an adaptive softmax, see `longspan.models.adaptive`; `embedding_size` is then the width of the first
    cluster's embeddings, `[]` means a single cluster with a bias for each word, and `None` the plain table and
    head. `LongspanForCausalLM` only.
    """
    embedding_divisor: Annotated[int, Range(1, 1024)] = 1
    """Factor by which the embeddings of each further cluster are narrower."""
    tie_projections: bool | tuple[bool, ...] = True
    """Whether the softmax shares the projections of the embeddings: for all clusters, or a list with one entry for
    each. Nothing is tied without `tie_word_embeddings`.
    """
    head_bias: bool = False
    """Whether the head of a language model without `cutoffs`, or of masked words with `layers="single"` (Reformer), has
    a bias for each word.
    """
    embedding_norm: bool = True
    """LayerNorm over the summed embeddings."""
    scale_embedding: bool = False
    """Multiply token embeddings by √E (mBART)."""
    normalization: Literal["post", "pre"] = "post"
    """Position of the LayerNorms: "post" (BART, RoBERTa, BERT) or "pre" (mBART; adds a final LayerNorm to
    encoder and decoder).
    """
    layer_norm_eps: Annotated[float, Range(above=0, maximum=1)] = 1e-5
    """ε of every LayerNorm: 1e-5 (BART, RoBERTa), 1e-12 (BERT)."""
    activation_function: str = "gelu"
    """Activation of the feed-forward layers, by its transformers name."""
    dropout: Dropout = 0.1
    """Dropout after embeddings, attention and feed-forward layers."""
    attention_dropout: Dropout = 0.0
    """Dropout of attention weights, unless `attention` has a `dropout`."""
    activation_dropout: Dropout = 0.0
    """Dropout inside the feed-forward layers."""
    pooler: bool = False
    """Whether `LongspanModel` has a dense-tanh pooler over the first token (BERT, RoBERTa)."""
    attention: Any = "longformer"
    """The encoder's mechanism: a name, or a dict `{"mechanism": name, option: value, ...}`; or a list of these with one
    per encoder layer, or with the `layers` of each (`longspan.attention.layers`). Stored as plain data with every
    option. `LongspanForCausalLM`, which has no encoder, builds its layers from it in their causal form.
    """
    decoder_attention: Any = "full"
    """The mechanism of self-attention in the decoder of an encoder-decoder, in the same forms with one per decoder
    layer; any with a causal form.
    """
    stack: Any = "sequential"
    """The stack that combines the blocks: a name, or a dict `{"stack": name, option: value, ...}`."""
    head: Any = None
    """The head on the encoder: a name, or a dict `{"head": name, option: value, ...}`, see `longspan.models.heads`;
    `None` for the encoder alone and for models with a decoder. A model class with another head uses its default
    options. Stored as plain data.
    """
    global_tokens: Literal["none", "first", "question"] | list[Token] = "none"
    """The global tokens if no `global_attention_mask` is passed: "none", "first" (LED, classification),
    "question" (every token before the first `sep_token_id`), or a list of token ids: every token with one of
    them, such as PRIMERA's `<doc-sep>`.
    """
    max_global_tokens: Whole | None = None
    """Static number of slots for the global tokens of a `global_attention_mask`, needed only to compile or export with
    such a mask; `None` means as many as the mask of the batch has.
    """
    num_memory_tokens: Whole = 0
    """Number of memory tokens before every text, which are global tokens of the encoder but not tokens of the text
    (Gupta & Berant 2020, "GMAT", arXiv 2006.03274); 0 means none. Outputs, labels and `max_position_embeddings` are
    those of the text alone; if the latter is the length of a table, there are at most as many memory tokens.
    """
    memory_embedding: Literal["learned", "sinusoidal"] = "learned"
    """Their embeddings: "learned" (a table of their own), or "sinusoidal" (the sinusoids of 0, 1, 2, …, so that no
    weight depends on their number).
    """
    compress_after: Annotated[int, Range(1, 1000)] | None = None
    """Number of encoder layers that process memory and text; the others process the memory alone, which is then the
    encoder's output for a decoder or a head that labels whole texts. `None` means that all layers process the text.
    """
    label_smoothing: Dropout = 0.0
    """Label smoothing of the sequence-to-sequence loss."""
    wrap_labels: bool = False
    """Start the decoder with the last real label, a language code, instead of `decoder_start_token_id`, if its inputs
    are made from labels (mBART).
    """
    position_embedding: Literal["learned", "sinusoidal", "axial", "none"] = "learned"
    """"learned" (a table of `max_position_embeddings` rows), "sinusoidal" (no weights and no longest input; positions
    are defined at any length), "axial" (two small tables whose every pair is a position, Kitaev et al. 2020), or
    "none": positions come from relative attention, as in DeBERTa, or from the stack. With the last two, a decoder after
    an encoder has a table of its own, unless its stack adds positions.
    """
    sinusoids: Literal["paper", "halves", "two_to_period"] = "paper"
    """Form of the sinusoids. "paper": sin(p·10000^(−2i/E)) in channel 2i and the cosine in channel 2i + 1 (Vaswani et
    al. 2017, section 3.5), of amplitude 1 with `scale_embedding`, and else of amplitude `init_std`, which keeps the
    proportion to token embeddings of that standard deviation. "halves": the same numbers in another order, all sines
    before all cosines, always of amplitude 1 (Marian, Pegasus). "two_to_period": all sines before all cosines,
    wavelengths from 2 to `position_period`, amplitude √2·`init_std` (the bundled encoder).
    """
    position_period: Annotated[float, Range(above=2, maximum=1e12)] | None = None
    """Longest wavelength of the sinusoids, in tokens; a short one encodes order within a neighbourhood only, in the
    same way at any length of the document. `None` means 2π·10000, as published, and 10000 with "two_to_period". With
    "paper" and "halves" the last channels are close to it, and it must exceed the shortest wavelength, 2π.
    """
    axial_shape: tuple[Count, ...] | None = None
    """Rows of the two tables of axial positions, (n₁, n₂): position p has row p // n₂ of the first and row p mod n₂ of
    the second. Their product is at least `max_position_embeddings` + `position_offset`.
    """
    axial_widths: tuple[Count, ...] | None = None
    """Widths of the two tables, which are concatenated: their sum is the width of the embeddings."""
    axial_std: Annotated[float, Range(0, 100)] = 1.0
    """Initial standard deviation of these tables."""
    init_std: Annotated[float, Range(0, 100)] = 0.02
    """Standard deviation of the normal initialisation."""
    source_model_type: str | None = None
    """`model_type` of the published model of the weights, to which `to_transformers` converts them back;
    `None` for others.
    """
    source_name: str | None = None
    """The name of that model on the Hub, if it was loaded by name."""
    source_fields: dict[str, Any] | None = None
    """Further keys of its configuration, for the conversion back."""
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: Token | None = 1
    bos_token_id: Token | None = 0
    eos_token_id: Token | list[Token] | None = 2
    sep_token_id: Token | None = None
    decoder_start_token_id: Token | None = None
    mask_token_id: Token | None = None
    """The mask token that is predicted; used only with `pseudo_masks`."""
    pseudo_masks: bool = False
    """Of `LongspanForPrefixLM`: predict each token from a `mask_token_id` in its place, instead of from the
    token before it.
    """
    forced_bos_token_id: Token | None = None
    forced_eos_token_id: Token | list[Token] | None = None

    def settle(self) -> None:
        """Sets defaults that depend on other fields, and raises `InputError` for invalid combinations."""
        for name, hint in FIELDS.items():
            value = getattr(self, name)
            if value is not getattr(ModelFields, name):
                convert(hint, value, name)
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
        _check_axes(self)
        _check_clusters(self)
        _check_head_bias(self)
        self.attention = plain_layers(self.attention, self.num_hidden_layers)
        try:
            self.decoder_attention = plain_layers(self.decoder_attention, self.decoder_layers)
        except InputError as error:  # the messages name the field that both have in common
            raise InputError(str(error).replace("attention", "decoder_attention", 1)) from None
        stack = stack_config(self.stack)
        _check_unused(self, stack)
        stack.check_model(self)
        self.stack = stack.to_dict()
        layers = [self.layer_attention(layer) for layer in range(self.num_hidden_layers)]
        _check_heads(self, layers)
        check_shared_tables(layers)
        _check_losses(layers, stack)
        _check_losses([self.decoder_layer_attention(layer) for layer in range(self.decoder_layers)], stack.of_decoder())
        if self.position_embedding in ("learned", "axial"):
            check_longest(layers, self.max_position_embeddings, self.num_memory_tokens)
        _check_memory(self, stack, layers)
        if self.head is not None:
            spec = head_spec(self.head)
            spec.check_model(self)
            check_compressed(self, spec)
            self.head = spec.to_dict()

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings before a projection that all tokens share; those of clusters have their own."""
        own = self.embedding_size is not None and self.cutoffs is None
        return self.embedding_size if own else self.hidden_size  # pyright: ignore[reportReturnType]

    @property
    def states_width(self) -> int:
        """Width of the states that heads process."""
        return self.hidden_size * stack_config(self.stack).returns().streams

    def head_options(self, kind: type[Spec]) -> Spec:
        """Returns the options of a head of this kind: those of `head`, or the defaults if that is another one."""
        return head_spec(self.head) if self.is_for(kind) else kind()  # pyright: ignore[reportReturnType]

    def is_for(self, kind: type[HeadSpec]) -> bool:
        """Whether `head` is of this kind."""
        return self.head is not None and self.head["head"] == kind.head

    def layer_attention(self, layer: int) -> AttentionConfig:
        """Returns the mechanism of encoder layer `layer`, with `attention_dropout` if its spec has no dropout."""
        return self._layer_attention(self.attention, self.num_hidden_layers, layer)

    def decoder_layer_attention(self, layer: int) -> AttentionConfig:
        """Returns the mechanism of self-attention in decoder layer `layer`; see `layer_attention`."""
        return self._layer_attention(self.decoder_attention, self.decoder_layers, layer)

    def _layer_attention(self, specs: Any, layers: int, layer: int) -> AttentionConfig:
        spec = spread(specs, layers)[layer]
        return attention_config({"dropout": self.attention_dropout, **spec})


FIELDS = hints_of(ModelFields)
"""Field → its type with its limits."""


def _check_unused(config: ModelFields, stack: StackConfig) -> None:
    """Raises `InputError` for the first field that is set, but has no effect in this stack."""
    for name, reason in stack.unused.items():
        value, default = getattr(config, name), getattr(ModelFields, name)
        if name.endswith("attention"):  # every option has been filled in
            decoder = name == "decoder_attention"
            default = plain_layers(default, config.decoder_layers if decoder else config.num_hidden_layers)
        if value != default:
            raise InputError(f"{name}={show(value)} means nothing in stack {stack.stack!r}, {reason}; leave it out")


def _check_memory(config: ModelFields, stack: StackConfig, layers: Sequence[AttentionConfig]) -> None:
    """Raises `InputError` for memory tokens that the mechanisms or the stack do not support, or options
    without memory tokens.
    """
    count, lower = config.num_memory_tokens, config.compress_after
    if not count:
        for name in ("memory_embedding", "compress_after"):
            if (value := getattr(config, name)) != getattr(ModelFields, name):
                raise InputError(f"{name}={value!r} is for models with num_memory_tokens; give these, or leave it out")
        return
    if "memory_tokens" not in stack.supports:
        raise InputError(
            f"num_memory_tokens={count} does not go with stack {stack.stack!r}, which does not treat every place "
            "alike; leave it out, or choose stack 'sequential'"
        )
    for layer, attention in enumerate(layers):
        if (reason := why_not(attention, "globals")) is not None:
            raise InputError(
                f"num_memory_tokens={count} needs global tokens, and attention of layer {layer} is "
                f"{attention.mechanism!r}, which takes none{since(reason)}; choose another mechanism"
            )
    if config.position_embedding in ("learned", "axial") and count > config.max_position_embeddings:
        raise InputError(
            f"num_memory_tokens={count} is more than the longest text has tokens, max_position_embeddings="
            f"{config.max_position_embeddings}; give at most as many, or read longer texts"
        )
    if lower is None:
        return
    if "ranges" not in stack.supports:
        raise InputError(
            f"compress_after={lower} does not go with stack {stack.stack!r}, whose layers all read the same places; "
            "leave it out, or choose stack 'sequential'"
        )
    if lower > config.num_hidden_layers:
        raise InputError(
            f"compress_after={lower} is more than num_hidden_layers={config.num_hidden_layers}; give at most as many"
        )


def check_compressed(config: ModelFields, head: HeadSpec) -> None:
    """Raises `InputError` for a token-level head of a model that continues with its memory alone."""
    if config.compress_after is not None and head.reads_tokens:
        raise InputError(
            f"compress_after={config.compress_after} leaves head {head.head!r} no tokens to read, only the memory; "
            "choose a head for whole texts, or leave it out"
        )


def _check_losses(layers: Sequence[AttentionConfig], stack: StackConfig) -> None:
    """Raises `InputError` for a layer with a loss in a stack that would drop it."""
    for layer, attention in enumerate(layers):
        if getattr(attention, "inputs_add_loss", False) and "losses" not in stack.supports:
            raise InputError(
                f"attention of layer {layer} is {attention.describe()}, whose inputs add to the loss, and stack "
                f"{stack.stack!r} would leave that out; set the weight of this loss to 0, or choose stack 'sequential'"
            )


def _check_sizes(config: ModelFields) -> None:
    """Raises `InputError` for the first size that does not match the others."""
    if config.decoder_layers and config.embedding_width != config.hidden_size:
        raise InputError(
            f"embedding_size={config.embedding_size} differs from hidden_size={config.hidden_size} in a model with a "
            "decoder, which shares its token table; leave it out"
        )
    ids = [] if isinstance(config.global_tokens, str) else config.global_tokens
    if not isinstance(config.global_tokens, str) and (not ids or max(ids) >= config.vocab_size):
        raise InputError(
            f"global_tokens={show(config.global_tokens)} must name one or more token ids below "
            f"vocab_size={config.vocab_size}; give these, or 'none'"
        )
    period = config.position_period
    if config.sinusoids != "two_to_period" and period is not None and period <= SHORTEST_WAVE:
        raise InputError(
            f"position_period is {period}; it must be above 2π, the shortest wavelength of the sinusoids, or null"
        )
    if config.pad_token_id is not None and config.pad_token_id >= config.vocab_size:
        raise InputError(
            f"pad_token_id is {config.pad_token_id}, but vocab_size is {config.vocab_size}; "
            "give a token of the vocabulary"
        )
    if config.positions_skip_padding and (config.position_offset < 1 or config.pad_token_id is None):
        raise InputError(
            f"positions_skip_padding=True needs a pad_token_id and a position_offset of at least 1 (given "
            f"{config.pad_token_id} and {config.position_offset}); padding uses row position_offset - 1"
        )


def _check_head_bias(config: ModelFields) -> None:
    """Raises `InputError` for a bias that no head of the model has."""
    spec: Any = config.head
    masked = isinstance(spec, dict) and (spec.get("head"), spec.get("layers")) == ("masked_lm", "single")
    if config.head_bias and (config.cutoffs is not None or config.decoder_layers or not (spec is None or masked)):
        raise InputError(
            "head_bias=True is for the head of LongspanForCausalLM and LongspanForPrefixLM without cutoffs, and for "
            "the head 'masked_lm' with layers='single'; leave it out"
        )


def _check_clusters(config: ModelFields) -> None:
    """Raises `InputError` for clusters that do not fit the vocabulary; converts them to plain lists."""
    if config.cutoffs is None:
        for name in ("embedding_divisor", "tie_projections"):
            if (value := getattr(config, name)) != getattr(ModelFields, name):
                raise InputError(f"{name}={show(value)} is for models with cutoffs; give these, or leave it out")
        return
    given: Any = config.cutoffs
    cutoffs = config.cutoffs = [given] if isinstance(given, int) else list(given)  # pyright: ignore[reportAttributeAccessIssue]
    if cutoffs != sorted(set(cutoffs)) or cutoffs[-1:] >= [config.vocab_size]:
        raise InputError(
            f"cutoffs={show(cutoffs)} must increase and stay below vocab_size={config.vocab_size}; give the first word "
            "of every cluster but the first"
        )
    if config.decoder_layers or config.head is not None:
        raise InputError(f"cutoffs={show(cutoffs)} is for LongspanForCausalLM, which this is not; leave it out")
    assert config.embedding_size is not None
    if config.embedding_size < config.embedding_divisor ** len(cutoffs):
        raise InputError(
            f"embedding_divisor={config.embedding_divisor} leaves no width to the last of {len(cutoffs) + 1} clusters "
            f"(embedding_size={config.embedding_size}); lower it"
        )
    if not isinstance(config.tie_projections, bool):
        ties = config.tie_projections = list(config.tie_projections)  # pyright: ignore[reportAttributeAccessIssue]
        if len(ties) != len(cutoffs) + 1:
            raise InputError(
                f"tie_projections={show(ties)} must have one entry for each of {len(cutoffs) + 1} "
                "clusters; add or remove some, or give true or false"
            )


def _check_heads(config: ModelFields, layers: Sequence[AttentionConfig]) -> None:
    """Raises `InputError` if heads do not divide the width; a mechanism's heads may have a width of their own."""
    own = all(layer.own_head_width is not None for layer in layers)
    names = ("decoder_attention_heads",) if own else ("num_attention_heads", "decoder_attention_heads")
    for name in names if config.decoder_layers or not own else ():
        heads = getattr(config, name)
        if config.hidden_size % heads:
            raise InputError(
                f"{name}={heads} does not divide hidden_size={config.hidden_size}; choose a number of heads that does"
            )


def _check_axes(config: ModelFields) -> None:
    """Raises `InputError` for inconsistent tables of axial positions; converts their sizes to plain lists."""
    shape, widths = (_two_sizes(config, name) for name in ("axial_shape", "axial_widths"))
    if shape is None or widths is None:
        return
    config.axial_shape, config.axial_widths = shape, widths  # pyright: ignore[reportAttributeAccessIssue]
    places, needed = shape[0] * shape[1], config.max_position_embeddings + config.position_offset
    if places < needed:
        raise InputError(
            f"axial_shape={show(shape)} has {places} places, but max_position_embeddings="
            f"{config.max_position_embeddings} with position_offset={config.position_offset} needs {needed}; give "
            "numbers whose product is at least that"
        )
    if sum(widths) != config.embedding_width:
        raise InputError(
            f"axial_widths={show(widths)} add up to {sum(widths)}, but the embeddings are {config.embedding_width} "
            "wide; give two numbers with that sum"
        )


def _two_sizes(config: ModelFields, name: str) -> list[int] | None:
    """Returns the sizes of the two tables with a name; `None` if positions are not axial."""
    sizes = getattr(config, name)
    if config.position_embedding != "axial":
        if sizes is not None:
            raise InputError(
                f"{name}={show(sizes)} is for position_embedding='axial', not {config.position_embedding!r}; leave it "
                "out"
            )
        return None
    if sizes is None or len(list(sizes)) != 2:
        raise InputError(f"{name} is {show(sizes)}, but position_embedding='axial' has two tables; give two numbers")
    return list(sizes)
