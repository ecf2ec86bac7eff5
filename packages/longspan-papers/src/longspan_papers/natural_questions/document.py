"""A question's document as one token stream, with the character span and the passage of each token.

The document is tokenized once as a whole; chunks are slices of the stream.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unicodedata import category

from longspan.data.fields import check_text
from longspan_documents.questions.rows import QuestionRow, Span
from longspan_documents.questions.tokens import NOWHERE, encode_text, token_ranges, without_space
from longspan_papers.natural_questions.options import MARKED_CANDIDATES, PassageTypes, QuestionOptions, marker_ids

_WORD = re.compile(r"\w+")
_ENDING = re.compile(r"(?<=[a-z]{4})(?:at(?:es?|ed|ing|ors?|ions?)|ions?|ings?|ed|e?rs?|ors?|ies?|es?|ly|y|s)$")


@dataclass(frozen=True)
class Stream:
    """The N tokens of a document, markers included.

    Attributes:
        ids: token ids.
        spans: characters `(start, end)` of each in `QuestionRow.text`, without surrounding white space; `NOWHERE` for
            markers and for tokens that are white space.
        passages: the passage of each token as index into `QuestionRow.candidates`, −1 for none.
        markers: which tokens are markers.
        types: token types, see `QuestionOptions.match_types`; packed with `passage_types`.
    """

    ids: list[int]
    spans: list[tuple[int, int]]
    passages: list[int]
    markers: list[bool]
    types: list[int]

    def columns(self) -> tuple[list[Any], ...]:
        """Returns the fields in order; all have N entries."""
        return self.ids, self.spans, self.passages, self.markers, self.types

    def tokens_of(self, span: Span) -> tuple[int, int] | None:
        """Returns the first and the last token that overlap a span, both inclusive; None if no token does."""
        first, end = token_ranges(self.spans, [span])[0]
        return (first, end - 1) if first < end else None


def tokenize_document(row: QuestionRow, tokenizer: Any, options: QuestionOptions) -> Stream:
    """Tokenizes a document in one call and assigns each token to its passage.

    Special tokens in the document's text stay plain text. A token across the border of two passages belongs to the
    later one.

    Raises:
        InputError: the tokenizer has no offsets (it is not a fast one) or lacks the marker tokens, or the document has
            no tokens.
    """
    what = f"the document of row {row.id!r}"
    ids, offsets = encode_text(tokenizer, check_text(row.text, what), what)
    spans = [without_space(row.text, start, end) for start, end in offsets]
    _add_marks(row.text, spans)
    passages = [-1] * len(ids)
    chosen = usable_candidates(row, options)
    ranges = token_ranges(spans, [row.candidates[index].span for index in chosen])
    # Outer passages first, so that inner ones overwrite them.
    order = sorted(range(len(chosen)), key=lambda place: (row.candidates[chosen[place]].span.start, -ranges[place][1]))
    for place in order:
        first, end = ranges[place]
        passages[first:end] = [chosen[place]] * (end - first)
    types = match_types(asked_words(row.question), row.text, spans) if options.match_types else [1] * len(ids)
    if options.passage_types:
        types = _passage_types(row, chosen, passages, types)
    stream = Stream(ids, spans, passages, [False] * len(ids), types)
    if not options.markers:
        return stream
    codes = marker_ids(tokenizer, options)
    names = _marker_names(row, chosen, options)
    owners = set(passages)  # a passage whose tokens all belong to inner passages needs no markers
    marked = [(ranges[place][0], chosen[place], names[place]) for place in order if chosen[place] in owners]
    return _with_markers(stream, [(first, index, [codes[name] for name in pair]) for first, index, pair in marked])


def usable_candidates(row: QuestionRow, options: QuestionOptions) -> list[int]:
    """Returns the indices of candidates that can be answers: with text, top-level if required, up to the maximum
    number."""
    usable = [
        index
        for index, candidate in enumerate(row.candidates)
        if len(candidate.span) and (candidate.top_level or not options.top_level_only)
    ]
    return usable[: options.max_candidates or None]


def _add_marks(text: str, spans: list[tuple[int, int]]) -> None:
    """Extends tokens over following combining marks that belong to no token, as the tokenizer drops or composes them.

    An answer would otherwise lose its last accent or vowel sign: vocabularies without accents drop those of Thai.
    """
    following = len(text)
    for place in range(len(spans) - 1, -1, -1):
        start, end = spans[place]
        if (start, end) == NOWHERE:
            continue
        if end < following and not text[end].isspace():
            while end < following and category(text[end])[0] == "M":
                end += 1
            spans[place] = (start, end)
        following = start


def asked_words(question: str) -> dict[str, int]:
    """Returns the stems of a question's words, as words of type 2."""
    return dict.fromkeys(map(stem, words_in(question)), 2)


