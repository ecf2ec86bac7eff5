"""Questions made from plain documents, to train a reader where nobody has asked any.

A sentence is taken, a term of it is hidden, and what is left of its words becomes the question: the hidden term is the
short answer, the sentence's paragraph the long one. So that matching words alone is not the whole art, most words are
dropped, some change their ending, and words that occur all over the document come in. Some questions ask about a whole
paragraph and have no short answer; some are asked of a document that does not hold the answer.

The idea of learning to answer from cloze questions is that of Hermann et al. 2015 ("Teaching Machines to Read and
Comprehend"); making them look like questions, that of Lewis et al. 2019 ("Unsupervised Question Answering by Cloze
Translation").
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from longspan.data.questions.rows import Annotation, Candidate, QuestionRow, Span
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE = re.compile(r"[^.!?]+(?:[.!?](?!\s)[^.!?]*)*[.!?]*[\"”’')]*")
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(rf"(?:\d{{1,2}} {_MONTH}(?: \d{{4}})?|{_MONTH} \d{{1,2}}(?:, \d{{4}})?|{_MONTH} \d{{4}})")
_YEAR = re.compile(r"\b(?:1[5-9]|20)\d\d\b")
_NUMBER = re.compile(
    r"\b(?:\d[\d,]*(?:\.\d+)?(?: ?%)?|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
    r"|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    r"(?:[ -](?:one|two|three|four|five|six|seven|eight|nine|hundred|thousand))*)\b"
)
_NAME = re.compile(
    r"(?:(?:Mr|Mrs|Dr|St|Sir|Miss|Lady|Lord|Captain)\.? )?"
    r"[A-Z][\w'’-]+(?:(?: (?:of|the|de|van|von|and) | )[A-Z][\w'’-]+)*"
)
_PERSON_BEFORE = re.compile(r"(?:\b(?:said|asked|cried|replied|answered|by|with|told|whispered))\W+$")
_PERSON_AFTER = re.compile(r"^\W*(?:said|asked|cried|replied|answered|was|had|thought|looked|who|knew|felt)\b")
_PLACE_BEFORE = re.compile(r"\b(?:in|at|from|to|near|into|towards?)\W+$")
_INSIDE = re.compile(r"(?:[a-z0-9,;%)] )$")
_DETERMINED = re.compile(
    r"\b(?:the|a|an|this|his|her|its|their|our|my|of|by|with|in|for|from|no|some|called)\s$", re.IGNORECASE
)
_TITLE = re.compile(r"^(?:Mr|Mrs|Dr|Sir|Miss|Lady|Lord|Captain)\b")
_DIGITS, _CITATION = re.compile(r"<dig>"), re.compile(r"\s*<cit>")
_ENDINGS = ("s", "ed", "ing", "es", "er")

_GRAMMAR = """
    a an the and or but nor of in on at to from by with for as is are was were be been being am do does did has
    have had i you he she it we they me him her us them my your his its our their this that these those there
    here what which who whom whose when where why how not no so if then than too very can could will would shall
    should may might must all any some such into onto over under again once up down out off about between
    through during before after above below also only own same just now s t d ll m o re ve upon one other more
    most much many
