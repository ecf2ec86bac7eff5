"""From scores to a summary: the selection of sentences without repetition.

`choose` and `fill` select the sentences with the best scores. `cover` orders sentences for a summary that covers the
document's words: each time the one that adds most to the previous ones. A sentence adds the expected number of the
summary's words that it contains, relative to its length (a concept-based summariser, Gillick and Favre 2009, whose
concepts are words with learned probabilities), and its value from the sentence scorer. A repeated word counts again as
often as a summary is likely to repeat it. A sentence that refers to previous ones ("But this…") is weighted together
with them, and follows them.

The probabilities of words are logistic regressions: from the frequency of a content word, its positions, its sentences,
and the length of the summary, the probability that the summary names it at least once, twice, three and five times. So
a name that a story repeats counts several times, and a rare minor word hardly at all.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from longspan.data.text.sentences import contents_of, split_words
from longspan_documents.summaries.clues import Sentences, is_whole, standardised

_WORD = re.compile(r"[^\W_]+")


def default_count(sentences: int) -> int:
    """Returns the number of sentences of a summary: half the square root of the document's, between 3 and 20."""
    return min(sentences, max(3, min(20, round(sentences**0.5 / 2))))


def ranking(scores: Sequence[float] | np.ndarray) -> list[int]:
    """Returns indices from the best to the worst; ties keep the document's order."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").tolist()


def choose(
    sentences: Sequence[str], scores: Sequence[float] | np.ndarray, count: int, *, block_repeats: bool = True
) -> list[int]:
    """Returns the indices of the `count` best sentences, in the document's order.

    Args:
        sentences: the document's sentences.
        scores: one number for each; higher is better.
        count: number of sentences; fewer are returned only if the document has fewer.
        block_repeats: skip a sentence if at least half of its trigrams are already covered, as long as others are left.
            (Trigram blocking, Paulus et al. 2018, skips it for a single one; that cost 2 points of ROUGE-2 on
            biomedical papers, which repeat their terms.)
    """
    return sorted(islice(preferred(sentences, scores, block_repeats=block_repeats), count))


def preferred(
    sentences: Sequence[str],
    scores: Sequence[float] | np.ndarray,
    *,
    block_repeats: bool = True,
    said: Collection[int] = (),
) -> Iterator[int]:
    """Yields all sentences in the order of `choose`; arguments as there. Indices in `said` count as sentences whatever
    their form."""
    words = [split_words(sentence) for sentence in sentences]
    order = ranking(scores)
    taken: set[int] = set()
    used: set[tuple[str, ...]] = set()
    # Complete, new sentences first; if the summary is still too short, new pieces of any kind, then any at all.
    for wants_whole, wants_new in ((True, block_repeats), (False, block_repeats), (False, False)):
        for index in order:
            if index in taken or (wants_whole and index not in said and not is_whole(sentences[index], words[index])):
                continue
            triples = _triples(words[index])
            if wants_new and _repeats(triples, used):
                continue
            taken.add(index)
            used |= triples
            yield index


def supported(order: Iterable[int], needs: Sequence[tuple[int, ...] | None]) -> Iterator[int]:
    """Yields the sentences in the same order, except that one with dependencies waits until they have been yielded.

    Args:
        order: indices, best first.
        needs: for each sentence the previous ones that it refers to; None for more than can be added with it.
    """
    taken: set[int] = set()
    waiting: dict[int, list[int]] = {}  # by missing dependency
    for index in order:
        ready = [index]
        while ready:
            one = ready.pop()
            before = needs[one]
            missing = next((each for each in ((one - 1,) if before is None else before) if each not in taken), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(one)
                continue
            taken.add(one)
            yield one
            ready += reversed(waiting.pop(one, []))
    for ones in waiting.values():
        yield from ones


_VARIES = re.compile(r"\b0x[\da-f]+\b|\b[\da-f]{8,}\b|\d+|\"[^\"]*\"|'[^']*'|/\S+", re.IGNORECASE)
_SEVERE = (
    (
        3.0,
        re.compile(
            r"\b(?:FATAL|CRITICAL|SEVERE|EMERG|ALERT|panic|segfault|out of memory|oom-killer|core dumped)\b", re.I
        ),
    ),
    (2.0, re.compile(r"\b(?:ERROR|ERR|Traceback|exception|failed|failure)\b|(?-i:\w(?:Error|Exception))\b", re.I)),
    (0.7, re.compile(r"\b(?:WARN|WARNING|denied|refused|timed? ?out|timeout|unreachable|retry(?:ing)?)\b", re.I)),
)
RARE, AGAIN = 1.5, 10.0
"""Value of a log line of a unique kind in a long log; penalty of another line of the same kind."""
TOO_LONG, LONG_LINE = 1.0, 400
"""Penalty of a line longer than this number of characters."""
VALUES, SHARE, MANY = 3, 0.1, 18
"""Number of distinct words at a position of otherwise equal lines, in addition to this share of the lines, above which
they are variable values, such as names; more than the last number always are."""


def scores_of_log(lines: Sequence[str]) -> np.ndarray:
    """Returns scores of the lines of a log, between 0 and 1, `(N,)`: high for errors, warnings and rare kinds of lines;
    one of each kind comes first."""
    kinds = kinds_of_lines(lines)
    times, taken = Counter(kinds), Counter[str]()
    common = math.log(max(len(lines), 2))
    scores = []
    for line, kind in zip(lines, kinds, strict=True):
        severe = next((worth for worth, words in _SEVERE if words.search(line)), 0.0)
        rare = RARE * (1 - math.log(times[kind]) / common) - AGAIN * (taken[kind] > 0)
        scores.append(severe + rare - TOO_LONG * (len(line) > LONG_LINE))
        taken[kind] += 1
    return 1 / (1 + np.exp(2 - np.array(scores, float)))


def kinds_of_lines(lines: Sequence[str]) -> list[str]:
    """Returns the constant part of each line, which identifies its kind: without numbers, addresses, paths, quotations,
    and variable values.

    Among lines with equal length and first word, a position with many distinct words is variable. If more than half of
    the positions would be, the lines are of different kinds, and unchanged.
    """
    plain = [["#" if "#" in word else word for word in _VARIES.sub("#", line).split()] for line in lines]
    alike: dict[tuple[int, str], list[int]] = {}
    for index, words in enumerate(plain):
        first = next((word for word in words if any(map(str.isalpha, word))), "")
        alike.setdefault((len(words), first), []).append(index)
    kinds = [""] * len(lines)
    for indices in alike.values():
        different = [len(set(words)) for words in zip(*(plain[index] for index in indices), strict=True)]
        said = [any(map(str.isalpha, word)) for word in plain[indices[0]]]
        values = [count > min(VALUES + SHARE * len(indices), MANY) for count in different]
        several = 2 * sum(map(min, values, said)) > sum(said)
        for index in indices:
            words = zip(plain[index], values, strict=True)
            kinds[index] = " ".join("#" if value and not several else word for word, value in words)
    return kinds


def fill(sentences: Sequence[str], order: Sequence[int], words: int, *, block_repeats: bool = False) -> list[str]:
    """Adds sentences in `order` until there are exactly `words` words, truncating the last one; returns them in the
    document's order.

    So every compared method has the same length.
    """
    left = words
    taken: dict[int, str] = {}
    used: set[tuple[str, ...]] = set()
    for index in order:
        if left <= 0:
            break
        triples = _triples(split_words(sentences[index])) if block_repeats else set()
        if _repeats(triples, used):
            continue
        used |= triples
        spans = list(_WORD.finditer(sentences[index]))
        if not spans:
            continue
        taken[index] = sentences[index] if len(spans) <= left else sentences[index][: spans[left - 1].end()]
        left -= len(spans)
    return [taken[index] for index in sorted(taken)]


def _triples(words: list[str]) -> set[tuple[str, ...]]:
    return set(zip(words, words[1:], words[2:], strict=False))


def _repeats(triples: set[tuple[str, ...]], used: set[tuple[str, ...]]) -> bool:
    return bool(triples) and 2 * len(triples & used) >= len(triples)


TIMES = (1, 2, 3, 5)
"""Minimum numbers of times that a summary names a word: one regression for each."""
EARLY = 0.15
"""Share of the document that is its beginning."""
PARTS = 8
"""A document without headings is divided into this number of sections."""


@dataclass(frozen=True, kw_only=True)
class WordTable:
    """The content words of a document.

    Attributes:
        words: W distinct ones.
        sentences: for each, the ascending indices of the sentences with it.
        numbers: `(W, F)` float32, features of each.
    """

    words: tuple[str, ...]
    sentences: tuple[np.ndarray, ...]
    numbers: np.ndarray


def word_table(document: Sentences) -> WordTable:
    """Returns the content words of a document, in the order of first occurrence."""
    count = len(document)
    near = standardised(document.vectors @ document.vectors.mean(0))
    sections = document.sections if document.headings else np.arange(count) * PARTS // max(count, 1)
    several = max(len(np.unique(sections)), 1)
    sentences_of: dict[str, list[int]] = {}
    times: Counter[str] = Counter()
    for index, words in enumerate(document.contents):
        times.update(words)
        for word in dict.fromkeys(words):
            sentences_of.setdefault(word, []).append(index)
    in_headings = {word for heading in document.headings for word in contents_of(heading)}
    in_title = set(contents_of(document.title))
    rows = []
    for word, indices in sentences_of.items():
        holders = len(indices)
        log, central = math.log1p(holders), near[indices]
        row = [
            *(log, log**2, holders / count, math.sqrt(holders / count), holders == 1, holders == 2),
            *(math.log(times[word] / holders), indices[0] / count, 1 / (1 + indices[0] / 5)),
            *(float(central.mean()), float(central.max()), len(np.unique(sections[indices])) / several),
            *(word in in_headings, word in in_title, len(word) / 10, len(word) <= 3),
            *(math.log1p(sum(index < EARLY * count for index in indices)), math.log1p(count)),
        ]
        rows.append(row)
    return WordTable(
        words=tuple(sentences_of),
        sentences=tuple(np.array(indices) for indices in sentences_of.values()),
        numbers=np.array(rows, np.float32).reshape(len(rows), 18),
    )


def with_length(table: WordTable, words: int) -> np.ndarray:
    """Appends features of the summary length to those of each word, `(W, F + 4)`."""
    log = math.log(max(words, 20))
    expected = table.numbers[:, 2] * words
    more = [np.full(len(expected), log), table.numbers[:, 0] * log, expected, np.minimum(expected, 20)]
    return np.concatenate([table.numbers, np.stack(more, axis=1)], axis=1)


def worth_of_sentences(document: Sentences, table: WordTable, chances: np.ndarray) -> np.ndarray:
    """Returns mean, sum and maximum probability of each sentence's words to be named, `(N, 3)`; `chances` `(W,)`."""
    total, most, kinds = (np.zeros(len(document)) for _ in range(3))
    for indices, chance in zip(table.sentences, chances, strict=True):
        total[indices] += chance
        kinds[indices] += 1
        most[indices] = np.maximum(most[indices], chance)
    return np.stack([total / np.maximum(kinds, 1), total, most], axis=1)


