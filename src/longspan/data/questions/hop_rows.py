"""What one question over several titled paragraphs is, whatever file it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

Fact = tuple[str, int]
"""Title of a paragraph and index of a sentence in it, from 0."""

YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A title and the sentences under it, as they are in the file; joined without anything they are the text."""

    title: str
    sentences: tuple[str, ...]


class Occurrence(NamedTuple):
    """Characters `start … end − 1` of a sentence, or of the title where `sentence` is −1, of a paragraph."""

    paragraph: int
    sentence: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class HopRow:
    """A question, the paragraphs that may answer it, and what annotators said.

    Attributes:
        id: names the row in predictions.
        question: in words.
        paragraphs: in the order of the file; every one has a sentence, which may be empty.
        answer: words of a paragraph, "yes" or "no"; None where the file does not say.
        facts: the sentences that are needed, some of which may not be there.
    """

    id: str
    question: str
    paragraphs: tuple[Paragraph, ...]
    answer: str | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def answer_type(self) -> str:
        """`words`, `yes` or `no`."""
        said = (self.answer or "").strip().lower()
        return said if said in YES_NO else "words"

    @property
    def needed(self) -> frozenset[str]:
        """Titles of the paragraphs that hold a supporting fact."""
        return frozenset(title for title, _ in self.facts)

    def holds(self, fact: Fact) -> bool:
        """Whether there is such a sentence."""
        return any(one.title == fact[0] and 0 <= fact[1] < len(one.sentences) for one in self.paragraphs)

    def occurrences(self) -> list[Occurrence]:
        """Every place of the answer's words, as whole words, in a title or a sentence of a needed paragraph.

        Annotators marked the words in no place: any of these is right. Other paragraphs are left out, where the same
        words mostly stand by chance.
        """
        if self.answer is None or self.answer_type != "words":
            return []
        words = self.answer.strip()
        # No word goes on before or behind, where the answer itself begins and ends with one.
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
        """The words of a place."""
        return self.text_of(place.paragraph, place.sentence)[place.start : place.end]

    def text_of(self, paragraph: int, sentence: int) -> str:
        """A sentence of a paragraph, or its title where `sentence` is −1."""
        found = self.paragraphs[paragraph]
        return found.title if sentence < 0 else found.sentences[sentence]
