"""The configuration of every Longspan model: sizes, published conventions, and one attention per encoder layer."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from transformers import GenerationConfig, PreTrainedConfig

from longspan.attention import AttentionConfig, FusionConfig, attention_config
from longspan.attention.base import require_choice, require_count
from longspan.errors import InputError
from longspan.model_fields import shown

# Keys, besides the fields below, that transformers itself writes into a config.json or passes to a configuration.
_TRANSFORMERS_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "per_layer_config",
        "prefix",
        "quantization_config",
        "task_specific_params",
        "tie_last_hidden_states",
        "tokenizer_class",
        "torch_dtype",
    }
)

_MINIMUM = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "decoder_layers": 0,
    "decoder_attention_heads": 1,
    "decoder_intermediate_size": 1,
    "max_position_embeddings": 1,
    "max_decoder_position_embeddings": 1,
    "position_offset": 0,
    "type_vocab_size": 0,
    "sentence_layers": 0,
}
_PROBABILITIES = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "classifier_dropout",
    "classifier_input_dropout",
    "label_smoothing",
)
_CHOICES = {
    "normalization": ("post", "pre"),
    "classification_head": ("dense", "pooler"),
    "global_tokens": ("none", "first", "question"),
    "position_embedding": ("learned", "sinusoidal", "none"),
}


class LongspanConfig(PreTrainedConfig):
    """Configuration of every Longspan model.

    Attributes:
        vocab_size: number of token embeddings.
        hidden_size: model width E.
        num_hidden_layers: encoder layers.
        num_attention_heads: encoder heads H; must divide `hidden_size`.
        intermediate_size: width of the encoder's feed-forward layers.
        decoder_layers: decoder layers; 0 means that there is no decoder.
        decoder_attention_heads: heads of the decoder; `None` means as many as the encoder.
        decoder_intermediate_size: feed-forward width of the decoder; `None` means the encoder's.
        max_position_embeddings: the longest input, in tokens (the table holds `position_offset` rows more).
        max_decoder_position_embeddings: the longest output; `None` means `max_position_embeddings`.
        position_offset: row of the first token in the position tables: 2 for BART and RoBERTa, 0 for BERT.
        positions_skip_padding: False: the row is the index in the input (BART, BERT); True: real tokens are counted
            and padding gets row `position_offset - 1` (RoBERTa, Longformer).
        type_vocab_size: rows of the token-type table: 2 for BERT, 1 for RoBERTa, 0 for none (BART).
        embedding_norm: LayerNorm over the summed embeddings.
        scale_embedding: multiply token embeddings by √E (mBART).
        normalization: "post" (BART, RoBERTa, BERT) or "pre" (mBART; adds a final LayerNorm to encoder and decoder).
        layer_norm_eps: ε of every LayerNorm: 1e-5 (BART, RoBERTa), 1e-12 (BERT).
        activation_function: of the feed-forward layers, by its transformers name.
        masked_lm_activation: of the masked-LM head; `None` means `activation_function`.
        dropout: after embeddings, attention and feed-forward layers.
        attention_dropout: of attention weights, wherever `attention` itself gives no `dropout`.
        activation_dropout: inside the feed-forward layers.
        classifier_dropout: of the classification heads; `None` means `dropout`.
        classifier_input_dropout: before the dense layer of the "dense" classification head; `None` means
            `classifier_dropout` (RoBERTa), DeBERTa has its own.
        classifier_activation: after that layer: "tanh" (RoBERTa), "gelu" (DeBERTa).
        pooler: give `LongspanModel` a dense-tanh pooler over the first token (BERT, RoBERTa).
        classification_head: what `LongspanForSequenceClassification` puts on the first token: "dense"
            (dropout-dense-tanh-dropout-linear: RoBERTa, Longformer, DeBERTa) or "pooler" (pooler-dropout-linear: BERT).
        attention: an encoder mechanism: a name, a dict `{"mechanism": name, option: value, ...}`, or a list of these
            with one per encoder layer. Stored as plain data with every option filled in.
        global_tokens: which tokens are global when no `global_attention_mask` is passed: "none", "first" (LED,
            classification) or "question" (every token before the first `sep_token_id`).
        max_global_tokens: static number of slots for the global tokens of a `global_attention_mask`, needed only to
            compile or export with such a mask; `None` means as many as the mask of the batch holds.
        label_smoothing: of the sequence-to-sequence loss.
        wrap_labels: start the decoder with the last real label, a language code, instead of `decoder_start_token_id`,
            when its inputs are made from labels (mBART).
        position_embedding: "learned" (a table of `max_position_embeddings` rows) or "sinusoidal" (no weights, and then
            no longest input: positions repeat nothing and need nothing of a length never trained on), or "none": the
            encoder knows places only by the relative positions of `fusion`, as DeBERTa does, and a decoder keeps its
            table.
        position_period: longest wavelength of the sinusoids, in tokens; a short one tells order within a neighbourhood
            only, which is the same at any length of the document.
        sentence_layers: blocks over the sequence of sentences in `LongspanForSentenceScoring`; 0 scores each sentence
            from its own tokens.
        sentence_attention: mechanism of these blocks; its windows count sentences.
        answer_types: outputs of `LongspanForNaturalQuestions` about a chunk: 2 (no answer, answer) or 5 (no answer,
            yes, no, short answer, long answer only).
        null_paragraph: there, chunks without a long answer are trained to choose "none of these paragraphs"; False
            leaves them out of the paragraph loss.
        question_loss_weights: there, weights of the losses of start, end, paragraph and answer type.
        init_std: standard deviation of the normal initialisation.
        source_model_type: `model_type` of the published model that the weights came from, as which `to_transformers`
            gives them back; `None` for a model made here.
        source_name: the name of that model on the Hub, where it was loaded by one.
        source_fields: what its configuration said besides, and goes back with it.

    Raises:
        InputError: an unknown key, mechanism or option; heads that do not divide the width; a list of attentions
            whose length is not `num_hidden_layers`; an unknown choice; a size below its minimum.
    """

    model_type = "longspan"
    # What an evaluation need not gather (a transformers convention); encoder states of long documents are large.
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]  # noqa: RUF012
    attribute_map = {"initializer_range": "init_std"}  # noqa: RUF012

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
    pooler: bool = False
    classification_head: Literal["dense", "pooler"] = "dense"
    attention: Any = "longformer"
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

    def __post_init__(self, **kwargs: Any) -> None:
        _refuse_unknown(kwargs)
        self.is_encoder_decoder = self.decoder_layers > 0
        if self.decoder_attention_heads is None:
            self.decoder_attention_heads = self.num_attention_heads
        if self.decoder_intermediate_size is None:
            self.decoder_intermediate_size = self.intermediate_size
        if self.max_decoder_position_embeddings is None:
            self.max_decoder_position_embeddings = self.max_position_embeddings
        if self.sep_token_id is None and isinstance(self.eos_token_id, int):
            self.sep_token_id = self.eos_token_id
        starts = self.is_encoder_decoder and not self.wrap_labels
        if starts and self.decoder_start_token_id is None and isinstance(self.eos_token_id, int):
            self.decoder_start_token_id = self.eos_token_id
        _check_sizes(self)
        self.attention = _plain_attention(self.attention, self.num_hidden_layers)
        self.sentence_attention = _plain_attention(self.sentence_attention, self.sentence_layers)
        _check_shared_tables(self)
        super().__post_init__(**kwargs)

    def layer_attention(self, layer: int) -> AttentionConfig:
        """The mechanism of encoder layer `layer`, with `attention_dropout` where its spec gives no dropout."""
        spec = self.attention[layer] if isinstance(self.attention, list) else self.attention
        return attention_config({"dropout": self.attention_dropout, **spec})


def _refuse_unknown(keywords: dict[str, Any]) -> None:
    """Raise on a key that is neither a field nor one of transformers' own, which would otherwise be ignored."""
    names = [field.name for field in fields(LongspanConfig)]
    generation = set(GenerationConfig().to_dict())
    for key in keywords:
        if key in _TRANSFORMERS_KEYS or key in generation or key.startswith("_"):
            continue
        close = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see LongspanConfig for the fields it has"
        raise InputError(f"LongspanConfig has no field {key!r} (given {shown(keywords[key])}); {hint}")


