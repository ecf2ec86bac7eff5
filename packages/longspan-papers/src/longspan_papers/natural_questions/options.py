"""Options for chunking a question and its document, and the marker tokens before passages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range, Share, check
from longspan_documents.questions.rows import KINDS

MARKED_CANDIDATES = 48
"""Number of passages with markers of their own if `max_candidates` sets no limit; later ones share the last."""


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """How documents are split into chunks and labelled; a task inherits these fields.

    Defaults are those of Poolingformer's experiment (chunks of 4 096 that begin every 1 568 tokens, half of the
    negative chunks) and, for the passages, those of BERT-joint (Alberti et al. 2019).

    Attributes:
        max_tokens: maximum tokens of a chunk: `<s> question </s> part of the document </s>`.
        stride: document tokens, markers included, from the beginning of one chunk to that of the next. If a long
            question leaves less room, chunks follow each other without a gap.
        max_question_tokens: maximum tokens of a question, which is truncated; None never truncates.
        keep_negatives: probability, in training, of keeping a chunk without the answer.
        markers: two tokens before each passage: its number, and its kind with the number among its kind.
        max_candidates: only this many leading passages can be answers; 0 or None takes all of them.
        top_level_only: passages within passages cannot be answers. False allows them; then a token belongs to the
            innermost passage around it, and a passage without tokens of its own cannot be an answer.
        match_types: `token_type_ids` mark the document's tokens that are words of the question, ignoring case and
            English endings (the match of DrQA, Chen et al. 2017): 0 question, special and marker tokens, 1 document, 2
            a word of the question.
        passage_types: with `match_types`, each token also has types for the position and the kind of its passage, whose
            embeddings are added to it (`PassageTypes`). Markers encode the same in two tokens of a passage, which
            hardly affect its mean; use this option if there are too few rows to learn from markers.
        answer_types: 2 (0 null, 1 answer) or 5 (0 null, 1 yes, 2 no, 3 short, 4 long only).
    """

    max_tokens: Annotated[int, Range(8, LARGEST)] = 4096
    stride: Count = 1568
    max_question_tokens: Count | None = None
    keep_negatives: Share = 0.5
    markers: bool = True
    max_candidates: Annotated[int, Range(0, 10_000)] | None = MARKED_CANDIDATES
    top_level_only: bool = True
    match_types: bool = False
    passage_types: bool = False
    answer_types: Literal[2, 5] = 2

    def __post_init__(self) -> None:
        """Raises `InputError` for invalid options."""
        check(self)
        if not 1 <= self.stride < self.max_tokens:
            raise InputError(
                f"stride={self.stride} is not from 1 to max_tokens − 1 = {self.max_tokens - 1}; "
                "a larger one would leave parts of the document out"
            )
        if self.max_question_tokens is not None and not 1 <= self.max_question_tokens < self.max_tokens:
            raise InputError(
                f"max_question_tokens={self.max_question_tokens} is not from 1 to max_tokens − 1 = "
                f"{self.max_tokens - 1}; give a number that leaves room for the document"
            )
        if self.passage_types and not self.match_types:
            raise InputError("passage_types=true needs match_types=true, whose types it extends; set both, or neither")


class PassageTypes:
    """Three types per token, packed into one byte: match, position of the passage, kind of the passage.

    Match is that of `match_types`. Positions are 1, 2, 3, 4, then in increasing steps; the kinds are those of
    candidates and "brief", a passage of a few words, such as a link or a heading; 0 of both means no passage.
    """

    MATCHES = 3
    PLACE_STARTS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 49)
    KINDS = (*KINDS, "brief")
    BRIEF_WORDS = 15
    """A passage with fewer words is brief."""

    PLACES_AT = MATCHES
    KINDS_AT = PLACES_AT + len(PLACE_STARTS) + 1
    COUNT = KINDS_AT + len(KINDS) + 1
    """Rows of the embedding table."""

    @classmethod
    def pack(cls, match: int, number: int, kind: str) -> int:
        """Returns the byte of a token of the passage with this number (from 1) and kind."""
        place = bisect_right(cls.PLACE_STARTS, number)
        return match + cls.MATCHES * (place + (len(cls.PLACE_STARTS) + 1) * (1 + cls.KINDS.index(kind)))

    @classmethod
    def unpack(cls, packed: Tensor) -> Tensor:
        """Unpacks `(B, T)` bytes to `(B, T, 3)` rows of the embedding table; 0 is a token outside the document."""
        rest, places = packed // cls.MATCHES, len(cls.PLACE_STARTS) + 1
        columns = (packed % cls.MATCHES, rest % places + cls.PLACES_AT, rest // places + cls.KINDS_AT)
        return torch.stack(columns, dim=-1)


def marker_tokens(options: QuestionOptions) -> list[str]:
    """Returns the marker tokens of the options, in a fixed order; empty without markers."""
    if not options.markers:
        return []
    numbers = range(1, (options.max_candidates or MARKED_CANDIDATES) + 1)
    return [f"[{kind}={number}]" for kind in ("Candidate", *map(str.capitalize, KINDS)) for number in numbers]


def marker_ids(tokenizer: Any, options: QuestionOptions) -> dict[str, int]:
    """Returns marker token → id; raises `InputError` if the tokenizer lacks one."""
    wanted = marker_tokens(options)
    vocabulary = tokenizer.get_vocab() if wanted else {}
    if lacking := [token for token in wanted if token not in vocabulary]:
        raise InputError(
            f"the tokenizer lacks {len(lacking)} marker tokens such as {lacking[0]}; use the tokenizer that the model "
            "was trained with, or set markers to false"
        )
    return {token: vocabulary[token] for token in wanted}
