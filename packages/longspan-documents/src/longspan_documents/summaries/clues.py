"""Features for choosing the sentences of a summary: wording, position, centrality and structure.

Wording alone determines whether a sentence is complete, independent of its context, and about the subject; this is only
checked for English, and sentences of other languages pass.

The features are numbers relative to the document, or bounded, so that weights fitted on papers remain reasonable on
stories. The centrality of a sentence is the similarity of its vector to others (as in LexRank, Erkan and Radev 2004,
with embeddings instead of words), against at most `ANCHORS` of them, in linear time and memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longspan.data.text.sentences import FUNCTION_WORDS, count_words, holders_of, split_words

_END = re.compile("[.!?…。！？｡।॥؟۔።။།៕][\"'”’»›)\\]）」』*_]*$")
FEWEST_WORDS = 4
"""Shorter pieces are headings, page numbers or exclamations; they are chosen only if there is nothing else."""


def is_whole(sentence: str, words: Sequence[str]) -> bool:
    """Whether a piece is a sentence of prose, instead of a heading, a table row or a line of code."""
    solid = "".join(sentence.split())
    letters = sum(map(str.isalpha, solid))
    return len(words) >= FEWEST_WORDS and letters >= 0.7 * len(solid) and bool(_END.search(solid))


CONNECTIVE = re.compile(
    r"(?:but|and|or|nor|so|because|however|therefore|thus|hence|also|moreover|furthermore|then|next|finally|for example"
    r"|for instance|in addition|additionally|similarly|likewise|instead|otherwise|yet|still|nevertheless|nonetheless"
    r"|besides|meanwhile|that is|as a result|as such|in contrast|by contrast|conversely|consequently|accordingly"
    r"|in (?:this|that|such a|each|both|these|those) (?:cases?|way|sense)|on the (?:other hand|contrary)|in other words"
    r"|indeed|again(?=,)|in particular|specifically|for (?:this|that|these|those) (?:reasons?|purposes?)"
    r"|(?:to do|because of|despite|given|after|without|apart from|as well as|except for) (?:so|this|that|these|those)"
    r"|as (?:above|before|mentioned|noted|described|discussed|stated)|hereafter|alternatively|equally|subsequently"
    r")\b",
    re.IGNORECASE,
)
"""Beginnings that connect a sentence to the previous one."""
PRONOUN = re.compile(
    r"(?:it|this|that|these|those|they|he|she|his|her|hers|their|theirs|its|such|him|them|both|neither|the (?:same"
    r"|other)|(?:some|all|none|most|many|each|one|two|any|either|half) of (?:these|those|them)"
    r"|another|others)\b",
    re.IGNORECASE,
)
"""Beginnings that refer to something named before."""
_FILLED = re.compile(
    r"(?:(?:um+|uh+|er+|erm|hm+|mm+|mm-hmm|well|oh|ah|okay|ok|yeah|right)\b[\s,.…—–-]*)+", re.IGNORECASE
)
"""Filled pauses at the beginning of speech."""
_POINTER = re.compile(
    r"\b(?:this|these|those|such(?: an?)?) (?P<noun>\w[\w-]*)"
    r"|\bthe (?:above|aforementioned)\b"
    r"|\bthe (?:former|latter)(?=[,.;:]| (?:is|are|was|were|has|have|can|may|will|case))",
    re.IGNORECASE,
)
"""Phrases that refer to something named before, anywhere in a sentence: "addresses this concern"."""
_QUOTED = re.compile(r"“[^”]*”|\"[^\"]*\"")
_DOCUMENT = """
paper article study work proposal document report enhancement section chapter thesis review survey book standard
specification
"""
_CLEAR = """
project meeting episode result results finding findings data time times moment point day days year years week month
morning evening night season century people who that which whose as
"""
_CLEAR_NOUNS = FUNCTION_WORDS | set(f"{_DOCUMENT} {_CLEAR}".split())
"""Nouns after "this" or "these" that need no previous sentence, and words that begin a clause."""
_OWN_SUBJECT = re.compile(
    rf"this (?:{'|'.join(_DOCUMENT.split())}"
    r"|(?-i:(?:[A-Z][a-z]+-)?[a-z]?[A-Z]{2,4}))\b"
    r"|it (?:is|was|has been|had been|will be) (?:\w+ ){1,2}(?:that|to)\b"
    r"|such as\b|that said\b",
    re.IGNORECASE,
)
"""Similar beginnings that name their subject, or have none."""
_PART = r"(?:(?:sub)?section|sect\.|chapter|appendix)"
_NUMBER = r"[\dIVXA-F][\dIVX.]*\b"
_TELLS = (
    r"(?:describe|discusse?|present|introduce|review|conclude|provide|give|explain|contain|cover|detail|outline|show"
    r"|report|summari[sz]e|examine|consider|list)s?\b"
)
_TOLD = r"(?:described|discussed|presented|explained|detailed|shown|given|listed|defined|outlined|reported|provided)"
_ROADMAP = re.compile(
    "|".join(
        [
            rf"\bin (?:this|the (?:next|following|remaining)|subsequent) {_PART}s?,? (?:we|I|is|are|the)\b",
            rf"\b(?:in {_PART}|{_PART}) {_NUMBER},? (?:then |we |I )*(?:will )?{_TELLS}",
            rf"\b(?:in|see(?: also)?) {_PART} {_NUMBER}",
            r"\bsee (?:also )?(?:table|figure|fig\.)",
            rf"^(?:table|figure|fig\.) [A-F]?\d+[a-f]? (?:also )?{_TELLS}",
            r"\b(?:rest|remainder|remaining part) of (?:this|the|our) (?:paper|article|work|report|document|chapter)\b",
            r"\b(?:paper|article|report|document|chapter|section) is (?:organi[sz]ed|structured|divided)\b",
            rf"\b(?:is|are|will be|as) (?:further |briefly )?{_TOLD}(?: in detail)? (?:below|above)\b",
            rf"\b(?:is|are|will be|as) (?:further |briefly )?{_TOLD}(?: in detail)? in "
            rf"(?:(?:the (?:next|following|previous) )?{_PART}|table|figure|fig\.)",
            rf"\bwe (?:now|next|then) (?:turn to|{_TELLS})",
            rf"^(?:next|now|first|below|finally),? (?:we|I)(?: will|'ll)? (?:turn to|{_TELLS})",
            rf"\b(?:this|the (?:next|following|present)|each|that) {_PART} {_TELLS}",
            r"\b(?:as follows|(?:the|these) following|(?:listed|shown|given|described) below)(?: \w+){0,2}[.:]$",
            rf"\b(?:slides?|page|exhibit) (?:number )?\w+,? {_TELLS}",
            r"\b(?:turn(?:ing)?|mov(?:e|ing)|go(?:ing)?) (?:now )?(?:over )?to (?:slide|page)\b|\bnext slide\b",
            r"\b(?:will|I'll|we'll|going to|like to|let me) (?:\w+ )?(?:begin|start|kick off|open|conclude|close) "
            r"(?:\w+ )?(?:by \w+ing|with)\b",
            r"\b(?:turn|hand|pass) (?:the (?:call|conference|meeting|floor)|it|things) (?:back )?(?:over )?to\b",
            r"\b(?:open (?:up )?(?:the (?:call|line|floor)|it|things)|(?:take|answer) (?:your|any) questions)\b",
            r"^(?:(?:for )?(?:more|further) (?:information|details?)|to learn more),? .*\b(?:see|visit|refer)\b",
        ]
    ),
    re.IGNORECASE,
)
"""Phrases of sentences about the structure of the document."""
_NOTICE = re.compile(
    r"forward[- ]looking statements?|\bsafe[- ]harbou?r\b|differ materially from"
    r"|undertakes? no (?:obligation|duty) to update"
    r"|\bnon-GAAP (?:financial )?(?:measures?|information)\b.*\b(?:reconcil|definition|website|press release)"
    r"|(?:being|is) (?:recorded|webcast)\b|listen-only mode|replay of (?:this|the|today's) (?:call|conference)"
    r"|\b(?:registered )?trademarks? (?:\w+ ){0,2}(?:of|or)\b|\ball rights reserved\b|^copyright (?:\(c\)|©|held|19|20)"
    r"|permission (?:is hereby granted|to make digital|to copy|from permissions|is granted to (?:copy|make|use))"
    r"|^(?:ACM reference format|expression error)|request permissions? from|publication rights licensed|^©"
    r"|copyrights? for components|bear this notice|post on servers or|abstracting with credit is permitted"
    r"|\bwithout (?:any )?(?:express or implied )?warrant(?:y|ies)\b|\bis free software[:;,.]"
    r"|redistribute it and/or modify|^(?:\w+[,.:]? ){0,6}good (?:morning|afternoon|evening)\b(?=.{0,100}$)"
    r"|^(?:\w+[,.:]? ){0,6}congratulations on\b|\bthank(?:s| you) (?:all )?for (?:joining|taking|your time)\b"
    r"|\b(?:this|that) concludes (?:today's|the|our)\b|\b(?:first|next|last) question (?:comes|is|will come) from\b"
    r"|(?:licensed|distributed|released|available) under (?:the )?(?:terms of )?[\w ().-]{0,40}licen[cs]e\b",
    re.IGNORECASE,
)
"""Licences, trademarks, permissions, safe-harbour statements; greetings and thanks of a call."""
REACH = 2
"""Maximum number of sentences before a dependent one that may be added with it."""


def depends_on_previous(sentence: str) -> bool:
    """Whether a sentence begins with a word that refers to the previous sentence, or contains "this concern" and the
    like without the concern."""
    begin = sentence.lstrip("\"'“”‘’(—–-… ")
    filled = _FILLED.match(begin)
    begin = begin[filled.end() :] if filled else begin
    if not _OWN_SUBJECT.match(begin) and (CONNECTIVE.match(begin) or PRONOUN.match(begin)):
        return True
    return any(map(_points_back, _POINTER.finditer(_QUOTED.sub("", sentence))))


def _points_back(found: re.Match[str]) -> bool:
    """Whether a phrase such as "this concern" refers to a previous sentence: its noun is not named in its own."""
    noun = (found["noun"] or "").lower()
    if not noun:
        return True
    if noun in _CLEAR_NOUNS or found["noun"][-2:].isupper():
        return False
    return noun.removesuffix("s")[:6] not in found.string[: found.start()].lower()


def is_roadmap(sentence: str) -> bool:
    """Whether a sentence is about the structure of the document ("Section 3 describes…", "Next, we present…")."""
    return _ROADMAP.search(sentence) is not None


def is_notice(sentence: str) -> bool:
    """Whether a sentence belongs to a licence, a permission to copy, a trademark note or a safe-harbour statement."""
    return _NOTICE.search(sentence) is not None


def is_fragment(sentence: str) -> bool:
    """Whether a piece is not a sentence of prose, or announces what follows."""
    return sentence.rstrip().endswith(":") or not is_whole(sentence, split_words(sentence))


def antecedents(sentences: Sequence[str]) -> list[tuple[int, ...] | None]:
    """Returns for each sentence the previous ones it depends on: none, up to `REACH` in order, or None for too many."""
    needed: list[tuple[int, ...] | None] = []
    for index, sentence in enumerate(sentences):
        if index == 0 or not depends_on_previous(sentence):
            needed.append(())
            continue
        before = needed[-1]
        needed.append(None if before is None or len(before) >= REACH else (*before, index - 1))
    return needed


ANCHORS = 2048
"""Number of sentences, spread over the document, that each one is compared with."""
ROWS = 1024
"""Number of sentences compared at a time."""
NEAR, VERY_NEAR = 0.3, 0.5
"""Cosines for related and for very similar sentences."""

_OURS = re.compile(
    r"\b(?:we|our|this (?:paper|article|study|work|proposal|document|report|enhancement)|propos(?:es?|ed)|introduces?"
    r"|allows?)\b",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"\b(?:um|uh|yeah|okay|ok|mm|hmm|mhm|oh|right|like|so|well|know|mean|just|really|gonna|alright)\b", re.IGNORECASE
)
_PERSON = re.compile(r"\b(?:I|you|me|my|your)\b")
_WE_YOU = re.compile(r"\b(?:I|you|we)\b")
_HE_SHE = re.compile(r"\b(?:he|she|his|her)\b", re.IGNORECASE)
_CAPITAL = re.compile(r"(?<!^)\b[A-Z]")


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """The sentences of a document and derived data.

    Attributes:
        texts: N, in order.
        contents: the content words of each, see `contents_of`.
        vectors: `(N, D)`, normalised.
        paragraphs: `(N,)`, the paragraph, item or turn of each, ascending.
        sections: `(N,)`, number of headings above each, ascending from 0.
        headings: texts of the headings.
        heading_vectors: `(H, D)`, normalised.
        title: title of the document; may be empty.
        title_vector: `(D,)`, or None.
        spoken: `(N,)` bool, whether a speaker is named.
        speakers: speaker of each, or None; empty if there are none.
    """

    texts: Sequence[str]
    contents: Sequence[Sequence[str]]
    vectors: np.ndarray
    paragraphs: np.ndarray
    sections: np.ndarray
    headings: Sequence[str] = ()
    heading_vectors: np.ndarray | None = None
    title: str = ""
    title_vector: np.ndarray | None = None
    spoken: np.ndarray
    speakers: Sequence[str | None] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def centrality(self) -> tuple[np.ndarray, np.ndarray]:
        """`centrality` of the vectors, cached."""
        return centrality(self.vectors)

    @cached_property
    def kind(self) -> np.ndarray:
        """`kind_of_text` of this document, `(13,)`, cached."""
        return kind_of_text(self)


def standardised(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Standardises values: subtracts the mean, divides by the standard deviation; 0 if all are equal."""
    values = np.asarray(values, dtype=np.float32)
    spread = values.std() if len(values) else 0.0
    return (values - values.mean()) / spread if spread > 1e-6 else np.zeros_like(values)


