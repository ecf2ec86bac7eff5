"""What the files of a published model say of its use: how it writes, what stands before a text, how much it reads.

Numbers that say "no limit" (`model_max_length` of 1e30) or nothing at all are told from those that do.
"""

from __future__ import annotations

import re
from typing import Any

from longspan.characters import counted
from longspan.checkpoints.folder import GENERATION, check_fields
from longspan.errors import InputError
from longspan_documents.inference.verbs import Decoding

TASK = "summarization"
"""The entry of `task_specific_params` that is for summaries."""
NEW_TOKENS = 256
"""Longest summary of a model whose files do not say any, in tokens."""
POSITIONS = ("max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings", "n_positions")
"""How configurations call the number of tokens that an encoder reads."""
UNBOUNDED = 1_024
"""Tokens read at once by a model that tells positions by their distance and whose files do not say how many it was
trained on; mT5 and ByT5 read as many in training."""
SENSIBLE = 10**9
"""Larger limits are none."""
_LANGUAGE = re.compile(r"(?:__)?([a-z]{2,3})(?:_[A-Z]{2}|__)")
"""A token that names a language: mBART's `en_XX`, M2M's `__en__`."""


def task_options(said: dict[str, Any]) -> dict[str, Any]:
    """What a `config.json` says of summaries, `{}` where it says nothing."""
    tasks = said.get("task_specific_params")
    options = tasks.get(TASK) if isinstance(tasks, dict) else None
    return options if isinstance(options, dict) else {}


def sensible(limit: Any) -> int | None:
    """A number of tokens; None for one that says that there is no limit, or nothing."""
    return int(limit) if isinstance(limit, int | float) and 0 < limit < SENSIBLE else None


def prefix_of(said: dict[str, Any]) -> str:
    """What stands before every text to be summarised."""
    for prefix in (task_options(said).get("prefix"), said.get("prefix")):
        if isinstance(prefix, str):
            return prefix
    return ""


def source_limit(model: Any, tokenizer: Any) -> tuple[int, bool]:
    """How many tokens an encoder–decoder reads at once, and whether it has a table of positions, which ends there.

    Models of RoBERTa's kind count positions from behind the padding's id.
    """
    encoder = model.get_encoder()
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    for name in POSITIONS:
        if (positions := sensible(getattr(encoder.config, name, None))) is not None:
            return positions - (0 if padding is None else 1 + padding), name != "n_positions"
    return sensible(tokenizer.model_max_length) or UNBOUNDED, False


def context_of(model: Any) -> int | None:
    """Tokens that a model of one stack has positions for, read and written together; None where nothing bounds it."""
    config = model.config.get_text_config()
    return next(filter(None, (sensible(getattr(config, name, None)) for name in POSITIONS)), None)


def generation_options(
    model: Any, tokenizer: Any, source: str, decoding: Decoding, said: dict[str, Any], language: str | None
) -> dict[str, Any]:
    """Keyword arguments of `generate`: what is asked for, else what the model's own generation configuration says, else
    its `config.json` of summaries; the likeliest tokens are taken, not drawn, so that a summary can be made again.

    Raises:
        InputError: values that no model can have, more new tokens than the decoder has positions for, or a language
            that a model of several does not write.
    """
    from transformers import GenerationConfig

    own, plain = model.generation_config, GenerationConfig()
    told = {name: value for name, value in task_options(said).items() if hasattr(plain, name)}
    check_fields(told, GENERATION, f"task_specific_params.{TASK} of model {source!r}")
    options = {name: value for name, value in told.items() if getattr(own, name, None) == getattr(plain, name)}
    lengths = ("max_length", "max_new_tokens")
    if any(getattr(own, name, None) not in (None, getattr(plain, name)) for name in lengths):
        options = {name: value for name, value in options.items() if name not in lengths}
    elif not set(lengths) & set(options):
        options["max_new_tokens"] = min(NEW_TOKENS, _decoder_room(model) or NEW_TOKENS)
        if not model.config.is_encoder_decoder and (positions := context_of(model)) is not None:
            options["max_new_tokens"] = max(1, min(NEW_TOKENS, positions // 4))
    options |= decoding.options() | _language_options(model, tokenizer, source, language)
    if own.do_sample or options.get("do_sample"):
        options |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if "max_new_tokens" in options:
        check_length(model, source, options)
    return options


def check_length(model: Any, source: str, options: dict[str, Any]) -> None:
    """Refuse more new tokens than there are positions, and let a shortest length give way to a longest one."""
    new, room = options["max_new_tokens"], _decoder_room(model)
    if room is not None and new > room:
        raise InputError(
            f"max_tokens={new} is more than the {counted(room, 'token')} that model {source!r} can write; lower it"
        )
    options["max_length"] = None  # transformers warns where both a total and a new length are set
    for name in ("min_length", "min_new_tokens"):
        least = options.get(name, getattr(model.generation_config, name, None))
        if least is not None and least > new:
            options[name] = 0


def _decoder_room(model: Any) -> int | None:
    """Tokens that a decoder has positions for, the one it starts from left out; None where nothing bounds it."""
    config = model.config
    if not config.is_encoder_decoder:
        return None
    decoder = getattr(config, "decoder", config)
    for name in ("max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings"):
        if (positions := sensible(getattr(decoder, name, None))) is not None:
            return positions - 1
    return None


def _language_options(model: Any, tokenizer: Any, source: str, language: str | None) -> dict[str, Any]:
    """The token by which a model of several languages is told which to write; its own where none is asked for."""
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
