"""A question over several titled paragraphs, independent of the file format; and synthetic questions.

A synthetic question is answered by exactly two facts in two paragraphs, among paragraphs with the same kinds of facts.
Every paragraph is about one person and states whom they like, where they sleep and whether they are at home: "Bado
likes Kifu .", "Bado sleeps in Mura .", "Bado is out .", among sentences of random words. As in HotpotQA there are two
types:

- **bridge**: "Where does someone sleep , the friend of Bado ?" Bado's paragraph names the friend, whose paragraph names
  the place.
- **comparison**: "Are Bado and Kifu both in ?" Half of the answers are yes; for no, one of the two is out.

There are no shortcuts: all places differ, half of all persons are in, and every person except the one in the question,
plus one without a paragraph, is liked by exactly one other.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

Fact = tuple[str, int]
"""Title of a paragraph and index of a sentence in it, from 0."""

YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A title and the sentences under it, as in the file; concatenated without separators they are the text."""

    title: str
    sentences: tuple[str, ...]


class Occurrence(NamedTuple):
    """Characters `start … end − 1` of a sentence of a paragraph, or of its title if `sentence` is −1."""

    paragraph: int
    sentence: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class HopRow:
    """A question, its paragraphs, and the annotations.

    Attributes:
        id: identifies the row in predictions.
        question: in words.
        paragraphs: in the order of the file; each has at least one sentence, which may be empty.
        answer: words of a paragraph, "yes" or "no"; None if the file has none.
        facts: the supporting sentences, some of which may not exist.
    """

    id: str
    question: str
    paragraphs: tuple[Paragraph, ...]
    answer: str | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def answer_type(self) -> str:
        """`words`, `yes` or `no`."""
        answer = (self.answer or "").strip().lower()
        return answer if answer in YES_NO else "words"

    @property
    def needed(self) -> frozenset[str]:
        """Titles of the paragraphs with a supporting fact."""
        return frozenset(title for title, _ in self.facts)

    def holds(self, fact: Fact) -> bool:
        """Whether the sentence exists."""
        return any(
            paragraph.title == fact[0] and 0 <= fact[1] < len(paragraph.sentences) for paragraph in self.paragraphs
        )

    def occurrences(self) -> list[Occurrence]:
        """Returns every occurrence of the answer, as whole words, in a title or a sentence of a needed paragraph.

        Annotators did not mark the position, so any of these is right. Other paragraphs are excluded, where the same
        words mostly occur by chance.
        """
        if self.answer is None or self.answer_type != "words":
            return []
        words = self.answer.strip()
        # Matches whole words only, where the answer begins and ends with a letter or digit.
        before, behind = (r"(?<!\w)" if words[0].isalnum() else "", r"(?!\w)" if words[-1].isalnum() else "")
        wanted = re.compile(before + re.escape(words) + behind)
        return [
            Occurrence(number, sentence, *match.span())
            for number, paragraph in enumerate(self.paragraphs)
            if paragraph.title in self.needed
            for sentence, text in enumerate((paragraph.title, *paragraph.sentences), -1)
            for match in wanted.finditer(text)
        ]

    def text(self, place: Occurrence) -> str:
        """Returns the words at an occurrence."""
        return self.text_of(place.paragraph, place.sentence)[place.start : place.end]

    def text_of(self, paragraph: int, sentence: int) -> str:
        """Returns a sentence of a paragraph, or its title if `sentence` is −1."""
        whole = self.paragraphs[paragraph]
        return whole.title if sentence < 0 else whole.sentences[sentence]


MOST_PARAGRAPHS = 24
"""Maximum number of paragraphs of a row, since there is a name for each and one more."""

APART = 8
"""From this number of paragraphs on, the two needed ones are never adjacent; with fewer, that would be a shortcut."""

FILLER_WORDS = (4, 10)
"""Minimum and maximum number of words of a filler sentence."""

LIKES, SLEEPS, IS = range(3)
"""The facts of a paragraph."""


