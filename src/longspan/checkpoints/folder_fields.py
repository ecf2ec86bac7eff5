"""What the fields of a checkpoint's JSON files may hold, by their names: every wrong type and size is one sentence.

The names are those of transformers and of `LongspanConfig`, whose own statements count for them; a name that is not
listed is left to the class that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.models.fields import FIELDS, Token
from longspan.settings import LARGEST, Count, Dropout, Range, Rule, Seed, Share, Whole, convert, show

MOST_LABELS = 100_000

Flag = bool | None
Beams = Annotated[int, Range(1, 1000)]
Name = Annotated[str, Rule(lambda text: text.isprintable() and bool(text.strip()), "a name")]
Tokens = Token | Annotated[list[Token], Rule(bool, "a token, or a list of them")] | None
Pair = Annotated[list[Count], Rule(lambda sizes: len(sizes) == 2, "a list of two numbers")]
Index = Annotated[int, Range(-1, LARGEST)]
Object = dict[str, Any] | None


def is_whole(value: Any, least: int, most: int) -> bool:
    """Whether a value is an integer (not a flag) in that range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _rule(holds: Callable[[Any], bool], words: str) -> Any:
    """A value of any type that is absent or holds to a rule."""
    return Annotated[Any, Rule(lambda value: value is None or holds(value), words)]


def _optional(hint: Any) -> Any:
    return hint | None


def _one_of(*names: Any) -> Any:
    """One of these, or nothing."""
    return _optional(Literal[names])


def _are_labels(value: Any) -> bool:
    right = isinstance(value, dict) and len(value) <= MOST_LABELS
    return right and all(key.isdecimal() and len(key) < 10 and isinstance(value[key], str) for key in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(is_whole(item, 0, LARGEST) for item in value.values())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_mark(value: Any) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


_TYPES = ("float32", "float16", "bfloat16", "float64")

CONFIG: dict[str, Any] = {
    **FIELDS,
    # Published configurations may leave these to a default by null.
    **dict.fromkeys(("tie_word_embeddings", "use_cache"), Flag),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers"), Whole),
    **dict.fromkeys(("d_model", "dim", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), Count),
    **dict.fromkeys(("encoder_attention_heads", "n_heads", "max_encoder_position_embeddings"), Count),
    "chunk_size_feed_forward": _optional(Whole),
    **dict.fromkeys(("max_relative_positions", "position_buckets"), _optional(Index)),
    **dict.fromkeys(("cls_token_id", "mask_token_id"), _optional(Token)),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), Tokens),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), _optional(Dropout)),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), _optional(Dropout)),
    **dict.fromkeys(("pooler_dropout", "cls_dropout", "encoder_layerdrop", "decoder_layerdrop"), Share | None),
    "norm_eps": FIELDS["layer_norm_eps"],
    "initializer_range": FIELDS["init_std"],
    **dict.fromkeys(("add_cross_attention", "is_decoder", "is_encoder_decoder", "position_biased_input"), Flag),
    **dict.fromkeys(("relative_attention", "output_attentions", "output_hidden_states", "return_dict"), Flag),
    **dict.fromkeys(("hidden_act", "activation_function", "pooler_hidden_act", "model_type"), Name),
    "longspan_version": _optional(Name),
    **dict.fromkeys(("hidden_activation", "attn_implementation", "_attn_implementation"), _optional(Name)),
    "architectures": _rule(_are_names, "a list of names"),
    **dict.fromkeys(("dtype", "torch_dtype"), _one_of(*_TYPES, *(f"torch.{name}" for name in _TYPES))),
    "num_labels": _optional(Annotated[int, Range(1, MOST_LABELS)]),
    "id2label": _rule(_are_labels, f"an object of at most {MOST_LABELS} labels, from numbers to names"),
    "label2id": _rule(_are_numbers, "an object from label names to numbers"),
    "problem_type": _one_of("regression", "single_label_classification", "multi_label_classification"),
    **dict.fromkeys(("feed_forward_size", "attention_head_size", "num_hashes"), Count),
    **dict.fromkeys(("local_attn_chunk_length", "lsh_attn_chunk_length"), Count),
    **{f"{kind}_num_chunks_{side}": Whole for kind in ("local", "lsh") for side in ("before", "after")},
    **dict.fromkeys(("local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"), Dropout),
    **dict.fromkeys(("axial_pos_shape", "axial_pos_embds_dim"), Pair),
    "attn_layers": Annotated[list[Literal["local", "lsh"]], Rule(bool, "'local' or 'lsh' for each layer")],
    "axial_pos_embds": bool,
    "axial_norm_std": FIELDS["init_std"],
    "hash_seed": _optional(Seed),
    "num_buckets": _optional(Count | Annotated[list[Count], Rule(bool, "a number, or a list of them")]),
    "attention_window": Count | Annotated[list[Count], Rule(bool, "a width, or a list of one per layer")],
    **dict.fromkeys(("auto_map", "task_specific_params", "source_fields"), Object),
    "quantization_config": _rule(lambda value: False, "left out, since Longspan reads unquantised weights only"),
}
"""Fields of `config.json`."""

GENERATION: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), Beams | None),
    **dict.fromkeys(("max_length", "max_new_tokens"), Count | None),
    **dict.fromkeys(("min_length", "min_new_tokens", "top_k"), Whole | None),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), Whole | None),
    **dict.fromkeys(
        ("temperature", "repetition_penalty", "encoder_repetition_penalty"),
        _optional(Annotated[float, Range(above=0, maximum=1e6)]),
    ),
    **dict.fromkeys(("length_penalty", "diversity_penalty"), _optional(Annotated[float, Range(-1e6, 1e6)])),
    **dict.fromkeys(("top_p", "typical_p", "min_p", "epsilon_cutoff", "eta_cutoff"), Share | None),
    **dict.fromkeys(("do_sample", "use_cache", "remove_invalid_values", "renormalize_logits"), Flag),
    **dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), Flag),
    "no_repeat_ngram_ignored": _optional(Annotated[list[Whole], Rule(bool, "a list of token ids")]),
    "early_stopping": bool | Literal["never"] | None,
    "return_dict_in_generate": _rule(lambda value: value is False, "false or left out"),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), Token | None),
    # One start per row of a batch may be given as a list.
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "decoder_start_token_id"), Tokens),
}
"""Fields of `generation_config.json`."""

TOKENIZER: dict[str, Any] = {
    **{
        f"{name}_token": _rule(_is_mark, "a text, or an object with its content")
        for name in ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
    },
    **dict.fromkeys(("padding_side", "truncation_side"), _one_of("left", "right")),
    **dict.fromkeys(("tokenizer_class", "backend"), _optional(Name)),
    **dict.fromkeys(("auto_map", "added_tokens_decoder"), Object),
    # Tokenizers without a limit say 1e30.
    "model_max_length": _optional(Annotated[float, Range(1, 1e31)]),
    "model_input_names": _rule(_are_names, "a list of names"),
}
"""Fields of `tokenizer_config.json` and `special_tokens_map.json`."""


def check_fields(values: dict[str, Any], fields: Mapping[str, Any], place: str, *, finite: bool = True) -> None:
    """Raise `InputError` for the first field of `place` with a value that no model can have.

    Numbers that are not finite, or beyond 64 bits, are refused wherever they stand, unless `finite` is False.
    """
    for path, number in _numbers(values, "") if finite else ():
        if number != number or abs(number) >= 2**63:
            raise InputError(f"{place} says {path}={show(number)}, which is no usable number; correct it")
    for name, hint in fields.items():
        if name in values:
            convert(hint, values[name], f"{place} is wrong: {name}")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number in plain data, with the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
