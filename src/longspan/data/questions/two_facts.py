"""Made-up questions that only two facts in two paragraphs answer, among paragraphs with the same kinds of facts.

Every paragraph is about one person: "Bado likes Kifu ." and "Bado sleeps in Mura .", among sentences of made-up words.
"Where does someone sleep , the friend of Bado ?" names one person. Whom Bado likes stands in Bado's paragraph, where
that person sleeps in theirs. Nothing else tells: every paragraph has both facts, all places differ, and each of all
persons but the one asked about, and one more who has no paragraph, is liked by exactly one other.
"""

from __future__ import annotations

import random
from itertools import product

from longspan.data.questions.hop_rows import HopRow, Paragraph

MOST_PARAGRAPHS = 24
"""A row has at most so many, since there is a name for each and one more."""

APART = 8
"""With fewer paragraphs, neighbours are allowed: there, leaving them out would tell which paragraph is meant."""

FILLER_WORDS = (4, 10)
"""Fewest and most words of a sentence that says nothing."""


def two_step_rows(
    count: int, *, seed: int, paragraphs: int = 10, fillers: int = 6, names: int | None = None, told: float = 0.0
) -> list[HopRow]:
    """Rows of made-up words; the same arguments give the same rows on every machine, all seeds share one vocabulary.

    Args:
        count: number of rows.
        seed: of everything that is drawn.
        paragraphs: in a row, 3 to `MOST_PARAGRAPHS`. From `APART` on, the two that are needed are never neighbours.
        fillers: sentences without a fact in each paragraph, about 10 tokens each; one more or fewer by chance.
        names: draw persons and places from the first so many of each; None takes all.
        told: share of the questions that name the friend in the place of "someone". Such questions need one step;
            they teach a model that begins to find a name, before it has to find out which one.
    """
    people, places, words = _words(random.Random(11))
    names = MOST_PARAGRAPHS + 1 if names is None else names
    assert 3 <= paragraphs < names <= len(people)
    draw = random.Random(seed)
    known = (people[:names], places[:names], words)
    return [_row(f"two-steps-{seed}-{number}", draw, known, paragraphs, fillers, told) for number in range(count)]


def _words(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Persons, places and words for filling, all different."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprst", "aeiou")]
    made = draw.sample(["".join(pair) for pair in product(syllables, syllables)], 2 * MOST_PARAGRAPHS + 2 + 24)
    named = [word.capitalize() for word in made[: 2 * MOST_PARAGRAPHS + 2]]
    return named[::2], named[1::2], made[len(named) :]


def _row(
    name: str,
    draw: random.Random,
    known: tuple[list[str], list[str], list[str]],
    paragraphs: int,
    fillers: int,
    told: float,
) -> HopRow:
    people, places, words = known
    *persons, stranger = draw.sample(people, paragraphs + 1)
    homes = draw.sample(places, paragraphs)
    asked = draw.randrange(paragraphs)
    friends = _friends(persons, asked, stranger, draw)
    answers = persons.index(friends[asked])
    who = friends[asked] if draw.random() < told else "someone"
    found, facts = [], {}
    for number, person in enumerate(persons):
        needed = [f"{person} likes {friends[number]} .", f"{person} sleeps in {homes[number]} ."]
        count = draw.randint(max(0, fillers - 1), fillers + 1)
        sentences = needed + [
            " ".join(["one", *draw.choices(words, k=draw.randint(*FILLER_WORDS)), "."]) for _ in range(count)
        ]
        draw.shuffle(sentences)
        facts[number] = [sentences.index(sentence) for sentence in needed]
        found.append(Paragraph(person, tuple(" " * (place > 0) + text for place, text in enumerate(sentences))))
    return HopRow(
        id=name,
        question=f"Where does {who} sleep , the friend of {persons[asked]} ?",
        paragraphs=tuple(found),
        answer=homes[answers],
        facts=((persons[asked], facts[asked][0]), (persons[answers], facts[answers][1])),
    )


def _friends(persons: list[str], asked: int, stranger: str, draw: random.Random) -> list[str]:
    """Whom each likes: never themselves, nobody the one asked about, and that one nobody beside them."""
    others = [*persons[:asked], *persons[asked + 1 :], stranger]
    near = {stranger, *persons[max(0, asked - 1) : asked + 2]} if len(persons) >= APART else {stranger}
    while True:
        draw.shuffle(others)
        if others[asked] not in near and all(map(str.__ne__, others, persons)):
            return others
