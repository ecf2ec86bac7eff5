"""The sentence selection of the bundled summariser and its weights.

A text may begin with a summary of itself without a heading: an abstract, as in papers without markup. To detect it, its
beginning is compared with other stretches of the same text: an abstract contains the text's most frequent words, nearly
all of its words are repeated, it says "we" and "this paper", and it has few citations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longspan.data.text.sentences import count_words, holders_of, split_words
from longspan.errors import InputError
from longspan_documents.gelu import gelu
from longspan_documents.summaries.clues import (
    FEWEST_WORDS,
    Sentences,
    antecedents,
    clues,
    is_fragment,
    is_notice,
    is_roadmap,
    share_of_fillers,
    standardised,
    word_centrality,
)
from longspan_documents.summaries.query import Relevance, chances_about
from longspan_documents.summaries.selection import cover, with_length, word_table, worth_of_sentences

STRETCH = 150
"""Approximate words of a stretch; an abstract has as many, or more."""
COMPARED = 12
"""Approximate number of stretches that the beginning is compared with."""
FEWEST = 5
"""A text with fewer stretches needs no abstract."""
COMMONEST = 40
"""Number of words shared by most sentences of the text."""
BETWEEN = 80, 300
"""Minimum and maximum words of an opening that ends with a paragraph."""
_PRESENTS = re.compile(
    r"\b(?:we|our|this (?:paper|article|study|work|proposal|document|report|enhancement|[a-zA-Z]?[A-Z]{2,4})"
    r"|propos(?:es?|ed)|introduces?|describes?|presents?)\b",
    re.IGNORECASE,
)
_CITES = re.compile(r"\(\D{0,60}(?:19|20)\d\d|\[\d|\bet al\b|\b[Ff]ig|\bTable\b")
_LEAST_SPREAD = np.array([0.03, 0.03, 0.1, 0.3, 0.3, 0.03, 2.0])


def abstract_features(texts: Sequence[str], contents: Sequence[Sequence[str]]) -> np.ndarray | None:
    """Returns the difference of a text's beginning from its other stretches, `(7,)` in their standard deviations.

    Args:
        texts: its sentences.
        contents: their content words.

    Returns:
        The share of the text's most frequent words in it; the share of its words that are repeated, and how often; "we"
        and similar words; citations; distinct words per word; words per sentence. None for short texts.
    """
    stretches = _stretches(texts)
    if len(stretches) < FEWEST:
        return None
    holders = holders_of(contents)
    common = [word for word, _ in holders.most_common(COMMONEST)]
    # The stretch after the beginning may still be part of it.
    others = stretches[2 :: max(1, len(stretches) // COMPARED)]
    rows = np.array([_numbers(stretch, texts, contents, holders, common) for stretch in (stretches[0], *others)])
    return (rows[0] - rows[1:].mean(0)) / (rows[1:].std(0) + _LEAST_SPREAD)


def _numbers(
    stretch: Sequence[int],
    texts: Sequence[str],
    contents: Sequence[Sequence[str]],
    holders: Counter[str],
    common: Sequence[str],
) -> list[float]:
    inside = holders_of(contents[index] for index in stretch)
    again = np.array([holders[word] - times for word, times in inside.items()] or [0])
    text = " ".join(texts[index] for index in stretch)
    words = max(count_words(text), 1)
    return [
        *(sum(word in inside for word in common) / COMMONEST, float((again > 0).mean()), float(np.log1p(again).mean())),
        *(100 * len(_PRESENTS.findall(text)) / words, 100 * len(_CITES.findall(text)) / words),
        *(len(inside) / words, words / len(stretch)),
    ]


def _stretches(texts: Sequence[str]) -> list[list[int]]:
    """Groups sentences into runs of about `STRETCH` words."""
    stretches: list[list[int]] = [[]]
    words = 0
    for index, text in enumerate(texts):
        stretches[-1].append(index)
        words += count_words(text)
        if words >= STRETCH:
            stretches.append([])
            words = 0
    return stretches[:-1]


def end_of_opening(texts: Sequence[str], paragraphs: np.ndarray, sections: np.ndarray) -> int:
    """Returns the number of sentences of an opening abstract: up to a heading or the end of a paragraph, otherwise
    `STRETCH` words."""
    least, most = BETWEEN
    words = np.cumsum([count_words(text) for text in texts])
    for index in range(min(len(texts) - 1, int(np.searchsorted(words, most)))):
        long_enough = words[index] >= least and paragraphs[index + 1] != paragraphs[index]
        if long_enough or sections[index + 1] != sections[index]:
            return index + 1
    return int(np.searchsorted(words, STRETCH)) + 1


OPENING_WORDS = 150
"""Words of a document's first sentences that may summarise it."""
LEAD = -1.0
"""Minimum logit for a document whose first sentences summarise it, such as a README."""


