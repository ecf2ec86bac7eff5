"""A document of a coreference data set, independent of the file format."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from longspan.characters import check_characters
from longspan.errors import InputError

Mention = tuple[int, int]
"""First and last word of a mention, from 0 over the whole document; the last word is inclusive."""
Cluster = tuple[Mention, ...]
"""Mentions of the same entity, in order; a cluster of one mention is a singleton."""


@dataclass(frozen=True, kw_only=True)
class CoreferenceRow:
    """A document, or a part of one, with its speakers and coreference clusters.

    Mentions may nest, even within one cluster, and cross; one span may be in two clusters, as a few times in OntoGUM. A
    file without sentence boundaries gives one sentence per document.

    Attributes:
        id: the document's name.
        part: number of the part, in formats that split long documents.
        sentences: S sentences of words.
        speakers: the speaker of each word, "" for none; `None` if the file has no speakers.
        clusters: in the order of their first mentions.
    """

    id: str
    part: int = 0
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[tuple[str, ...], ...] | None = None
    clusters: tuple[Cluster, ...] = ()

    def __post_init__(self) -> None:
        """Sorts the clusters; raises `InputError` for mentions outside the document and speakers of other words."""
        for word in (self.id, *self.words):
            check_characters(word, f"document {self.id!r}")
        if self.speakers is not None and [*map(len, self.speakers)] != [*map(len, self.sentences)]:
            raise InputError(f"speakers of document {self.id!r} do not fit its sentences; give one for each word")
        for start, end in (mention for cluster in self.clusters for mention in cluster):
            if not 0 <= start <= end < len(self.words):
                raise InputError(
                    f"clusters of document {self.id!r} has the mention {start}–{end}, but its words are 0 to "
                    f"{len(self.words) - 1}; correct it"
                )
        object.__setattr__(self, "clusters", in_order(self.clusters))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words, in order."""
        return tuple(word for sentence in self.sentences for word in sentence)

    def text(self, mention: Mention) -> str:
        """Returns the words of a mention."""
        return " ".join(self.words[mention[0] : mention[1] + 1])


def in_order(clusters: Iterable[Iterable[Mention]]) -> tuple[Cluster, ...]:
    """Returns clusters sorted by first mention, mentions by position; removes duplicate mentions and empty clusters."""
    ordered = (tuple(sorted({(int(start), int(end)) for start, end in cluster})) for cluster in clusters)
    return tuple(sorted(cluster for cluster in ordered if cluster))


def crossing(mentions: Iterable[Mention]) -> tuple[Mention, Mention] | None:
    """Returns two mentions that overlap while neither contains the other; `None` if there are none."""
    around: list[Mention] = []
    for start, end in sorted(set(mentions), key=lambda mention: (mention[0], -mention[1])):
        while around and around[-1][1] < start:
            around.pop()
        if around and around[-1][1] < end:
            return around[-1], (start, end)
        around.append((start, end))
    return None


NAMES = {
    "she": ("Ada", "Emmy", "Grace", "Mary", "Rosa", "Vera"),
    "he": ("Alan", "Carl", "Emil", "Hugo", "Kurt", "Paul"),
}
OTHERS = {"she": ("her", "the old woman"), "he": ("him", "the old man")}
VERBS = ("met", "saw", "called", "thanked", "visited", "remembered")
ENDS = ("in the garden", "on the road", "after dinner", "without a word", "once more")


def synthetic_documents(count: int, *, seed: int, sentences: int = 24) -> list[CoreferenceRow]:
    """Generates stories about people, of whom one woman and one man are active at a time, until a name introduces
    another.

    A pronoun, and "the old woman" or "the old man", refers to the person of that sex who was named last. Each sentence
    has two people. The same arguments give the same documents.
    """
    draw = random.Random(seed)
    return [_document(f"synthetic-{seed}-{number}", sentences, draw) for number in range(count)]


def _document(name: str, sentences: int, draw: random.Random) -> CoreferenceRow:
    story: list[tuple[str, ...]] = []
    clusters: dict[str, list[Mention]] = {}
    present: dict[str, str] = {}
    words = 0
    for _ in range(sentences):
        subject, second = draw.sample(("she", "he"), 2)
        sentence: list[str] = []
        for kind, pronoun in ((subject, subject.capitalize()), (second, OTHERS[second][0])):
            if kind not in present or draw.random() < 0.3:
                present[kind] = draw.choice(NAMES[kind])
                mention_text = present[kind]
            else:
                mention_text = draw.choice((pronoun, OTHERS[kind][1]))
            start = words + len(sentence)
            sentence += mention_text.split()
            clusters.setdefault(present[kind], []).append((start, words + len(sentence) - 1))
            sentence += [draw.choice(VERBS)] if kind == subject else []
        sentence += [*draw.choice(ENDS).split(), "."]
        words += len(sentence)
        story.append(tuple(sentence))
    return CoreferenceRow(id=name, sentences=tuple(story), clusters=tuple(map(tuple, clusters.values())))