def centrality(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the average similarity of each sentence to the document's, and the share of very similar ones: `(N,)`
    each."""
    count = len(vectors)
    anchors = vectors if count <= ANCHORS else vectors[np.linspace(0, count - 1, ANCHORS).astype(int)]
    common, much = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for first in range(0, count, ROWS):
        cosines = vectors[first : first + ROWS] @ anchors.T
        common[first : first + ROWS] = np.maximum(cosines - NEAR, 0).mean(1)
        much[first : first + ROWS] = (cosines > VERY_NEAR).mean(1)
    return common, much


def word_centrality(contents: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the word-based similarity of each sentence to the others, `(N,)`: the square root of the sum of cosines.

    Words are weighted by their frequency in the sentence and rarity in the document (LexRank's measure without its
    threshold, Erkan and Radev 2004). The sum of cosines is a cosine with the sum of vectors, so time and memory are
    linear.
    """
    holders = holders_of(contents)
    rarity = {word: math.log(len(contents) / count) + 1 for word, count in holders.items()}
    rows, total = [], Counter[str]()
    for words in contents:
        row = {word: times * rarity[word] for word, times in Counter(words).items()}
        norm = math.sqrt(sum(value**2 for value in row.values())) or 1.0
        rows.append({word: value / norm for word, value in row.items()})
        total.update(rows[-1])
    sums = [sum(value * total[word] for word, value in row.items()) for row in rows]
    return np.sqrt(np.maximum(np.array(sums) - 1, 0))


def clues(document: Sentences, worth: np.ndarray) -> np.ndarray:
    """Returns the features of each sentence, `(N, C)` float32.

    Args:
        document: at least one sentence.
        worth: `(N, 3)`, for each sentence's content words: mean, sum and maximum probability of being in a summary.
    """
    length = np.array([count_words(text) for text in document.texts], np.float32)
    columns = [
        *_place_clues(document),
        *_length_clues(document, length),
        *_vector_clues(document),
        *_wording_clues(document),
        standardised(worth[:, 0]),
        standardised(worth[:, 1]),
        standardised(worth[:, 1] / (length + 3)),
        worth[:, 1] / (length + 3),
        standardised(worth[:, 2]),
    ]
    features = np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
    return np.concatenate([features, np.repeat(document.kind[None], len(features), axis=0)], axis=1)


def _place_clues(document: Sentences) -> list[np.ndarray]:
    count = len(document)
    index = np.arange(count, dtype=np.float32)
    relative = index / max(count - 1, 1)
    sections = document.sections
    begins = np.r_[True, document.paragraphs[1:] != document.paragraphs[:-1]]
    first = np.maximum.accumulate(np.where(np.r_[True, sections[1:] != sections[:-1]], index, 0))
    last = sections.max()
    return [
        *(relative, relative**2, 1 / (1 + index), 1 / (1 + index / 10), 1 / (1 + (count - 1 - index) / 5)),
        *(np.log1p(index), begins, 1 / (1 + index - first), sections <= 1, sections == last, sections / (last + 1)),
    ]


def _length_clues(document: Sentences, length: np.ndarray) -> list[np.ndarray]:
    kinds = np.array([len(set(words)) for words in document.contents], np.float32)
    log = np.log1p(length)
    holders = holders_of(document.contents)
    common = np.array(
        [
            np.mean([np.log1p(holders[word]) for word in dict.fromkeys(words)]) if words else 0
            for words in document.contents
        ]
    )
    return [
        *(log, log**2, length < 6, length > 45, kinds / (length + 3), standardised(log)),
        *(standardised(common), standardised(common * np.sqrt(kinds))),
    ]


def _vector_clues(document: Sentences) -> list[np.ndarray]:
    vectors, count = document.vectors, len(document)
    mean = _unit(vectors.mean(0))
    sums = np.zeros((int(document.sections.max()) + 1, vectors.shape[1]), np.float32)
    np.add.at(sums, document.sections, vectors)
    sections = sums / (np.linalg.norm(sums, axis=1, keepdims=True) + 1e-9)
    lead = _unit(vectors[: max(3, count // 50)].mean(0))
    title = vectors[0] if document.title_vector is None else document.title_vector
    named = document.heading_vectors
    headings = mean if named is None or not len(named) else named.mean(0)
    beside = (vectors[1:] * vectors[:-1]).sum(1)
    near = np.maximum(np.r_[0, beside], np.r_[beside, 0])
    cosines = [vectors @ mean, *document.centrality, (vectors * sections[document.sections]).sum(1), vectors @ lead]
    return [standardised(values) for values in (*cosines, vectors @ title, vectors @ headings, near)]


def _wording_clues(document: Sentences) -> list[np.ndarray]:
    def of(rule: Callable[[str], float]) -> np.ndarray:
        return np.array([rule(text) for text in document.texts], np.float32)

    def words(text: str) -> int:
        return count_words(text) + 1

    return [
        of(lambda text: CONNECTIVE.match(text) is not None),
        of(lambda text: PRONOUN.match(text) is not None),
        of(lambda text: _OURS.search(text) is not None),
        of(lambda text: "?" in text),
        of(lambda text: '"' in text or "“" in text),
        of(lambda text: sum(map(str.isdigit, text)) / (len(text) + 1)),
        of(lambda text: len(_CAPITAL.findall(text)) / words(text)),
        of(lambda text: text.count("(")),
        of(lambda text: sum(not each.isalnum() and not each.isspace() for each in text) / (len(text) + 1)),
        of(lambda text: len(_PERSON.findall(text)) / words(text)),
        of(lambda text: text.rstrip()[-1:] in '.!?"”)'),
        of(lambda text: len(_FILLER.findall(text)) / words(text)),
        of(lambda text: sum(word.lower() in FUNCTION_WORDS for word in text.split()) / words(text)),
        document.spoken,
    ]


def kind_of_text(document: Sentences) -> np.ndarray:
    """Returns features of the kind of text, `(13,)`, since papers, stories and meetings need different weights."""
    text, count = " ".join(document.texts), len(document)
    length = np.array([count_words(sentence) for sentence in document.texts], np.float32)
    words = max(count_words(text), 1)
    return np.array(
        [
            *(np.log(count), np.log1p(np.median(length)), np.log1p(length.mean()), (length < 6).mean()),
            sum("?" in sentence for sentence in document.texts) / count,
            len(_WE_YOU.findall(text)) / words,
            sum('"' in sentence or "“" in sentence for sentence in document.texts) / count,
            sum(map(str.isdigit, text)) / (len(text) + 1),
            share_of_fillers(text),
            document.centrality[0].mean(),
            len(document.headings) / count,
            np.mean(document.spoken),
            len(_HE_SHE.findall(text)) / words,
        ],
        np.float32,
    )


def share_of_fillers(text: str) -> float:
    """Returns the share of "um", "yeah", "you know" and similar words in a text, which distinguishes speech from
    writing."""
    return len(_FILLER.findall(text)) / max(count_words(text), 1)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (np.linalg.norm(vector) + 1e-9)