def lead_features(document: Sentences) -> np.ndarray:
    """Returns features of whether a document's first sentences summarise it, `(20,)`: the kind of text; its length; the
    share of sentences that are none, and of those with files, options and code; the difference of its beginning from
    the rest, and whether it defines something; how many of four headings are those of software and its usage; and how
    many of five typical items of published software it names, such as repository, build and licence."""
    texts, vectors = document.texts, document.vectors
    words = sum(count_words(text) for text in texts)
    first = leading(texts, OPENING_WORDS) or [0]
    beginning = vectors[first].mean(0)
    near = beginning @ vectors.mean(0) / (np.linalg.norm(beginning) * np.linalg.norm(vectors.mean(0)) + 1e-9)
    return np.array(
        [
            *(*document.kind, np.log1p(words), np.mean([is_fragment(text) for text in texts])),
            np.mean([_TECHNICAL.search(text) is not None for text in texts]),
            *(near, _IS_A.search(" ".join(texts[index] for index in first[:2])) is not None),
            min(len({match[0].lower() for one in document.headings if (match := _OF_SOFTWARE.match(one))}), 4) / 4,
            min(len({match[0].lower() for text in texts for match in _PUBLISHED.finditer(text)}), 5) / 5,
        ],
        np.float32,
    )


def leading(texts: Sequence[str], words: int) -> list[int]:
    """Returns the first sentences with content, up to `words` words: no addresses, notices, roadmaps. A line without a
    full stop ("Fast JSON for Python"), or before a list, may be the most important one of a README."""
    chosen: list[int] = []
    for index, text in enumerate(texts):
        if words <= 0:
            break
        if _tells(text) and not is_notice(text) and not is_roadmap(text):
            chosen.append(index)
            words -= count_words(text)
    return chosen


def _tells(text: str) -> bool:
    solid, words = "".join(text.split()), split_words(text)
    letters = sum(map(str.isalpha, solid))
    if len(words) < FEWEST_WORDS or letters < LETTERS * len(solid) or text.count("|") > 2 or _ADDRESS.match(text):
        return False
    return not text.rstrip().endswith(":") or len(words) >= PROMISE


