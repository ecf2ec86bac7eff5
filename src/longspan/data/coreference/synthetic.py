"""Made-up documents whose pronouns follow a rule, so that smoke runs and tests need no licensed data."""

from __future__ import annotations

import random

from longspan.data.coreference.rows import CoreferenceRow, Mention

NAMES = {
    "she": ("Ada", "Emmy", "Grace", "Mary", "Rosa", "Vera"),
    "he": ("Alan", "Carl", "Emil", "Hugo", "Kurt", "Paul"),
}
OTHERS = {"she": ("her", "the old woman"), "he": ("him", "the old man")}
VERBS = ("met", "saw", "called", "thanked", "visited", "remembered")
ENDS = ("in the garden", "on the road", "after dinner", "without a word", "once more")


def synthetic_documents(count: int, *, seed: int, sentences: int = 24) -> list[CoreferenceRow]:
    """Stories of people of whom one woman and one man are in sight at a time, until a name brings on another.

    A pronoun, and "the old woman" or "the old man", is whoever of that sex was named last. There are two people in a
    sentence. Same arguments, same documents.
    """
    draw = random.Random(seed)
    return [_document(f"synthetic-{seed}-{number}", sentences, draw) for number in range(count)]


def _document(name: str, sentences: int, draw: random.Random) -> CoreferenceRow:
    found: list[tuple[str, ...]] = []
    clusters: dict[str, list[Mention]] = {}
    present: dict[str, str] = {}
    words = 0
    for _ in range(sentences):
        subject, other = draw.sample(("she", "he"), 2)
        sentence: list[str] = []
        for kind, pronoun in ((subject, subject.capitalize()), (other, OTHERS[other][0])):
            if kind not in present or draw.random() < 0.3:
                present[kind] = draw.choice(NAMES[kind])
                said = present[kind]
            else:
                said = draw.choice((pronoun, OTHERS[kind][1]))
            start = words + len(sentence)
            sentence += said.split()
            clusters.setdefault(present[kind], []).append((start, words + len(sentence) - 1))
            sentence += [draw.choice(VERBS)] if kind == subject else []
        sentence += [*draw.choice(ENDS).split(), "."]
        words += len(sentence)
        found.append(tuple(sentence))
    return CoreferenceRow(id=name, sentences=tuple(found), clusters=tuple(map(tuple, clusters.values())))
