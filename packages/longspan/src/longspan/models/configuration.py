"""The configuration of every Longspan model: sizes, published conventions, and one attention per encoder layer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from transformers import GenerationConfig, PreTrainedConfig

from longspan.errors import InputError
from longspan.models.fields import ModelFields
from longspan.settings import check_keys, check_kind, near, show, show_key
from longspan.version import __version__

logger = logging.getLogger(__name__)

# Keys, besides the fields below, that transformers itself writes into a config.json or passes to a configuration.
_TRANSFORMERS_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "gradient_checkpointing",
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

_OTHER_NAMES = {
    "attention_probs_dropout_prob": "attention_dropout",
    "d_model": "hidden_size",
    "decoder_ffn_dim": "decoder_intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "dropout",
    "initializer_range": "init_std",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_encoder_position_embeddings": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
"""What BERT, RoBERTa, Longformer, BART, LED and GPT-2 call a field → the field; it may be given under either name."""

_HALF_WINDOW = "a mapping with its 'mechanism' and half of the window as 'left_tokens' and as 'right_tokens'"
_ELSEWHERE = {
    "add_cross_attention": "a decoder that reads a source comes with decoder_layers",
    "attention_type": "name the mechanism in attention",
    "attention_window": f"a window is an option of its mechanism: give attention {_HALF_WINDOW}",
    "block_size": "blocks are an option of their mechanism: give attention a mapping with it and 'block_tokens'",
    "classifier_dropout": "it is an option of the head: give head={'head': 'sequence_classification', 'dropout': p}",
    "is_decoder": "LongspanForCausalLM is causal by itself; leave it out",
    "layerdrop": "whole layers are never dropped; leave it out",
    "num_key_value_heads": "every head has keys and values of its own; leave it out",
    "num_random_blocks": "they are an option of the mechanism: give attention a mapping with it and 'random_blocks'",
    "position_embedding_type": "see position_embedding, or the option positions of a mechanism",
    "sliding_window": f"a window is an option of its mechanism: give attention {_HALF_WINDOW}",
}
_ELSEWHERE |= dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), _ELSEWHERE["layerdrop"])
"""Names of other configurations for what has another place here → which place."""


class LongspanConfig(ModelFields, PreTrainedConfig):
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
        positions_skip_padding: False: the row is the index in the input (BART, BERT), counted from the first real token
            of the attention mask, or in a published model from the beginning of the row; True: tokens other than
            `pad_token_id` are counted, and padding gets row `position_offset - 1` (RoBERTa, Longformer).
        type_vocab_size: rows of the token-type table: 2 for BERT, 1 for RoBERTa, 0 for none (BART).
        embedding_size: width of the embeddings where it is not E (ELECTRA, DeBERTa-v2): a linear layer takes them
            there; `None` means E. Encoders without a decoder only.
        embedding_projection: where that layer stands: "after_norm", with a bias (ELECTRA), or "before_norm", without
            one (DeBERTa).
        cutoffs: first words of the clusters of a large vocabulary, whose words are numbered by frequency: adaptive
            embeddings and an adaptive softmax, see `longspan.models.adaptive`; `embedding_size` is then the width of
            the first cluster's embeddings, `[]` means a single cluster with a bias for each word, and `None` the plain
            table and head. `LongspanForCausalLM` only.
        embedding_divisor: by how much the embeddings of each further cluster are narrower.
        tie_projections: whether the softmax uses the projections of the embeddings: for all clusters, or a list with
            one entry for each. Nothing is tied without `tie_word_embeddings`.
        head_bias: a bias for each word in the head of a language model without `cutoffs`, or in that of masked words
            with `layers="single"` (Reformer).
        embedding_norm: LayerNorm over the summed embeddings.
        scale_embedding: multiply token embeddings by √E (mBART).
        normalization: "post" (BART, RoBERTa, BERT) or "pre" (mBART; adds a final LayerNorm to encoder and decoder).
        layer_norm_eps: ε of every LayerNorm: 1e-5 (BART, RoBERTa), 1e-12 (BERT).
        activation_function: of the feed-forward layers, by its transformers name.
        dropout: after embeddings, attention and feed-forward layers.
        attention_dropout: of attention weights, wherever `attention` itself gives no `dropout`.
        activation_dropout: inside the feed-forward layers.
        pooler: give `LongspanModel` a dense-tanh pooler over the first token (BERT, RoBERTa).
        attention: an encoder mechanism: a name, or a dict `{"mechanism": name, option: value, ...}`; or a list of these
            with one per encoder layer, or with the `layers` that each is for (`longspan.attention.layers`). Stored as
            plain data with every option filled in. `LongspanForCausalLM`, which has no encoder, builds its layers from
            it in their causal form.
        decoder_attention: the mechanism over the output in an encoder–decoder, in the same forms with one per decoder
            layer; any that has a causal form.
        stack: how blocks are put together: a name, or a dict `{"stack": name, option: value, ...}`.
        head: what stands on the encoder: the name of a head, or a dict `{"head": name, option: value, ...}` of its
            options, see `longspan.models.heads`; `None` for the encoder alone and for models with a decoder. A model
            class with another head takes the defaults of its own. Stored as plain data.
        global_tokens: which tokens are global when no `global_attention_mask` is passed: "none", "first" (LED,
            classification), "question" (every token before the first `sep_token_id`), or a list of token ids: every
            token with one of them, such as PRIMERA's `<doc-sep>`.
        max_global_tokens: static number of slots for the global tokens of a `global_attention_mask`, needed only to
            compile or export with such a mask; `None` means as many as the mask of the batch holds.
        num_memory_tokens: vectors in front of every text that are global tokens of the encoder and belong to no token
            of the text (Gupta & Berant 2020, "GMAT", arXiv 2006.03274); 0 means none. Outputs and labels are those of
            the text, `max_position_embeddings` counts the text alone; where that is the length of a table, they are at
            most as many.
        memory_embedding: what they are: "learned" (a table of their own), or "sinusoidal" (the sinusoids of 0, 1, 2, …,
            so that no weight depends on their number).
        compress_after: so many encoder layers read memory and text, and the others the memory alone, which is then what
            the encoder gives, and what a decoder, or a head that labels whole texts, reads; `None` means that all
            layers read the text.
        label_smoothing: of the sequence-to-sequence loss.
        wrap_labels: start the decoder with the last real label, a language code, instead of `decoder_start_token_id`,
            when its inputs are made from labels (mBART).
        pseudo_masks: of `LongspanForPrefixLM`: guess each token by a `mask_token_id` in its place, instead of by the
            token before it.
        mask_token_id: the token that stands for one to be guessed; read only with `pseudo_masks`.
        position_embedding: "learned" (a table of `max_position_embeddings` rows) or "sinusoidal" (no weights, and then
            no longest input: positions repeat nothing and need nothing of a length never trained on), "axial" (two
            small tables whose every pair is a position, Kitaev et al. 2020), or "none": the encoder knows places only
            by the relative positions of its attention, as DeBERTa does, or by its stack. With these two a decoder
            beside an encoder keeps a table of its own, unless its stack tells it places.
        sinusoids: their form. "paper": sin(p·10000^(−2i/E)) in channel 2i and the cosine in channel 2i + 1 (Vaswani et
            al. 2017, section 3.5), of amplitude 1 with `scale_embedding`, and else of amplitude `init_std`, which keeps
            the proportion to token embeddings of that standard deviation. "halves": the same numbers in another order,
            all sines before all cosines, always of amplitude 1 (Marian, Pegasus). "two_to_period": all sines before all
            cosines, wavelengths from 2 to `position_period`, amplitude √2·`init_std` (the bundled encoder).
        position_period: longest wavelength of the sinusoids, in tokens; a short one tells order within a neighbourhood
            only, which is the same at any length of the document. `None` means 2π·10000, as published, and 10000 with
            "two_to_period". With "paper" and "halves" the last channels come near it, and it is above the shortest
            wavelength, 2π.
        axial_shape: rows of the two tables of axial positions, (n₁, n₂): position p reads row p // n₂ of the first and
            row p mod n₂ of the second. Their product is at least `max_position_embeddings` + `position_offset`.
        axial_widths: widths of the two tables, which stand side by side: they add up to that of the embeddings.
        axial_std: standard deviation with which these tables start.
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
    keys_to_ignore_at_inference = [  # noqa: RUF012
        "cache",
        "past_key_values",  # its name before transformers 5.24
        "encoder_last_hidden_state",
        "ponder_times",
        "encoder_ponder_times",
    ]
    attribute_map = _OTHER_NAMES

    def __post_init__(self, longspan_version: str | None = None, **kwargs: Any) -> None:
        # The version that wrote a file is for those who read it; the one that writes the next is this one.
        for name in [name for name in kwargs if name in _OTHER_NAMES]:
            self._take(name, kwargs.pop(name))
        self._check_known(kwargs)
        if self.id2label is not None:  # transformers takes it for a mapping unseen
            check_kind(self.id2label, "id2label", Mapping, "a mapping from numbers to labels")
        self.settle()
        super().__post_init__(**kwargs)

    def __setattr__(self, key: str, value: Any) -> None:
        """As transformers; what has its place elsewhere would change nothing here, and is refused."""
        if key in _ELSEWHERE:
            raise InputError(f"{key}={show(value)} is no field of LongspanConfig; {_ELSEWHERE[key]}")
        super().__setattr__(key, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As transformers, from the content of a config.json.

        A key that means nothing here is kept, saved again, and warned of: it may be a note of somebody's, or a later
        version's.
        """
        known = {*(field.name for field in fields(cls)), *_own_keys(), *_OTHER_NAMES, *_ELSEWHERE, "longspan_version"}
        stored = dict(config_dict)
        notes = {
            key: stored.pop(key)
            for key in list(stored)
            if key not in known and not key.startswith("_") and not hasattr(cls, key)
        }
        made = super().from_dict(stored, **kwargs)
        config: Any = made[0] if isinstance(made, tuple) else made
        for key, value in notes.items():
            setattr(config, key, value)
            hint = near(key, [field.name for field in fields(cls)])
            logger.warning("%r of a saved configuration is kept and means nothing here; %s", show_key(key), hint)
        return made

    @classmethod
    def from_json_file(cls, json_file: Any) -> Self:
        """As `from_dict`, from the file."""
        return cls.from_dict(cls._dict_from_json_file(json_file))

    def to_dict(self) -> dict[str, Any]:
        """As transformers, with the version of Longspan that writes it."""
        return {**super().to_dict(), "longspan_version": __version__}

    def _take(self, name: str, value: Any) -> None:
        """Set a field by another name of it; `InputError` where it was given by its own too, and differs."""
        field = _OTHER_NAMES[name]
        given, default = getattr(self, field), getattr(type(self), field)
        if given not in (default, value):
            raise InputError(f"{name}={show(value)} and {field}={show(given)} are one field; give one of them")
        setattr(self, field, value)

    def _check_known(self, given: dict[str, Any]) -> None:
        """Raise `InputError` for the first keyword that means nothing here, with its right place or the near one."""
        unknown = [key for key in given if key not in _own_keys() and not key.startswith("_")]
        for key in unknown:
            if key in _ELSEWHERE:
                raise InputError(f"unknown key {key!r}; {_ELSEWHERE[key]}")
        check_keys(unknown, [field.name for field in fields(self)])


def _own_keys() -> set[str]:
    """What transformers writes into a config.json besides fields."""
    return {*_TRANSFORMERS_KEYS, *GenerationConfig().to_dict()}