def words_in(text: str) -> list[str]:
    """Returns the words of a text, in order."""
    return _WORD.findall(text)


def match_types(kinds: Mapping[str, int], text: str, spans: list[tuple[int, int]]) -> list[int]:
    """Returns the type of each token of a text: that of the word it overlaps, by its stem, or 1 if it has none.

    Args:
        kinds: stem → type; for a token that overlaps several words, the lowest counts.
        text: in any case and with any endings.
        spans: characters of each token.
    """
    types = [1] * len(spans)
    words = ((stem(match.group()), Span(*match.span())) for match in _WORD.finditer(text))
    matches = sorted(((kinds[word], span) for word, span in words if word in kinds), key=lambda each: -each[0])
    for (kind, _), (first, end) in zip(matches, token_ranges(spans, [word for _, word in matches]), strict=True):
        types[first:end] = [kind] * (end - first)
    return types


def _passage_types(row: QuestionRow, candidates: list[int], passages: list[int], matches: list[int]) -> list[int]:
    """Returns match, position and kind of the passage of each token, packed; tokens in no passage keep their match."""
    codes = {-1: 0}
    for number, index in enumerate(candidates, 1):
        candidate = row.candidates[index]
        brief = len(row.answer(candidate.span).split()) < PassageTypes.BRIEF_WORDS
        codes[index] = PassageTypes.pack(0, number, "brief" if brief else candidate.kind)
    return [codes[index] + match for index, match in zip(passages, matches, strict=True)]


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Returns a word in lower case and, if four letters are left, without a common English ending.

    Deliberately coarse: "nominate", "nominated" and "nomination" should agree, and few other words.
    """
    word = word.casefold()
    ending = _ENDING.search(word)
    return word[: ending.start()] if ending else word


def _marker_names(row: QuestionRow, candidates: list[int], options: QuestionOptions) -> list[tuple[str, str]]:
    """Returns the two markers of each kept candidate."""
    most = options.max_candidates or MARKED_CANDIDATES
    counts: Counter[str] = Counter()
    names = []
    for number, index in enumerate(candidates, 1):
        kind = row.candidates[index].kind.capitalize()
        counts[kind] += 1
        names.append((f"[Candidate={min(number, most)}]", f"[{kind}={min(counts[kind], most)}]"))
    return names


def _with_markers(stream: Stream, marked: list[tuple[int, int, list[int]]]) -> Stream:
    """Returns the stream with marker ids inserted before tokens: `(token, candidate, ids)`, ascending by token."""
    whole = Stream([], [], [], [], [])

    def copy(first: int, end: int) -> None:
        for target, source in zip(whole.columns(), stream.columns(), strict=True):
            target += source[first:end]

    done = 0
    for first, index, ids in marked:
        copy(done, first)
        done = first
        count = len(ids)
        added = (ids, [NOWHERE] * count, [index] * count, [True] * count, [0] * count)
        for target, values in zip(whole.columns(), added, strict=True):
            target += values
    copy(done, len(stream.ids))
    return whole
