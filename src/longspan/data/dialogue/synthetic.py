"""Made-up dialogues, so that smoke runs and tests need no files."""

from __future__ import annotations

import random

from longspan.data.dialogue.turns import Dialogue, Turn

NAMES = ("Ada", "Carl", "Emmy", "Hugo", "Rosa")
TOPICS = 3


def synthetic_dialogues(count: int, *, seed: int, turns: int = 24) -> list[Dialogue]:
    """Talks of two to four people about three topics, each with words of its own.

    Same arguments, same dialogues.
    """
    draw = random.Random(seed)
    return [_dialogue(f"synthetic-{seed}-{number}", turns + number % 5, draw) for number in range(count)]


def _dialogue(name: str, count: int, draw: random.Random) -> Dialogue:
    people = draw.sample(NAMES, k=draw.randint(2, 4))
    borders = tuple(count * topic // TOPICS for topic in range(1, TOPICS))
    turns: list[Turn] = []
    words: list[str] = []
    for index in range(count):
        if index == 0 or index in borders:
            words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(12)]
        sentences = (" ".join(draw.choices(words, k=draw.randint(3, 8))) for _ in range(draw.randint(1, 3)))
        speaker = draw.choice([one for one in people if not turns or one != turns[-1].speaker])
        turns.append(Turn(speaker, " ".join(f"{sentence.capitalize()}." for sentence in sentences)))
    return Dialogue(id=name, turns=tuple(turns), topics=borders)
