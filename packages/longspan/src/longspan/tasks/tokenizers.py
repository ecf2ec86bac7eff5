"""Functions on tokenizers for tasks: the padding id, and texts truncated to sentences or to a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longspan.errors import InputError


def padding_id(tokenizer: Any) -> int:
    """Returns the padding id; raises `InputError` if the tokenizer has none."""
    if tokenizer.pad_token_id is None:
        raise InputError("the tokenizer has no pad_token, which batches need; set it, or use the model's tokenizer")
    return tokenizer.pad_token_id


def known_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """Returns the ids of a task's special tokens; raises `InputError` if the tokenizer lacks one."""
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    if lacking := [token for token, one in zip(tokens, ids, strict=True) if one in (None, tokenizer.unk_token_id)]:
        raise InputError(f"the tokenizer lacks {', '.join(lacking)}; use the tokenizer that the model was trained with")
    return ids


def encode(tokenizer: Any, text: str, *, pair: str | None = None, max_tokens: int) -> tuple[list[int], int]:
    """Returns token ids with the tokenizer's special tokens, at most `max_tokens` of them, and the
    number without truncation.

    Longer texts are truncated before the final special tokens, so that the sequence ends like any other.

    Args:
        tokenizer: a tokenizer of transformers.
        text: the text, or the first of two.
        pair: the second text; it is the one that is truncated.
        max_tokens: limit, including special tokens.
    """
    ids, special = _whole(tokenizer, text=text, text_pair=pair)
    return _cut(ids, special, max_tokens), len(ids)


def encode_placed(
    tokenizer: Any, text: str, *, pair: str | None = None, max_tokens: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """As `encode`, with the position of each token in the text, in characters, or in the second of two texts; (0, 0)
    for special tokens and those of the first of two texts.

    Raises:
        InputError: the tokenizer does not return positions.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"tokenizer is {type(tokenizer).__name__}, which does not return offsets of its tokens; give a fast one"
        )
    encoded = tokenizer(
        text=text,
        text_pair=pair,
        truncation=False,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    ids, special = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
    wanted = 0 if pair is None else 1
    places = [
        (start, end) if part == wanted else (0, 0)
        for part, (start, end) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True)
    ]
    fitting = _cut(list(range(len(ids))), special, max_tokens)
    return [ids[index] for index in fitting], [places[index] for index in fitting]


def encode_target(tokenizer: Any, text: str, *, max_tokens: int) -> list[int]:
    """As `encode`, for targets of a decoder: always with an end token, without which a model never learns to stop."""
    ids, special = _whole(tokenizer, text_target=text)
    end = end_id(tokenizer)
    if end is None:
        raise InputError("the tokenizer has no eos_token, which ends a summary; set it, or use the model's tokenizer")
    if not any(token == end and mark for token, mark in zip(ids, special, strict=True)):
        ids.append(end)
        special.append(1)
    return _cut(ids, special, max_tokens)


def end_id(tokenizer: Any) -> int | None:
    """Returns the id that ends a target: `eos_token`, or the separator of a tokenizer without one, as BERT's."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def first_tokens(tokenizer: Any, text: str, count: int) -> str:
    """Returns the text up to the end of its first `count` tokens, with following spaces; special tokens do
    not count.
    """
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text if len(spans) <= count else text[: spans[count][0]]


def _whole(tokenizer: Any, **texts: str | None) -> tuple[list[int], list[int]]:
    """Returns token ids, and 1 for each special token."""
    encoded = tokenizer(
        **texts, truncation=False, return_attention_mask=False, return_special_tokens_mask=True, verbose=False
    )
    return list(encoded["input_ids"]), list(encoded["special_tokens_mask"])


def _cut(ids: list[int], special: list[int], max_tokens: int) -> list[int]:
    """Truncates the tokens before the final special tokens."""
    count = len(ids)
    if count <= max_tokens:
        return ids
    closing = next((place for place, mark in enumerate(reversed(special)) if not mark), count)
    closing = min(closing, max_tokens)
    return [*ids[: max_tokens - closing], *ids[count - closing :]]


def encode_sentences(sentences: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Returns token ids of each sentence, without special tokens; a sentence without tokens becomes one
    unknown token.
    """
    if not sentences:
        return []
    encoded = tokenizer(list(sentences), add_special_tokens=False, return_attention_mask=False, verbose=False)
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else 0
    return [ids or [unknown] for ids in encoded["input_ids"]]