"""
FUNCTION_WORDS = frozenset(_GRAMMAR.split())
"""English words that carry the grammar; a question needs others than these."""


@dataclass(frozen=True, kw_only=True)
class ClozeOptions:
    """How questions are made.

    Attributes:
        min_words, max_words: length of the part of a document that goes with a question; drawn log-uniformly.
        unanswerable: share of questions whose document does not hold the answer.
        long_only: share of questions that are about a whole paragraph, without a short answer.
        keep: least and greatest share of the content words of the sentence that stay in the question.
        topic: most words that are added because they occur all over the part of the document.
    """

    min_words: int = 120
    max_words: int = 700
    unanswerable: float = 0.25
    long_only: float = 0.12
    keep: tuple[float, float] = (0.3, 0.8)
    topic: int = 4


def paragraphs_of(row: SummaryRow, draw: random.Random) -> list[str]:
    """The paragraphs of a document; sentences without paragraphs are joined, three to seven at a time.

    SumPubMed hides numbers and citations: numbers get a random value back, citation marks go.
    """
    from longspan.data.questions.rows import plain_row

    if len(row.pieces) == 1:
        text = row.pieces[0]
        found = plain_row(text, "?").candidates if text.strip() else ()
        return _merged([re.sub(r"[ \t]+", " ", text[one.span.start : one.span.end]) for one in found], draw)
    if row.separator == "\n":
        return _merged([piece for piece in row.pieces if piece.strip()], draw)
    sentences = [
        _CITATION.sub("", _DIGITS.sub(lambda _: _number(draw), piece)) for piece in row.pieces if piece.strip()
    ]
    cased = sum(sentence[:1].isupper() for sentence in sentences) * 2 > len(sentences)
    sentences = [sentence if cased else sentence[:1].upper() + sentence[1:] for sentence in sentences]
    paragraphs, start = [], 0
    while start < len(sentences):
        size = draw.randint(3, 7)
        paragraphs.append(" ".join(sentences[start : start + size]))
        start += size
    return paragraphs


def _merged(paragraphs: Sequence[str], draw: random.Random) -> list[str]:
    """Paragraphs, of which short ones (speeches, turns) are often one with the one before."""
    merged: list[str] = []
    for paragraph in paragraphs:
        if merged and len(merged[-1]) + len(paragraph) < 700 and draw.random() < 0.6:
            merged[-1] += "\n" + paragraph
        else:
            merged.append(paragraph)
    return merged


def cloze_rows(
    documents: Sequence[Sequence[str]], count: int, *, seed: int, options: ClozeOptions | None = None
) -> Iterator[QuestionRow]:
    """Questions over parts of documents; the same arguments give the same rows.

    Args:
        documents: each a sequence of paragraphs; every document is equally likely for each question.
        count: how many rows.
        seed: of everything drawn.
        options: None takes the defaults.

    Raises:
        InputError: no document has a sentence that a question can be made of.
    """
    maker = _Maker(documents, random.Random(seed), options or ClozeOptions())
    made, failed = 0, 0
    while made < count:
        if not documents or failed > 1000 + 50 * made:
            raise InputError(f"documents give only {made} of the {count} questions wanted; give more text")
        row = maker.row(f"cloze-{seed}-{made}")
        made, failed = (made, failed + 1) if row is None else (made + 1, failed)
        if row is not None:
            yield row


@dataclass
class _Maker:
    """One row after the other; every method may give None where a draw leads to nothing."""

    documents: Sequence[Sequence[str]]
    draw: random.Random
    options: ClozeOptions

    def row(self, name: str) -> QuestionRow | None:
        """A question with a part of a document."""
        draw = self.draw
        paragraphs = draw.choice(self.documents)
        first, last = self.part(paragraphs)
        shown = list(paragraphs[first:last])
        topic = _topic(shown)
        if draw.random() < self.options.unanswerable:
            place, asked = None, self.elsewhere(paragraphs, first, last, shown)
        else:
            place = draw.randrange(len(shown))
            asked = shown[place]
        found = None if asked is None else _question(asked, topic, draw, self.options)
        if found is None or not shown or (place is None and asked in shown):
            return None
        question, short = found
        place = self.distract(shown, question, topic, place)
        text, candidates = _joined(shown, draw)
        annotation = Annotation()
        if place is not None:
            start = candidates[place].span.start
            spans = () if short is None else (Span(start + short.start, start + short.end),)
            annotation = Annotation(candidate=place, short=spans)
        return QuestionRow(id=name, question=question, text=text, candidates=candidates, annotations=(annotation,))

    def part(self, paragraphs: Sequence[str]) -> tuple[int, int]:
        """A run of paragraphs of a random length in words, at least one."""
        options = self.options
        wanted = options.min_words * (options.max_words / options.min_words) ** self.draw.random()
        first = self.draw.randrange(len(paragraphs))
        last, words = first, 0
        while last < len(paragraphs) and words < wanted:
            words += paragraphs[last].count(" ") + 1
            last += 1
        while first > 0 and words < wanted:
            first -= 1
            words += paragraphs[first].count(" ") + 1
        return first, last

    def elsewhere(self, paragraphs: Sequence[str], first: int, last: int, shown: list[str]) -> str | None:
        """A paragraph that is not shown: of another document, of the same, or cut out of what is shown."""
        kind = self.draw.random()
        if kind < 0.35:
            return self.draw.choice(self.draw.choice(self.documents))
        if kind < 0.65 and len(shown) > 1:
            return shown.pop(self.draw.randrange(len(shown)))
        place = self.draw.randrange(len(paragraphs))
        return None if first <= place < last else paragraphs[place]

    def distract(self, shown: list[str], question: str, topic: list[str], place: int | None) -> int | None:
        """Put passages without an answer among those shown: headings and lists that hold words of the question.

        Returns the new place of the paragraph at `place`.
        """
        draw = self.draw
        words = [word for word in WORD.findall(question) if _carries(word)] + topic
        for _ in range(draw.choice((0, 0, 1, 1, 2, 3)) if words else 0):
            chosen = draw.sample(words, k=min(len(words), draw.randint(1, 5)))
            if draw.random() < 0.5:  # a list, or what is left of a box of links
                others = [word for text in draw.sample(shown, 1) for word in WORD.findall(text) if _carries(word)]
                chosen += draw.sample(others, k=min(len(others), draw.randint(3, 30)))
                draw.shuffle(chosen)
            if draw.random() < 0.7:
                chosen = [word[:1].upper() + word[1:] for word in chosen]
            at = draw.randint(0, len(shown))
            shown.insert(at, draw.choice((" ", " ", ", ", "\n", " - ")).join(chosen))
            place = None if place is None else place + (at <= place)
        return place


def _joined(paragraphs: Sequence[str], draw: random.Random) -> tuple[str, tuple[Candidate, ...]]:
    """Paragraphs as one text with blank lines between them; half of the time they keep their own line ends."""
    if draw.random() < 0.5:
        paragraphs = [paragraph.replace("\n", " ") for paragraph in paragraphs]
    candidates, place = [], 0
    for paragraph in paragraphs:
        candidates.append(Candidate(Span(place, place + len(paragraph))))
        place += len(paragraph) + 2
    return "\n\n".join(paragraphs), tuple(candidates)


def _question(
    paragraph: str, topic: list[str], draw: random.Random, options: ClozeOptions
) -> tuple[str, Span | None] | None:
    """A question about a paragraph and the place of its short answer in it; None where nothing can be asked."""
    if draw.random() < options.long_only:
        words = [word for word in WORD.findall(paragraph) if _carries(word)]
        if len(words) < 12:
            return None
        size = draw.randint(3, 7)
        at = draw.randrange(len(words) - size)
        taken = words[at : at + 3 * size]
        return _phrase(
            draw.choice(("what about", "how", "why", "tell me about", "")), taken, size, topic, draw, options
        ), None
    sentences = [match for match in _SENTENCE.finditer(paragraph) if len(WORD.findall(match[0])) >= 6]
    if not sentences:
        return None
    weights = [sum(map(_carries, WORD.findall(match[0]))) for match in sentences]
    sentence = draw.choices(sentences, weights)[0] if any(weights) else sentences[0]
    answers = list(_answers(sentence[0]))
    if not answers:
        return None
    kinds = sorted({kind for kind, _, _ in answers})
    weights = [
        {"who": 3, "where": 3, "which": 2, "when": 3, "how many": 2, "what": 1.5}.get(kind, 1.0) for kind in kinds
    ]
    kind = draw.choices(kinds, weights)[0]
    _, start, end = draw.choice([one for one in answers if one[0] == kind])
    hidden = sentence[0][start:end].lower()
    around = [(match.start(), match[0]) for match in WORD.finditer(sentence[0]) if not start <= match.start() < end]
    around = [(place, word) for place, word in around if _carries(word) and word.lower() not in hidden]
    nearest = sorted(around, key=lambda item: min(abs(item[0] - start), abs(item[0] - end)) * draw.uniform(0.3, 1.7))
    size = max(3, round(len(nearest) * draw.uniform(*options.keep)))
    kept = sorted(nearest[: min(size, 9)])
    if len(kept) < 3 or sum(len(word) for _, word in kept) < 15:
        return None
    asking = {"who": ("who", "who", "which person"), "what": ("what", "what", "which")}.get(kind, (kind,))
    topic = [word for word in topic if word not in hidden]  # the question must not name its answer
    question = _phrase(draw.choice(asking), [word for _, word in kept], len(kept), topic, draw, options)
    offset = sentence.start()
    return question, Span(offset + start, offset + end)


def _phrase(
    asking: str, words: Sequence[str], size: int, topic: list[str], draw: random.Random, options: ClozeOptions
) -> str:
    """A question of some of the words, in order, with small words and words of the topic between them."""
    kept = sorted(draw.sample(range(len(words)), k=min(size, len(words))))
    chosen = [_bent(words[place], draw) for place in kept]
    if draw.random() < 0.25:
        draw.shuffle(chosen)
    parts: list[str] = [] if draw.random() < 0.07 else asking.split()
    if draw.random() < 0.6:
        parts.append(draw.choice(("is", "was", "did", "does", "are", "were", "do", "the")))
    for word in chosen:
        if draw.random() < 0.3:
            parts.append(draw.choice(("the", "of", "in", "a", "to", "for", "on", "and", "that", "from", "with")))
        parts.append(word)
    extra = draw.sample(topic, k=min(len(topic), draw.randint(0, options.topic)))
    parts += ["in", *extra] if extra else []
    question = " ".join(parts)
    question = question.lower() if draw.random() < 0.7 else question[:1].upper() + question[1:]
    return question + ("?" if draw.random() < 0.6 else "")


def _answers(sentence: str) -> Iterator[tuple[str, int, int]]:
    """What could be asked for in a sentence: the word to ask with, and the place."""
    taken: list[tuple[int, int]] = []
    for kind, pattern in (("when", _DATE), ("when", _YEAR), ("how many", _NUMBER)):
        for match in pattern.finditer(sentence):
            if _free(match.span(), taken):
                taken.append(match.span())
                yield kind, *match.span()
    for match in _NAME.finditer(sentence):
        # A capital at the beginning of a sentence or a speech says nothing.
        inside = _INSIDE.search(sentence[: match.start()]) or _TITLE.match(match[0])
        if inside and _carries(match[0]) and _free(match.span(), taken):
            end = match.end() - 2 * match[0].endswith(("'s", "’s"))
            taken.append((match.start(), end))
            yield _asked_with(sentence, match), match.start(), end
    words = [match for match in WORD.finditer(sentence) if _free(match.span(), taken)]
    for place, match in enumerate(words):
        if _carries(match[0]) and len(match[0]) > 3 and _DETERMINED.search(sentence[: match.start()]):
            last = match
            for after in words[place + 1 : place + 3]:
                if sentence[last.end() : after.start()] != " " or not _carries(after[0]):
                    break
                last = after
            yield "what", match.start(), last.end()


def _asked_with(sentence: str, match: re.Match[str]) -> str:
    before, after = sentence[: match.start()], sentence[match.end() :]
    if _TITLE.match(match[0]) or _PERSON_BEFORE.search(before) or _PERSON_AFTER.match(after):
        return "who"
    return "where" if _PLACE_BEFORE.search(before) else "which"


def _free(span: tuple[int, int], taken: Iterable[tuple[int, int]]) -> bool:
    return all(span[1] <= start or span[0] >= end for start, end in taken)


def _topic(paragraphs: Sequence[str]) -> list[str]:
    """The words that occur in the most paragraphs, without those of the grammar."""
    counts = Counter(word for text in paragraphs for word in {found.lower() for found in WORD.findall(text)})
    # Ties by the alphabet: the order of a set differs from one process to the next.
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:120]
    return [word for word, times in common if _carries(word) and len(word) > 3 and times > 1][:8]


def _carries(word: str) -> bool:
    return 2 < len(word) < 25 and "'" not in word and "’" not in word and word.lower() not in FUNCTION_WORDS


def _bent(word: str, draw: random.Random) -> str:
    """The word, one time in eight with another ending."""
    if draw.random() > 0.12 or len(word) < 5:
        return word
    for ending in _ENDINGS:
        if word.endswith(ending):
            return word[: -len(ending)]
    return word + draw.choice(_ENDINGS[:3])


def _number(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.4:
        return str(draw.randint(1, 60))
    if kind < 0.6:
        return str(draw.randint(60, 5000))
    return str(draw.randint(1970, 2014)) if kind < 0.7 else f"{draw.uniform(0, 100):.{draw.randint(1, 3)}f}"
