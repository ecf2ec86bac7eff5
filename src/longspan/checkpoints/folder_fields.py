"""What the fields of a checkpoint's JSON files may hold, by their names: every wrong type and size is one sentence.

The names are those of transformers and of `LongspanConfig`; a name that is not listed is left to the class that reads
it. Nothing heavy is imported here, so that a folder can be refused before torch is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from typing import Any

from longspan.errors import InputError

Check = Callable[[Any], str | None]
"""From a value to what it should have been, or `None` when it is right."""

MOST_LABELS = 100_000
MOST_BEAMS = 1_000
LONGEST = 2**31 - 1


def is_whole(value: Any, least: int, most: int) -> bool:
    """Whether a value is an integer (not a flag) in that range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(least: int, most: int = LONGEST, *, absent: bool = False) -> Check:
    wanted = f"a whole number of at least {least}" if most == LONGEST else f"a whole number from {least} to {most}"

    def check(value: Any) -> str | None:
        return None if (absent and value is None) or is_whole(value, least, most) else wanted

    return check


def _number(least: float, most: float, wanted: str, *, absent: bool = False, above: bool = False) -> Check:
    def check(value: Any) -> str | None:
        if absent and value is None:
            return None
        right = isinstance(value, int | float) and not isinstance(value, bool)
        return None if right and least <= value <= most and not (above and value == least) else wanted

    return check


def _flag(*, absent: bool = True) -> Check:
    return lambda value: None if isinstance(value, bool) or (absent and value is None) else "true or false"


def _token(value: Any) -> str | None:
    return None if value is None or is_whole(value, 0, LONGEST) else "the number of a token, or null"


def _tokens(value: Any) -> str | None:
    single = _token(value) is None
    several = isinstance(value, list) and value and all(is_whole(item, 0, LONGEST) for item in value)
    return None if single or several else "the number of a token, a list of them, or null"


def _words(value: Any) -> str | None:
    return None if isinstance(value, str) and value.isprintable() and value.strip() else "a name"


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _mark(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return None if value is None or isinstance(text, str) else "a text, or an object with its content"


def _classes(value: Any) -> str | None:
    right = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if value is None or right else "a list of names"


def _labels(value: Any) -> str | None:
    wanted = f"an object of at most {MOST_LABELS} labels, from numbers to names"
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MOST_LABELS:
        return wanted
    return None if all(key.isdecimal() and len(key) < 10 and isinstance(value[key], str) for key in value) else wanted


def _label_numbers(value: Any) -> str | None:
    right = isinstance(value, dict) and all(is_whole(item, 0, LONGEST) for item in value.values())
    return None if value is None or right else "an object from label names to numbers"


def _one_of(*names: Any) -> Check:
    shown = ", ".join("null" if name is None else str(name) for name in names)
    return lambda value: None if any(value is name or value == name for name in names) else f"one of {shown}"


def _object(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict) else "an object"


def _never(reason: str) -> Check:
    return lambda value: None if value is None else reason


def _windows(value: Any) -> str | None:
    several = isinstance(value, list) and value and all(is_whole(item, 1, LONGEST) for item in value)
    return None if several or is_whole(value, 1, LONGEST) else "a width of at least 1, or a list of one per layer"


PROBABILITY = _number(0, 1, "a number from 0 to 1", absent=True)
DTYPES = ("float32", "float16", "bfloat16", "float64")

CONFIG: dict[str, Check] = {
    **dict.fromkeys(
        (
            "vocab_size",
            "hidden_size",
            "d_model",
            "dim",
            "embedding_size",
            "intermediate_size",
            "hidden_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "num_attention_heads",
            "encoder_attention_heads",
            "n_heads",
            "max_position_embeddings",
            "max_encoder_position_embeddings",
        ),
        _whole(1),
    ),
    **dict.fromkeys(
        ("decoder_attention_heads", "decoder_intermediate_size", "max_decoder_position_embeddings"),
        _whole(1, absent=True),
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers", "sentence_layers"), _whole(0)
    ),
    **dict.fromkeys(("type_vocab_size", "position_offset"), _whole(0)),
    **dict.fromkeys(("max_global_tokens", "chunk_size_feed_forward"), _whole(0, absent=True)),
    "num_labels": _whole(1, MOST_LABELS, absent=True),
    **dict.fromkeys(("max_relative_positions", "position_buckets"), _whole(-1, absent=True)),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"), _token),
    **dict.fromkeys(("decoder_start_token_id", "forced_bos_token_id"), _token),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), _tokens),
    **dict.fromkeys(
        (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "dropout",
            "attention_dropout",
            "activation_dropout",
            "classifier_dropout",
            "classifier_input_dropout",
            "pooler_dropout",
            "cls_dropout",
            "encoder_layerdrop",
            "decoder_layerdrop",
            "label_smoothing",
        ),
        PROBABILITY,
    ),
    **dict.fromkeys(("layer_norm_eps", "norm_eps"), _number(0, 1, "a number above 0, below 1", above=True)),
    **dict.fromkeys(("initializer_range", "init_std"), _number(0, 1e3, "a number from 0 to 1000")),
    "position_period": _number(2, 1e12, "a number above 2", above=True),
    **dict.fromkeys(
        (
            "add_cross_attention",
            "embedding_norm",
            "is_decoder",
            "is_encoder_decoder",
            "null_paragraph",
            "output_attentions",
            "output_hidden_states",
            "pooler",
            "position_biased_input",
            "positions_skip_padding",
            "relative_attention",
            "return_dict",
            "scale_embedding",
            "tie_word_embeddings",
            "use_cache",
            "wrap_labels",
        ),
        _flag(),
    ),
    **dict.fromkeys(("hidden_act", "activation_function", "classifier_activation", "pooler_hidden_act"), _words),
    **dict.fromkeys(("hidden_activation", "masked_lm_activation", "source_model_type"), _optional(_words)),
    "model_type": _words,
    "architectures": _classes,
    **dict.fromkeys(("dtype", "torch_dtype"), _one_of(None, *DTYPES, *(f"torch.{name}" for name in DTYPES))),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), _optional(_words)),
    "id2label": _labels,
    "label2id": _label_numbers,
    "problem_type": _one_of(None, "regression", "single_label_classification", "multi_label_classification"),
    "attention_window": _windows,
    "auto_map": _object,
    "task_specific_params": _object,
    "source_fields": _object,
    "quantization_config": _never("left out, since Longspan reads unquantised weights only"),
}
"""Fields of `config.json`."""