LETTERS, PROMISE = 0.7, 8
"""Minimum share of letters in a sentence with content; minimum words if a list follows."""
_ADDRESS = re.compile(r"\W*(?:[\w-]+(?: [\w-]+){0,3}: )?(?:https?:|www\.|\S+@)\S*\W*$")
_TECHNICAL = re.compile(r"(?:^|\s)--?[a-zA-Z][\w-]*|\w+\(\)|``|\w_\w|\w\.\w+\b(?<!\d)|/\w+/")
_OF_SOFTWARE = re.compile(
    r"(?:name|synopsis|description|options|exit status|environment|files|bugs|authors?|see also|diagnostics|copyright"
    r"|install|usage|(?:quick ?)?start|getting started|licen[cs]e|requirements?|dependenc|contribut|documentation"
    r"|features|build|download|command|changelog|changes|development|support|api\b|configur|help|community|test|example)",
    re.IGNORECASE,
)
_PUBLISHED = re.compile(
    r"\b(?:INSTALL|README|COPYING|AUTHORS|NEWS|ChangeLog|mailing list|home ?page|web ?site|tarball|git clone"
    r"|(?:make|pip|npm|brew|apt(?:-get)?|cargo|conda) install|General Public License|L?GPL|(?:MIT|BSD|Apache) license"
    r"|(?:report|send)(?:ing)? (?:\w+ )?bugs?|bug (?:reports?|tracker)|github\.com|patches)\b"
    r"|\./configure|@\w+\.(?:org|com|net)\b",
    re.IGNORECASE,
)
_IS_A = re.compile(
    r"\b(?:(?:is|are) (?:an?|the|one|used|designed|intended)|library|tool|program|module|package|framework|utility)\b"
)
FIGURES = 2.0
"""Weight of figures relative to the scorer, in a quarterly report."""
REPORTED = 0.08, 0.12, 0.2
"""Features of such a report or call with analysts: shares of its sentences with a figure, with a business word, with
"we"."""
_FIGURE = re.compile(
    r"[$€£¥]\s?\d|\b\d[\d,.]*\s?(?:%|(?:percent(?:age)?|per cent|basis points?|(?:m|b|tr)illion|cents|bps)\b)", re.I
)
_BUSINESS = re.compile(
    r"\b(?:quarters?|fiscal|revenues?|earnings|ebitda|margins?|guidance|year[- ]over[- ]year|operating income|cash flow"
    r"|(?:net|comparable|organic) (?:sales|income)|outlook)\b",
    re.IGNORECASE,
)
_OURS = re.compile(r"\b(?:we|our|I)\b", re.IGNORECASE)


def figures(texts: Sequence[str]) -> np.ndarray:
    """Returns scores for figures in the sentences of a quarterly report, `(N,)`, in standard deviations; 0 for other
    texts."""
    if not texts:
        return np.zeros(0, np.float32)
    found = [[pattern.search(text) is not None for text in texts] for pattern in (_FIGURE, _BUSINESS, _OURS)]
    if any(np.mean(each) < least for each, least in zip(found, REPORTED, strict=True)):
        return np.zeros(len(texts), np.float32)
    return standardised([min(len(_FIGURE.findall(text)), 3) for text in texts])


KNOWN, FOREIGN = 1.2, 2.2
"""Distance of a document from the kinds of text that the weights were fitted on, at which word centrality begins to
count, and at which it counts in full; documents of these kinds are barely above the first, and a kind left out of the
fit is above the second."""
CENTRAL = 2.5
"""Weight of word centrality then, relative to the scorer."""
TALK = 0.03
"""Share of filler words from which word centrality is ignored: in speech, the most frequent word is "yeah"."""
OPENING = -0.4
"""Minimum logit of an opening abstract: missing it costs a text with one more (10 points of ROUGE-1) than a false one
costs others (2 to 4)."""
QUERY = 1.0
"""Weight of the similarity to a query relative to the scorer."""
QUERY_MIX = 0.02
"""Weight of both relative to the words, for a query, which changes the probabilities of words itself."""
BROKEN = 0.25
"""Weight of the penalties below relative to relevance, for a query, whose answer may be no sentence ("Never.")."""
BOUND = 5.0
"""Features are clipped to this number of standard deviations from their mean."""
FRAGMENT, ROADMAP, HANGING = 2.0, 1.0, 0.5
"""Penalties of a piece that is not a sentence, of a sentence about the document's structure, and of one that depends on
more than `longspan_documents.summaries.clues.REACH` before it; a good sentence is worth 0.1 to 0.5."""
NAMES = (
    *("words.mean", "words.spread", "words.weight", "clues.mean", "clues.spread", "vector.weight", "vector.bias"),
    *("hidden.weight", "hidden.bias", "score.weight", "score.bias", "mix"),
    *("kinds.mean", "kinds.spread", "opening.mean", "opening.spread", "opening.weight"),
)