FADING = 0.7
"""Factor on a word's value for each further repetition beyond five."""
OFFSET = 6.0
"""Words added to the length of each sentence."""
PICKED = 1000
"""Number of sentences selected one by one; the others are ordered by their value at that point."""
ALIKE = 0.92
"""Minimum cosine of a repetition of a selected sentence."""
LAST = 5.0
"""Penalty of a repetition: it comes after all others."""


def cover(
    table: WordTable,
    chances: np.ndarray,
    own: np.ndarray,
    lengths: np.ndarray,
    needs: Sequence[tuple[int, ...]],
    vectors: np.ndarray,
    words: int,
    first: Sequence[int] = (),
) -> list[int]:
    """Returns all sentences in the order in which they enter a summary.

    Args:
        table: the words of the document.
        chances: `(W, 4)`, for each word the probability that a summary names it at least 1, 2, 3 and 5 times.
        own: `(N,)`, own value of a sentence, in expected words of the summary per word.
        lengths: `(N,)`, in words.
        needs: for each sentence the ascending indices of its dependencies.
        vectors: `(N, D)`, normalised.
        words: length of the summary; sentences with dependencies enter it only if all of them fit.
        first: indices of sentences that precede all others, in this order.

    Returns:
        N indices, best first.
    """
    covered = _Coverage(table, chances, len(lengths))
    own = own.copy()
    free = np.ones(len(lengths), bool)
    needed = np.zeros((len(lengths), max(map(len, needs), default=0)), int)
    wanted = np.zeros(needed.shape, bool)
    for index, before in enumerate(needs):
        needed[index, : len(before)], wanted[index, : len(before)] = before, True
    order = list(first)
    for index in order:
        covered.add(index)
    free[order] = False
    left = float(words - lengths[order].sum())
    while len(order) < min(len(lengths), PICKED):
        missing = wanted & free[needed]
        size = lengths + (lengths[needed] * missing).sum(1)
        worth = covered.worth + (covered.worth[needed] * missing).sum(1)
        value = worth / (size + OFFSET) + (own + (own[needed] * missing).sum(1)) / (1 + missing.sum(1))
        if left > 0:
            value = np.where(missing.any(1) & (size > left), -np.inf, value)
        best = int(np.where(free, value, -np.inf).argmax())
        group = [*needed[best][missing[best]].tolist(), best]
        for index in group:
            covered.add(index)
            own -= LAST * (vectors @ vectors[index] > ALIKE)
        free[group] = False
        left -= size[best]
        order += group
    rest = np.flatnonzero(free)
    return order + rest[np.argsort(-(covered.worth / (lengths + OFFSET) + own)[rest], kind="stable")].tolist()