GENERATION: dict[str, Check] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), _whole(1, MOST_BEAMS, absent=True)),
    **dict.fromkeys(("max_length", "max_new_tokens"), _whole(1, absent=True)),
    **dict.fromkeys(
        ("min_length", "min_new_tokens", "top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        _whole(0, absent=True),
    ),
    **dict.fromkeys(
        ("temperature", "repetition_penalty", "encoder_repetition_penalty"),
        _number(0, 1e6, "a number above 0", absent=True, above=True),
    ),
    **dict.fromkeys(("length_penalty", "diversity_penalty"), _number(-1e6, 1e6, "a finite number", absent=True)),
    **dict.fromkeys(("top_p", "typical_p", "min_p", "epsilon_cutoff", "eta_cutoff"), PROBABILITY),
    **dict.fromkeys(("do_sample", "use_cache", "remove_invalid_values", "renormalize_logits"), _flag()),
    **dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), _flag()),
    "early_stopping": _one_of(None, True, False, "never"),
    "return_dict_in_generate": _one_of(None, False),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), _token),
    # One start per row of a batch may be given as a list.
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "decoder_start_token_id"), _tokens),
}
"""Fields of `generation_config.json`."""


TOKENIZER: dict[str, Check] = {
    **{f"{name}_token": _mark for name in ("pad", "bos", "eos", "unk", "sep", "cls", "mask")},
    **dict.fromkeys(("padding_side", "truncation_side"), _one_of(None, "left", "right")),
    **dict.fromkeys(("tokenizer_class", "backend"), _optional(_words)),
    **dict.fromkeys(("auto_map", "added_tokens_decoder"), _object),
    # Tokenizers without a limit say 1e30.
    "model_max_length": _number(1, 1e31, "a number of tokens", absent=True),
    "model_input_names": _classes,
}
"""Fields of `tokenizer_config.json` and `special_tokens_map.json`."""


def check_fields(values: dict[str, Any], checks: dict[str, Check], place: str, *, finite: bool = True) -> None:
    """Raise `InputError` for the first field of `place` with a value that no model can have.

    Numbers that are not finite, or beyond 64 bits, are refused wherever they stand, unless `finite` is False.
    """
    for path, number in _numbers(values, "") if finite else ():
        if number != number or abs(number) >= 2**63:
            raise InputError(f"{place} says {path}={shown(number)}, which is no usable number; correct it")
    for name, check in checks.items():
        wanted = check(values[name]) if name in values else None
        if wanted is not None:
            raise InputError(f"{place} says {name}={shown(values[name])}, but it must be {wanted}; correct it")


def shown(value: Any) -> str:
    """A value in an error: short, on one line, without control characters."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    short.maxlevel = 3
    return short.repr(value)


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