def two_step_rows(
    count: int,
    *,
    seed: int,
    paragraphs: int = 10,
    fillers: int = 6,
    names: int | None = None,
    comparisons: float = 0.5,
    told: float = 0.0,
) -> list[HopRow]:
    """Generates questions of random words; deterministic across machines, with one vocabulary for all seeds.

    Args:
        count: number of rows.
        seed: of the random generator.
        paragraphs: in a row, 3 to `MOST_PARAGRAPHS`.
        fillers: number of sentences without a fact in each paragraph, about 10 tokens each; varies by one at random.
        names: number of persons and of places to draw from; None takes all.
        comparisons: share of comparison questions; the others are bridge questions.
        told: share of the bridge questions that name the friend instead of "someone". Such questions need one step;
            they teach a model at the start of training to find a name before it has to infer which one.
    """
    people, places, words = _words(random.Random(11))
    names = MOST_PARAGRAPHS + 1 if names is None else names
    assert 3 <= paragraphs < names <= len(people)
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        world = _world(draw, people[:names], places[:names], paragraphs)
        compares = draw.random() < comparisons
        question, answer, needed = _comparison(world, draw) if compares else _bridge(world, draw.random() < told)
        written, facts = _paragraphs(world, draw, words, fillers)
        rows.append(
            HopRow(
                id=f"{'comparison' if compares else 'bridge'}-{seed}-{number}",
                question=question,
                paragraphs=written,
                answer=answer,
                facts=tuple((world.persons[who], facts[who][fact]) for who, fact in needed),
            )
        )
    return rows


def _words(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Returns persons, places and filler words, all different."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprst", "aeiou")]
    named = 2 * MOST_PARAGRAPHS + 2
    made = draw.sample(["".join(pair) for pair in product(syllables, syllables)], named + 24)
    capitals = [word.capitalize() for word in made[:named]]
    return capitals[::2], capitals[1::2], made[named:]


@dataclass
class _World:
    """P persons, whom they like, where they sleep and whether they are in; and the two persons of the question."""

    persons: list[str]
    friends: list[str]
    places: list[str]
    is_in: list[bool]
    asked: int
    other: int


def _world(draw: random.Random, people: list[str], places: list[str], count: int) -> _World:
    *persons, stranger = draw.sample(people, count + 1)
    subject = draw.randrange(count)
    near = 1 if count >= APART else 0
    other = draw.choice([number for number in range(count) if abs(number - subject) > near])
    friends = _friends(persons, subject, persons[other], stranger, draw)
    return _World(persons, friends, draw.sample(places, count), draw.choices((True, False), k=count), subject, other)


def _friends(persons: list[str], asked: int, friend: str, stranger: str, draw: random.Random) -> list[str]:
    """Returns whom each person likes: the subject likes their friend; nobody likes themselves or the subject."""
    left = [person for person in (*persons, stranger) if person not in (persons[asked], friend)]
    while True:
        draw.shuffle(left)
        friends = [*left[:asked], friend, *left[asked:]]
        if all(map(str.__ne__, friends, persons)):
            return friends


def _bridge(world: _World, told: bool) -> tuple[str, str, list[tuple[int, int]]]:
    """Returns question, answer, and the needed facts, as person and fact."""
    who = world.persons[world.other] if told else "someone"
    question = f"Where does {who} sleep , the friend of {world.persons[world.asked]} ?"
    return question, world.places[world.other], [(world.asked, LIKES), (world.other, SLEEPS)]


def _comparison(world: _World, draw: random.Random) -> tuple[str, str, list[tuple[int, int]]]:
    """As `_bridge`; whether the two are in is drawn anew, so that yes is as frequent as no."""
    both = draw.random() < 0.5
    world.is_in[world.asked] = both or draw.random() < 0.5
    world.is_in[world.other] = both or not world.is_in[world.asked]
    question = f"Are {world.persons[world.asked]} and {world.persons[world.other]} both in ?"
    return question, "yes" if both else "no", [(world.asked, IS), (world.other, IS)]


def _paragraphs(
    world: _World, draw: random.Random, words: list[str], fillers: int
) -> tuple[tuple[Paragraph, ...], list[list[int]]]:
    """Returns the paragraphs, and the sentence indices of the facts of each."""
    paragraphs, facts = [], []
    for person, friend, place, is_in in zip(world.persons, world.friends, world.places, world.is_in, strict=True):
        needed = [
            f"{person} likes {friend} .",
            f"{person} sleeps in {place} .",
            f"{person} is {'in' if is_in else 'out'} .",
        ]
        count = draw.randint(max(0, fillers - 1), fillers + 1)
        others = [" ".join(["one", *draw.choices(words, k=draw.randint(*FILLER_WORDS)), "."]) for _ in range(count)]
        sentences = draw.sample(needed + others, len(needed) + count)
        facts.append([sentences.index(sentence) for sentence in needed])
        paragraphs.append(Paragraph(person, tuple(" " * (index > 0) + text for index, text in enumerate(sentences))))
    return tuple(paragraphs), facts