class _Coverage:
    """Counts the repetitions of each word, and the value that each sentence would add.

    Attributes:
        worth: `(N,)`, expected words of the summary that a sentence would add.
    """

    def __init__(self, table: WordTable, chances: np.ndarray, sentences: int) -> None:
        # The value of naming a word for the first, second … fifth time.
        self.steps = np.stack([*chances[:, :3].T, chances[:, 2:].mean(1), chances[:, 3]], axis=1)
        self.sentences_of = table.sentences
        self.times = np.zeros(len(table.words), int)
        self.words: list[list[int]] = [[] for _ in range(sentences)]
        self.worth = np.zeros(sentences)
        for word, indices in enumerate(table.sentences):
            self.worth[indices] += self.steps[word, 0]
            for index in indices:
                self.words[index].append(word)

    def add(self, sentence: int) -> None:
        """Adds a sentence to the summary: its words then count less in all sentences."""
        for word in self.words[sentence]:
            before = self._step(word)
            self.times[word] += 1
            self.worth[self.sentences_of[word]] -= before - self._step(word)

    def _step(self, word: int) -> float:
        """Returns the value of naming a word once more."""
        last = self.steps.shape[1] - 1
        return float(self.steps[word, min(self.times[word], last)] * FADING ** max(self.times[word] - last, 0))