def _check_sizes(config: LongspanConfig) -> None:
    """Raise `InputError` for the first size, probability or choice that no model can have."""
    for name, least in _MINIMUM.items():
        require_count(name, getattr(config, name), least)
    for name in _PROBABILITIES:
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            raise InputError(f"{name}={value!r} must be a number from 0 up to, but not including, 1")
    for name, allowed in _CHOICES.items():
        require_choice(name, getattr(config, name), allowed)
    for name in ("num_attention_heads", "decoder_attention_heads"):
        heads = getattr(config, name)
        if config.hidden_size % heads:
            raise InputError(
                f"{name}={heads} does not divide hidden_size={config.hidden_size}; choose a number of heads that does"
            )
    if config.answer_types not in (2, 5):
        raise InputError(f"answer_types={config.answer_types!r} must be 2 (no answer, answer) or 5 (also which kind)")
    weights = config.question_loss_weights
    if len(weights) != 4 or not all(0 <= weight < float("inf") for weight in weights):
        raise InputError(
            f"question_loss_weights={weights!r} must be four numbers of at least 0: for start, end, paragraph and type"
        )
    if config.position_period <= 2:
        raise InputError(f"position_period={config.position_period!r} is too short; give more than 2 tokens")
    if config.classification_head == "pooler" and not config.pooler:
        raise InputError("classification_head='pooler' needs pooler=True; set it, or choose 'dense'")
    if config.positions_skip_padding and (config.position_offset < 1 or config.pad_token_id is None):
        raise InputError(
            f"positions_skip_padding=True needs a pad_token_id and a position_offset of at least 1 (given "
            f"{config.pad_token_id} and {config.position_offset}); padding uses row position_offset - 1"
        )


