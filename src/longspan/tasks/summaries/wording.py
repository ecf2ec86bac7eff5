"""What a sentence's own words tell: whether it stands by itself, and whether it says anything of the subject.

English alone is looked at; sentences of other languages pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from longspan.data.text.words import split_words
from longspan.tasks.summaries.selection import is_whole

CONNECTIVE = re.compile(
    r"(?:but|and|or|nor|so|because|however|therefore|thus|hence|also|moreover|furthermore|then|next|finally|for example"
    r"|for instance|in addition|additionally|similarly|likewise|instead|otherwise|yet|still|nevertheless|nonetheless"
    r"|besides|meanwhile|that is|as a result|as such|in contrast|by contrast|conversely|consequently|accordingly"
    r"|in (?:this|that|such a|each) (?:case|way|sense)|on the (?:other hand|contrary)|in other words|indeed|again(?=,)"
    r")\b",
    re.IGNORECASE,
)
"""Beginnings that tie a sentence to the one before."""
PRONOUN = re.compile(
    r"(?:it|this|that|these|those|they|he|she|his|her|hers|their|theirs|its|such|him|them|both|neither|the (?:former"
    r"|latter|same))\b",
    re.IGNORECASE,
)
"""Beginnings that stand for something named before."""
_FILLED = re.compile(
    r"(?:(?:um+|uh+|er+|erm|hm+|mm+|mm-hmm|well|oh|ah|okay|ok|yeah|right)\b[\s,.…—–-]*)+", re.IGNORECASE
)
"""What people say while they think of a beginning."""
_OWN_SUBJECT = re.compile(
    r"this (?:paper|article|study|work|proposal|document|report|enhancement|section|chapter|thesis|review|survey|book|"
    r"standard|specification|[a-z]?[A-Z]{2,4})\b|it (?:is|was|has been|had been|will be) (?:\w+ ){1,2}(?:that|to)\b"
    r"|such as\b|that said\b",
    re.IGNORECASE,
)
"""What begins alike, and names what it is about, or has nothing to name."""
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
        ]
    ),
    re.IGNORECASE,
)
"""What tells where something is said instead of saying it."""
REACH = 2
"""Sentences before one that hangs on them which may be taken with it."""


def hangs(sentence: str) -> bool:
    """Whether a sentence begins with a word that means something only after the sentence before."""
    begin = sentence.lstrip("\"'“”‘’(—–-… ")
    filled = _FILLED.match(begin)
    begin = begin[filled.end() :] if filled else begin
    if _OWN_SUBJECT.match(begin):
        return False
    return CONNECTIVE.match(begin) is not None or PRONOUN.match(begin) is not None


def is_roadmap(sentence: str) -> bool:
    """Whether a sentence says where in the document something stands ("Section 3 describes…", "Next, we present…")."""
    return _ROADMAP.search(sentence) is not None


def is_fragment(sentence: str) -> bool:
    """Whether a piece is no sentence of prose, or promises what comes after it."""
    return sentence.rstrip().endswith(":") or not is_whole(sentence, split_words(sentence))


def antecedents(sentences: Sequence[str]) -> list[tuple[int, ...] | None]:
    """For each sentence those before it that it needs: none, up to `REACH` in order, or None for too many."""
    found: list[tuple[int, ...] | None] = []
    for index, sentence in enumerate(sentences):
        if index == 0 or not hangs(sentence):
            found.append(())
            continue
        before = found[-1]
        found.append(None if before is None or len(before) >= REACH else (*before, index - 1))
    return found