class Order(NamedTuple):
    """The order in which the sentences of a document enter a summary.

    Attributes:
        indices: N, best first.
        scores: `(N,)`, between 0 and 1, descending in this order.
        opening: number of sentences at the beginning detected as the document's own abstract without a heading.
        leading: the first sentences, if they summarise the document, in the document's order.
    """

    indices: list[int]
    scores: np.ndarray
    opening: int
    leading: tuple[int, ...] = ()


@dataclass(frozen=True)
class Picker:
    """Two small models and their mixture, fitted by `tools/bundled/summary_weights.py`.

    Attributes:
        weights: by name: for the regressions of words `words.mean`, `words.spread` `(F,)`, `words.weight` `(F + 1, 4)`;
            for the sentence scorer, a network with one hidden layer, `clues.mean`, `clues.spread` `(C,)`,
            `vector.weight` `(V, D)`, `vector.bias`, `hidden.weight` `(H, C + V)`, `hidden.bias`, `score.weight` `(H,)`,
            `score.bias`; `mix`, the weight of the scorer relative to the words; for each kind of text they were fitted
            on, `kinds.mean`, `kinds.spread` `(K, 13)`; and for the regression that detects an opening abstract,
            `opening.mean`, `opening.spread` `(20,)`, `opening.weight` `(21,)`.
    """

    weights: Mapping[str, np.ndarray]

    @classmethod
    def load(cls, file: Path) -> Picker:
        """Reads a .safetensors file.

        Raises:
            InputError: it is missing or damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            weights = {name: value.astype(np.float32) for name, value in load_file(file).items()}
            broken = [name for name in NAMES if not np.isfinite(weights[name]).all()]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"the weights in {file} are damaged ({error}); install the package again") from error
        if broken:
            raise InputError(f"the weights in {file} hold no finite numbers in {broken[0]}; install the package again")
        return cls(weights)

    def chances(self, numbers: np.ndarray) -> np.ndarray:
        """`(W, F)` → the probabilities of words to be named at least 1, 2, 3 and 5 times, `(W, 4)`."""
        of = self.weights
        known = (numbers - of["words.mean"]) / of["words.spread"]
        logits = known @ of["words.weight"][:-1] + of["words.weight"][-1]
        return 1 / (1 + np.exp(-np.clip(logits, -30, 30)))

    def scores(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Features `(N, C)` and vectors `(N, D)` → scores `(N,)`, in standard deviations within the document."""
        of = self.weights
        known = np.clip((values - of["clues.mean"]) / of["clues.spread"], -BOUND, BOUND)
        meaning = vectors @ of["vector.weight"].T + of["vector.bias"]
        hidden = gelu(np.concatenate([known, meaning], -1) @ of["hidden.weight"].T + of["hidden.bias"])
        return standardised(hidden @ of["score.weight"] + of["score.bias"])

    def share_of_centrality(self, document: Sentences) -> float:
        """Returns the share of word centrality in the selection, between 0 and 1, which grows with the distance from
        known kinds of text.

        The distance of a document is the difference of its kind of text from the nearest kind of the fit, in standard
        deviations (root mean square of 13 numbers, each at most 5).
        """
        of = self.weights
        apart = np.abs(document.kind - of["kinds.mean"]) / of["kinds.spread"]
        unlike = float(np.sqrt((np.minimum(apart, BOUND) ** 2).mean(1)).min())
        talk = share_of_fillers(" ".join(document.texts)) / TALK
        return float(np.clip((unlike - KNOWN) / (FOREIGN - KNOWN), 0, 1) * np.clip(1.5 * (1 - talk), 0, 1))

    def opening(self, document: Sentences) -> int:
        """Returns the number of sentences at the beginning detected as the document's own abstract, by a regression;
        usually 0."""
        of = self.weights
        above = document.headings[: document.sections[0]] if len(document) else ["nothing"]
        # A document's first heading is as uninformative as its title, such as "Introduction".
        if any(heading not in {document.title, above[0]} for heading in above) or "opening.weight" not in of:
            return 0  # a heading already names the beginning
        features = abstract_features(document.texts, document.contents)
        if features is None:
            return 0
        known = (np.concatenate([features, document.kind]) - of["opening.mean"]) / of["opening.spread"]
        logit = np.clip(known, -BOUND, BOUND) @ of["opening.weight"][:-1] + of["opening.weight"][-1]
        return end_of_opening(document.texts, document.paragraphs, document.sections) if logit > OPENING else 0

    def leads(self, document: Sentences) -> bool:
        """Whether a document's first sentences summarise it better than selected ones, by a logistic regression: True
        for READMEs, manual pages, descriptions of packages."""
        of = self.weights
        if "lead.weight" not in of or 2 * document.spoken.sum() > len(document):
            return False  # conversations do not begin with a summary
        known = (lead_features(document) - of["lead.mean"]) / of["lead.spread"]
        return float(np.clip(known, -BOUND, BOUND) @ of["lead.weight"][:-1] + of["lead.weight"][-1]) > LEAD

    def order(self, document: Sentences, words: int, relevance: Relevance | None = None) -> Order:
        """Returns the order in which the sentences of a document enter a summary, and their scores.

        Args:
            document: its sentences.
            words: length of the summary.
            relevance: relevance of each sentence to a query; None without a query.
        """
        if not len(document):
            return Order([], np.zeros(0), 0)
        table = word_table(document)
        chances = self.chances(with_length(table, words))
        values = clues(document, worth_of_sentences(document, table, chances[:, 0]))
        own, mix = self.scores(values, document.vectors), self.weights["mix"].item()
        if relevance is not None:
            own, mix = own + QUERY * relevance.near, QUERY_MIX
            chances = chances_about(table, chances, relevance)
        elif share := self.share_of_centrality(document):
            own = own + CENTRAL * share * standardised(word_centrality(document.contents))
        reported = figures(document.texts) if relevance is None else np.zeros(len(document))
        own = own + FIGURES * reported
        lengths = np.array([count_words(text) for text in document.texts], float)
        needs = antecedents(document.texts)
        penalties, before = wording_penalties(document.texts, needs), [each or () for each in needs]
        worth = mix * own - penalties
        if relevance is not None and relevance.strength:
            # An answer takes no sentences with it that it refers to: there is room for three others or less.
            worth, before = mix * own + relevance.strength * (relevance.near - BROKEN * penalties), [()] * len(document)
        known = bool(document.vectors.any())  # otherwise no beginning can be recognised
        opening = self.opening(document) if relevance is None and known else 0
        leads = relevance is None and known and not reported.any() and self.leads(document)
        led = leading(document.texts, min(words, OPENING_WORDS)) if leads else []
        first = list(dict.fromkeys([*range(opening), *led]))
        order = cover(table, chances, worth, lengths, before, document.vectors, words, first)
        scores = np.empty(len(own))
        # The order determines priority; the scorer determines the values.
        scores[order] = np.sort(1 / (1 + np.exp(np.clip(1 - 1.5 * own, -30, 30))))[::-1]
        return Order(order, scores, opening, tuple(led))


def wording_penalties(sentences: Sequence[str], needs: Sequence[tuple[int, ...] | None]) -> np.ndarray:
    """Returns the penalty of each sentence, `(N,)`: fragments, notices, roadmaps, those that depend on too many
    others."""
    # A lower-case beginning is the rest of a sentence, unless the whole text is written so.
    low = [sentence[:1].islower() for sentence in sentences]
    broken = [
        is_fragment(one) or (is_low and 2 * sum(low) < len(low)) for one, is_low in zip(sentences, low, strict=True)
    ]
    return np.array(
        [
            FRAGMENT * (piece or is_notice(sentence)) + ROADMAP * is_roadmap(sentence) + HANGING * (before is None)
            for sentence, piece, before in zip(sentences, broken, needs, strict=True)
        ],
        float,
    )
