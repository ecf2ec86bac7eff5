"""What summaries are measured by: ROUGE-1, ROUGE-2, content words; and how the sentences that were picked read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from nltk.stem.porter import PorterStemmer

from kept import kept
from longspan.data.text.sentences import split_words
from longspan.tasks.metrics.rouge import Rouge
from longspan_documents.summaries.selection import fill, ranking
from summary_peers import STOP_WORDS
from summary_sets import Case

MEASURES = ("ROUGE-1", "ROUGE-2", "content words")
_ROUGE = Rouge(stemmer=True)
_stem = cache(PorterStemmer().stem)

# Told without the lists of the package, which picks by its own.
_HANGING = re.compile(
    r"\W*(?:it|this|that|these|those|they|he|she|his|her|its|their|such|both|but|and|or|so|because|however|therefore|thus"
    r"|hence|also|moreover|furthermore|then|instead|for (?:example|instance)|in addition|on the other hand)\b",
    re.IGNORECASE,
)
_ROADMAP = re.compile(
    r"\b(?:in|see|to) (?:section|chapter|appendix|sect\.) ?[\dIVXA-H]\b|\b(?:next|following|this) section\b"
    r"|\b(?:section|chapter|appendix) [\dIVXA-H][\d.]* (?:\w+s|will)\b|^(?:next|now|first|finally), (?:we|I)\b"
    r"|\b(?:rest|remainder) of (?:the|this) (?:paper|article|document)\b|\b(?:organi[sz]ed|structured) as follows\b",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?…][\"'”’)\]]*$")


def content_words(text: str) -> list[str]:
    """Porter stems of a text's words, without function words and numbers."""
    return [
        _stem(word) for word in split_words(text) if word not in STOP_WORDS and not word.isdigit() and len(word) > 1
    ]


def content_f1(text: str, references: Sequence[str]) -> float:
    """F1 in percent of content words, each counted at most as often as it stands in the other; the best reference."""
    said = Counter(content_words(text))
    best = 0.0
    for reference in references:
        wanted = Counter(content_words(reference))
        best = max(best, 200 * (said & wanted).total() / max(said.total() + wanted.total(), 1))
    return best


def summary_of(case: Case, scores: Sequence[float] | np.ndarray) -> str:
    """The best sentences up to the case's number of words, the last one cut, in the document's order."""
    return "\n".join(fill(case.texts, ranking(scores), case.words))


def values_of(cases: Sequence[Case], summaries: Sequence[str]) -> np.ndarray:
    """`(N, 3)`, by `MEASURES`; kept on disk."""

    def make() -> np.ndarray:
        references = [case.references for case in cases]
        rouge = _ROUGE.rows(summaries, references)
        contents = [content_f1(text, each) for text, each in zip(summaries, references, strict=True)]
        return np.array([rouge["rouge1"], rouge["rouge2"], contents]).T

    code = Path(__file__).read_bytes()
    return kept("values", [code, *summaries, *(text for case in cases for text in case.references)], make)


def picked(case: Case, scores: Sequence[float] | np.ndarray) -> list[int]:
    """The sentences of the summary, by index, the one that is cut included."""
    found, left = [], case.words
    for index in ranking(scores):
        words = len(split_words(case.texts[index]))
        if left > 0 and words:
            found.append(index)
            left -= words
    return sorted(found)


def reading(cases: Sequence[Case], scores: Sequence[np.ndarray]) -> tuple[float, float, float, float]:
    """Of all picks the share in percent that hang on a sentence which is not in the summary, that tell where something
    stands, and that are no whole sentences; and how the scores go with the density of function words (Spearman's rank
    correlation, mean over documents)."""
    hanging = roadmaps = fragments = count = 0
    correlations = []
    for case, own in zip(cases, scores, strict=True):
        chosen = set(picked(case, own))
        cased = 2 * sum(text[:1].islower() for text in case.texts) < len(case.texts)  # PubMed has no capitals
        count += len(chosen)
        for index in chosen:
            text = case.texts[index]
            hanging += bool(_HANGING.match(text)) and index > 0 and index - 1 not in chosen
            roadmaps += bool(_ROADMAP.search(text))
            fragments += (cased and text[:1].islower()) or not _END.search(text) or len(split_words(text)) < 4
        correlations.append(_correlation(own, [function_share(text) for text in case.texts]))
    shares = [100 * number / max(count, 1) for number in (hanging, roadmaps, fragments)]
    return shares[0], shares[1], shares[2], float(np.nanmean(correlations))


def function_share(text: str) -> float:
    """The share of function words among a text's words."""
    words = split_words(text)
    return sum(word in STOP_WORDS for word in words) / max(len(words), 1)


def _correlation(one: Sequence[float] | np.ndarray, two: Sequence[float]) -> float:
    """Spearman's, equal values sharing their mean rank; not a number where one side is constant."""
    first, second = _ranks(one), _ranks(two)
    if len(first) < 3 or not first.std() or not second.std():
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]