def _check_shared_tables(config: LongspanConfig) -> None:
    """Raise `InputError` where fusion layers ask for different tables of relative positions: they share one."""
    layers = range(config.num_hidden_layers if isinstance(config.attention, list) else 0)
    fusions = [(layer, config.layer_attention(layer)) for layer in layers]
    fusions = [(layer, fusion) for layer, fusion in fusions if isinstance(fusion, FusionConfig)]
    for layer, fusion in fusions[1:]:
        for name in ("relative_span", "global_buckets", "global_span"):
            first, value = getattr(fusions[0][1], name), getattr(fusion, name)
            if first != value:
                raise InputError(
                    f"attention of layer {layer} has {name}={value}, that of layer {fusions[0][0]} has {first}; all "
                    "fusion layers share one table of relative positions, so give them the same"
                )


def _plain_attention(spec: Any, layers: int) -> dict[str, Any] | list[dict[str, Any]]:
    """One mechanism spec, or a list of one per layer, as plain JSON data with every option filled in."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        if len(spec) != layers:
            raise InputError(
                f"attention lists {len(spec)} mechanisms for num_hidden_layers={layers}; give one per layer"
            )
        return [_plain_spec(entry) for entry in spec]
    return _plain_spec(spec)


def _plain_spec(spec: Any) -> dict[str, Any]:
    data = attention_config(spec).to_dict()
    # A dropout that nobody chose is left open, so that `attention_dropout` keeps deciding it.
    chosen = isinstance(spec, dict) and "dropout" in spec
    if not chosen and not data.get("dropout"):
        data.pop("dropout", None)
    return json.loads(json.dumps(data))
