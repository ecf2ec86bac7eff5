"""Made-up documents with summaries, so that smoke runs and tests need no files."""

from __future__ import annotations

import random

from longspan.data.summaries.rows import SummaryRow


def synthetic_rows(count: int, *, seed: int, sentences: int = 40) -> list[SummaryRow]:
    """Documents of made-up words whose summary is the sentences that begin with "notably", for smoke runs and tests.

    The same `count` and `seed` give the same rows on every machine.
    """
    draw = random.Random(seed)
    words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(80)]
    rows = []
    for index in range(count):
        pieces = [" ".join(draw.choices(words, k=draw.randint(6, 12))) + "." for _ in range(sentences + index % 7)]
        for place in sorted(draw.sample(range(len(pieces)), k=3)):
            pieces[place] = f"notably {pieces[place]}"
        summary = "\n".join(piece for piece in pieces if piece.startswith("notably"))
        rows.append(SummaryRow(id=f"synthetic-{seed}-{index}", pieces=tuple(pieces), references=(summary,)))
    return rows
