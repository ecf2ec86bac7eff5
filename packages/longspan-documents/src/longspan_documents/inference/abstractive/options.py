"""Generation options, prefix and input length from the files of a published model.

Values that mean "no limit", such as a `model_max_length` of 1e30, are treated like missing ones.
"""

from __future__ import annotations

import re
from typing import Any

from longspan.characters import counted
from longspan.checkpoints.folder import GENERATION, check_fields
from longspan.errors import InputError
from longspan_documents.inference.verbs import Decoding

TASK = "summarization"
"""The entry of `task_specific_params` for summaries."""
NEW_TOKENS = 256
"""Maximum length of a summary, in tokens, if the model's files specify none."""
POSITIONS = ("max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings", "n_positions")
"""Names of the maximum input length in configurations."""
UNBOUNDED = 1_024
"""Maximum input length, in tokens, of a model with relative positions whose files do not specify its length in
training; mT5 and ByT5 were trained with this length."""
SENSIBLE = 10**9
"""Larger values mean that there is no limit."""
_LANGUAGE = re.compile(r"(?:__)?([a-z]{2,3})(?:_[A-Z]{2}|__)")
"""A language token: mBART's `en_XX`, M2M's `__en__`."""


def task_options(config_json: dict[str, Any]) -> dict[str, Any]:
    """Returns the options for summaries of a `config.json`, `{}` if there are none."""
    tasks = config_json.get("task_specific_params")
    options = tasks.get(TASK) if isinstance(tasks, dict) else None
    return options if isinstance(options, dict) else {}


def sensible(limit: Any) -> int | None:
    """Returns a limit in tokens, or None if the value is missing or means "no limit"."""
    return int(limit) if isinstance(limit, int | float) and 0 < limit < SENSIBLE else None


def prefix_of(config_json: dict[str, Any]) -> str:
    """Returns the prefix that the model expects before a text to summarise."""
    for prefix in (task_options(config_json).get("prefix"), config_json.get("prefix")):
        if isinstance(prefix, str):
            return prefix
    return ""


def source_limit(model: Any, tokenizer: Any) -> tuple[int, bool]:
    """Returns the maximum input length of an encoder-decoder in tokens, and whether a table of positions limits it.

    In models such as RoBERTa, positions start after the id of the padding token.
    """
    encoder = model.get_encoder()
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    for name in POSITIONS:
        if (positions := sensible(getattr(encoder.config, name, None))) is not None:
            return positions - (0 if padding is None else 1 + padding), name != "n_positions"
    return sensible(tokenizer.model_max_length) or UNBOUNDED, False


def context_of(model: Any) -> int | None:
    """Returns the context length of a decoder-only model, prompt and output together; None if it is unlimited."""
    config = model.config.get_text_config()
    return next(filter(None, (sensible(getattr(config, name, None)) for name in POSITIONS)), None)


def generation_options(
    model: Any, tokenizer: Any, source: str, decoding: Decoding, config_json: dict[str, Any], language: str | None
) -> dict[str, Any]:
    """Returns keyword arguments of `generate`.

    Options of the caller take precedence over the model's generation configuration, and this over the summarisation
    entry of `config.json`. Sampling is disabled, so that summaries are reproducible.

    Raises:
        InputError: a value is invalid, there are more new tokens than the decoder has positions for, or a multilingual
            model does not support the language.
    """
    from transformers import GenerationConfig

    model_defaults, plain = model.generation_config, GenerationConfig()
    task_defaults = {name: value for name, value in task_options(config_json).items() if hasattr(plain, name)}
    check_fields(task_defaults, GENERATION, f"task_specific_params.{TASK} of model {source!r}")
    options = {
        name: value
        for name, value in task_defaults.items()
        if getattr(model_defaults, name, None) == getattr(plain, name)
    }
    lengths = ("max_length", "max_new_tokens")
    if any(getattr(model_defaults, name, None) not in (None, getattr(plain, name)) for name in lengths):
        options = {name: value for name, value in options.items() if name not in lengths}
    elif not set(lengths) & set(options):
        options["max_new_tokens"] = min(NEW_TOKENS, _decoder_room(model) or NEW_TOKENS)
        if not model.config.is_encoder_decoder and (positions := context_of(model)) is not None:
            options["max_new_tokens"] = max(1, min(NEW_TOKENS, positions // 4))
    options |= decoding.options() | _language_options(model, tokenizer, source, language)
    if model_defaults.do_sample or options.get("do_sample"):
        options |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if "max_new_tokens" in options:
        check_length(model, source, options)
    return options


def check_length(model: Any, source: str, options: dict[str, Any]) -> None:
    """Check that the new tokens fit the model's positions, and limit the minimum length to the maximum length."""
    new, room = options["max_new_tokens"], _decoder_room(model)
    if room is not None and new > room:
        raise InputError(
            f"max_tokens={new} is more than the {counted(room, 'token')} that model {source!r} can write; lower it"
        )
    options["max_length"] = None  # transformers warns if both `max_length` and `max_new_tokens` are set
    for name in ("min_length", "min_new_tokens"):
        least = options.get(name, getattr(model.generation_config, name, None))
        if least is not None and least > new:
            options[name] = 0


def _decoder_room(model: Any) -> int | None:
    """Returns the number of tokens that a decoder can generate after its start token; None if it is unlimited."""
    config = model.config
    if not config.is_encoder_decoder:
        return None
    decoder = getattr(config, "decoder", config)
    for name in ("max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings"):
        if (positions := sensible(getattr(decoder, name, None))) is not None:
            return positions - 1
    return None


def _language_options(model: Any, tokenizer: Any, source: str, language: str | None) -> dict[str, Any]:
    """Returns the language token option of a multilingual model; its default if no language is specified."""
    codes: dict[str, str] = {}
    for token in tokenizer.get_added_vocab():
        if match := _LANGUAGE.fullmatch(token):
            codes.setdefault(match[1], token)
    if language is None or len(codes) < 2:
        return {}
    if language not in codes:
        raise InputError(
            f"language={language!r} is none that model {source!r} writes; choose one of {', '.join(sorted(codes))}"
        )
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = codes[language]
    number = tokenizer.convert_tokens_to_ids(codes[language])
    starts = model.generation_config.decoder_start_token_id
    languages = tokenizer.convert_tokens_to_ids(list(codes.values()))
    return {"decoder_start_token_id" if starts in languages else "forced_bos_token_id": number}
