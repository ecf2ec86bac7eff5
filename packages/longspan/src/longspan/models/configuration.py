"""The configuration of every Longspan model in the format of transformers, with aliases for the names of
other models.
"""

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
"""Aliases of fields in BERT, RoBERTa, Longformer, BART, LED and GPT-2 → field."""

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
"""Names in other configurations → where to set the same here."""


class LongspanConfig(ModelFields, PreTrainedConfig):
    """Configuration of every Longspan model: `ModelFields` in a config.json of transformers.

    Raises:
        InputError: an unknown key, mechanism or option; heads that do not divide the width; a list of attentions whose
            length is not `num_hidden_layers`; an unknown choice; a size below its minimum.
    """

    model_type = "longspan"
    # Keys that an evaluation does not gather (a transformers convention); encoder states of long documents are large.
    keys_to_ignore_at_inference = [  # noqa: RUF012
        "cache",
        "past_key_values",  # its name before transformers 5.24
        "encoder_last_hidden_state",
        "ponder_times",
        "encoder_ponder_times",
    ]
    attribute_map = _OTHER_NAMES

    def __post_init__(self, longspan_version: str | None = None, **kwargs: Any) -> None:
        # A loaded file has the version that wrote it; the next one written has this version.
        for name in [name for name in kwargs if name in _OTHER_NAMES]:
            self._take(name, kwargs.pop(name))
        self._check_known(kwargs)
        if self.id2label is not None:  # transformers assumes a mapping
            check_kind(self.id2label, "id2label", Mapping, "a mapping from numbers to labels")
        self.settle()
        super().__post_init__(**kwargs)

    def __setattr__(self, key: str, value: Any) -> None:
        """As transformers; raises for names whose value belongs elsewhere, which would have no effect here."""
        if key in _ELSEWHERE:
            raise InputError(f"{key}={show(value)} is no field of LongspanConfig; {_ELSEWHERE[key]}")
        super().__setattr__(key, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As transformers, from the content of a config.json.

        An unknown key is kept, saved again, and causes a warning: it may be a user's note, or from a later version.
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
        """As transformers, with the current version of Longspan."""
        return {**super().to_dict(), "longspan_version": __version__}

    def _take(self, name: str, value: Any) -> None:
        """Sets a field by an alias; raises `InputError` if the field was set to another value."""
        field = _OTHER_NAMES[name]
        given, default = getattr(self, field), getattr(type(self), field)
        if given not in (default, value):
            raise InputError(f"{name}={show(value)} and {field}={show(given)} are one field; give one of them")
        setattr(self, field, value)

    def _check_known(self, given: dict[str, Any]) -> None:
        """Raises `InputError` for the first unknown keyword, with its right location or a similar name."""
        unknown = [key for key in given if key not in _own_keys() and not key.startswith("_")]
        for key in unknown:
            if key in _ELSEWHERE:
                raise InputError(f"unknown key {key!r}; {_ELSEWHERE[key]}")
        check_keys(unknown, [field.name for field in fields(self)])


def _own_keys() -> set[str]:
    """Returns the keys besides fields that transformers writes into a config.json."""
    return {*_TRANSFORMERS_KEYS, *GenerationConfig().to_dict()}
