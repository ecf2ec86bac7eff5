"""Tokenisation with character positions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from longspan.errors import InputError
from longspan_documents.questions.rows import Span

NOWHERE = (-1, -1)
"""The characters of a token without any: a special token, or white space alone."""


def encode_text(tokenizer: Any, text: str, what: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns ids and character offsets of a text, as `token_ids`; raises `InputError`, naming `what`, for a text
    without tokens."""
    ids, offsets = token_ids(tokenizer, text)
    if not ids:
        raise InputError(f"{what} has no tokens in this tokenizer; give one with words in it")
    return ids, offsets


def token_ids(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns token ids of a text without special tokens, and the characters of each, without truncation."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"the tokenizer {type(tokenizer).__name__} gives no character offsets; use a fast tokenizer")
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        split_special_tokens=True,  # "</s>" in a document is text
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        truncation=False,
        padding=False,
        verbose=False,
    )
    return encoded["input_ids"], encoded["offset_mapping"]


def without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Strips the white space that byte-level and SentencePiece vocabularies put before words from a token's
    characters."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else NOWHERE


def token_ranges(spans: list[tuple[int, int]], wanted: list[Span]) -> list[tuple[int, int]]:
    """Returns for each span the tokens `first … end − 1` that overlap it, including white space in between."""
    places = [place for place, span in enumerate(spans) if span != NOWHERE]
    starts = [spans[place][0] for place in places]
    ends = [spans[place][1] for place in places]
    ranges = []
    for span in wanted:
        first, last = bisect_right(ends, span.start), bisect_left(starts, span.end) - 1
        ranges.append((places[first], places[last] + 1) if first <= last else (0, 0))
    return ranges
