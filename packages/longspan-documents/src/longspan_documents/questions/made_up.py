"""Generated questions, so that a smoke run needs no files.

A generated document consists of paragraphs of random words. Some paragraphs state a fact: "the <property> of <name> is
<answer> .". The question asks for one of them: "what is the <property> of <name>". There are also facts about the same
name, and the same property of other names, so that only both words together identify the answer.
"""

from __future__ import annotations

import random
from itertools import product

from longspan_documents.questions.rows import Annotation, Candidate, QuestionRow, Span

FACTS = 6
"""Facts per document."""


def synthetic_questions(count: int, *, seed: int, paragraphs: int = 16, unanswerable: float = 0.2) -> list[QuestionRow]:
    """Returns rows of random words; the same arguments give the same rows on every machine, and all seeds share a
    vocabulary.

    Args:
        count: number of rows.
        seed: seed of all random choices.
        paragraphs: number of paragraphs per document, about 18 words each; at least `FACTS`.
        unanswerable: probability that the requested fact is left out.
    """
    assert paragraphs >= FACTS
    words = made_up_words()
    draw = random.Random(seed)
    return [_row(f"synthetic-{seed}-{index}", draw, words, paragraphs, unanswerable) for index in range(count)]


def made_up_words() -> dict[str, list[str]]:
    """Returns the vocabulary that all rows share, by purpose of the words."""
    draw = random.Random(7)
    syllables = ["".join(pair) for pair in product("bdfgklmnprst", "aeiou")]
    made: dict[str, list[str]] = {}
    taken: set[str] = set()
    for name, number, length in (("filler", 80, 2), ("property", 8, 3), ("name", 12, 3), ("answer", 60, 2)):
        made[name] = []
        while len(made[name]) < number:
            word = "".join(draw.choices(syllables, k=length))
            if word not in taken:
                taken.add(word)
                made[name].append(word)
    return made


def _row(
    name: str, draw: random.Random, words: dict[str, list[str]], paragraphs: int, unanswerable: float
) -> QuestionRow:
    pairs = list(product(draw.sample(words["property"], 3), draw.sample(words["name"], 3)))
    facts = draw.sample(pairs, FACTS + 1)
    answered = draw.random() >= unanswerable
    fact = facts[0] if answered else facts[FACTS]
    places = draw.sample(range(paragraphs), FACTS)
    pieces, spans = [], {}
    length = 0
    for place in range(paragraphs):
        piece = " ".join(draw.choices(words["filler"], k=draw.randint(8, 18))) + " ."
        if place in places:
            kind, who = facts[places.index(place)]
            stated = f"{piece} the {kind} of {who} is "
            answer = " ".join(draw.choices(words["answer"], k=draw.randint(1, 3)))
            spans[kind, who] = (place, Span(length + len(stated), length + len(stated) + len(answer)))
            piece = f"{stated}{answer} . " + " ".join(draw.choices(words["filler"], k=draw.randint(6, 14))) + " ."
        pieces.append(piece)
        length += len(piece) + 2
    text = "\n\n".join(pieces)
    ends = [len("\n\n".join(pieces[: place + 1])) for place in range(paragraphs)]
    candidates = tuple(Candidate(Span(end - len(piece), end)) for piece, end in zip(pieces, ends, strict=True))
    place, span = spans.get(fact, (None, None))
    return QuestionRow(
        id=name,
        question=f"what is the {fact[0]} of {fact[1]}",
        text=text,
        candidates=candidates,
        annotations=(Annotation(place, (span,) if span else ()),),
    )
