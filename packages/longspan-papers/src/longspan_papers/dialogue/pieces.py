"""Dialogues on disk, split to the model's input length: written once in a streaming pass, then read by index.

A row is the UTF-8 of a JSON list of turns, `[speaker, text, tokens]`, so that noise can be drawn anew in every epoch.
Pieces end at turns; only a turn that is too long by itself is split, at a sentence end if possible, else between words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.ragged import Ragged, Writer, make_once
from longspan.data.text.sentences import split_sentences
from longspan.data.turns import Dialogue, Turn
from longspan.errors import InputError
from longspan.progress import progress_bar

BYTES = "bytes"
"""The column."""
Sized = tuple[Turn, int]
"""A turn and the number of tokens of its line, line end included."""


def token_counter(tokenizer: Any) -> Callable[[list[str]], list[int]]:
    """Returns a function that counts the tokens of lines, without special tokens and with the line end."""

    def count(lines: list[str]) -> list[int]:
        if not lines:  # transformers' tokenizers fail on an empty list
            return []
        encoded = tokenizer([f"{line}\n" for line in lines], add_special_tokens=False, return_attention_mask=False)
        return [len(ids) for ids in encoded["input_ids"]]

    return count


def write_dialogues(
    folder: Path,
    fingerprint: str,
    dialogues: Iterable[Dialogue],
    count: Callable[[list[str]], list[int]],
    *,
    room: int,
    longest_turn: int,
) -> Ragged:
    """Returns the pieces in a folder; writes them if they do not exist yet.

    Args:
        folder: of the pieces.
        fingerprint: of everything that determines the content.
        dialogues: read once.
        count: see `token_counter`.
        room: maximum tokens of a piece.
        longest_turn: maximum tokens of a turn.

    Raises:
        InputError: there is no dialogue, or the folder has pieces of other dialogues.
    """

    def fill(partial: Path) -> dict[str, Any]:
        with (
            Writer(partial, {BYTES: "<u1"}) as writer,
            progress_bar(dialogues, doing="reading dialogues", unit=" dialogues") as bar,
        ):
            for dialogue in bar:
                for piece in pieces_of(dialogue.turns, count, room=room, longest_turn=longest_turn):
                    plain = [[turn.speaker, turn.text, tokens] for turn, tokens in piece]
                    writer.extend(**{BYTES: list(json.dumps(plain, ensure_ascii=False).encode())})
                    writer.end_row()
        if not writer.rows:
            raise InputError("the data holds no dialogue with words; name files that have some")
        return writer.index()

    return make_once(folder, fingerprint, fill, other="other dialogues, or by another tokenizer or other lengths")


def read_piece(pieces: Ragged, index: int) -> tuple[list[Sized], bytes]:
    """Returns a piece, and its bytes."""
    content = pieces[index][BYTES].astype(np.uint8).tobytes()
    return [(Turn(speaker, text), tokens) for speaker, text, tokens in json.loads(content)], content


def pieces_of(
    turns: Iterable[Turn], count: Callable[[list[str]], list[int]], *, room: int, longest_turn: int
) -> Iterator[list[Sized]]:
    """Yields runs of consecutive turns, as many as fit each time."""
    piece: list[Sized] = []
    held = 0
    for turn, tokens in _short_turns(list(turns), count, min(room, longest_turn)):
        if piece and held + tokens > room:
            yield piece
            piece, held = [], 0
        piece.append((turn, tokens))
        held += tokens
    if piece:
        yield piece


def _short_turns(turns: list[Turn], count: Callable[[list[str]], list[int]], limit: int) -> Iterator[Sized]:
    """Yields each turn, or the parts of one that is too long: its sentences, joined as far as they fit."""
    for turn, tokens in zip(turns, count([turn.line for turn in turns]), strict=True):
        if tokens <= limit:
            yield turn, tokens
        else:
            yield from _parts(turn, tokens, count, limit)


def _parts(turn: Turn, tokens: int, count: Callable[[list[str]], list[int]], limit: int) -> Iterator[Sized]:
    """Splits a turn at the sentence end nearest to its middle, else at the middle word, until all parts fit; a single
    word is never split."""
    words = turn.words
    if tokens <= limit or len(words) < 2:
        yield turn, tokens
        return
    starts = [sentence.start for sentence in split_sentences(turn.text)][1:]
    places = [len(turn.text[:start].split()) for start in starts if turn.text[start - 1].isspace()]
    middle = min(places or [len(words) // 2], key=lambda place: abs(place - len(words) / 2))
    halves = [replace(turn, text=" ".join(half)) for half in (words[:middle], words[middle:])]
    for half, size in zip(halves, count([half.line for half in halves]), strict=True):
        yield from _parts(half, size, count, limit)
