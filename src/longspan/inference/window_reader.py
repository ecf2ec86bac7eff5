"""Reading with a model that has a start and an end for every token: any `…ForQuestionAnswering`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.data.text.blocks import Document
from longspan.errors import InputError
from longspan.inference.results import Quote, RankedPassage, ShortAnswer
from longspan.inference.span_reader import Words, short_answer

LONGEST = 30
"""Tokens of a short answer."""
ROOM = 32
"""Least tokens that a question must leave for the document."""
SPARE = 8
"""Tokens that a piece of a document may have more than it had in the whole."""


@dataclass(frozen=True)
class Stretch:
    """Characters of a document that are read at once, around a passage of some probability."""

    document: int
    start: int
    end: int
    weight: float


class WindowReader:
    """Reads with a model that scores each token as a start and as an end of the answer (Devlin et al. 2019, 4.2).

    With s and e the scores and 0 the first token, which stands for "no answer"::

        p(i, j) = exp(s_i + e_j) / (exp(s_0 + e_0) + sum over allowed pairs of exp(s + e)),   0 ≤ j − i < LONGEST
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        # RoBERTa's kind counts positions from 2 on.
        self.limit = int(min(model.config.max_position_embeddings - 2, tokenizer.model_max_length))

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """See `SpanReader.best`."""
        read = [
            (one, self.read(question, documents[one.document].text[one.start : one.end]))
            for one in self.stretches(question, documents, passages)
        ]
        kept = [(one, words) for one, words in read if words is not None]
        if not kept:
            return None
        stretch, words = max(kept, key=lambda pair: pair[0].weight * pair[1].probability)
        return short_answer(documents, stretch.document, words, stretch.start)

    def stretches(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> list[Stretch]:
        """What is read: each document whole where it fits, else each passage with as much around it as fits."""
        from longspan.tasks.questions.document import encode_text

        asked = len(self.tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
        room = self.limit - asked - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < ROOM:
            raise InputError(
                f"the question has {asked} tokens and the model reads {self.limit} at once; ask a shorter question"
            )
        found: dict[tuple[int, int, int], float] = {}
        for passage in passages:
            text = documents[passage.document].text
            _, spans = encode_text(self.tokenizer, text, passage.file)
            start, end = _around(spans, passage.quote, room, len(text))
            place = (passage.document, start, end)
            found[place] = max(found.get(place, 0.0), passage.probability)
        return [Stretch(*place, weight) for place, weight in found.items()]

    def read(self, question: str, text: str) -> Words | None:
        """The best words of a text; None where "no answer" is likelier."""
        import torch

        encoded = self.tokenizer(
            question,
            text,
            truncation="only_second",
            max_length=self.limit,
            return_offsets_mapping=True,
            return_tensors="pt",
            verbose=False,
        )
        spans = encoded.pop("offset_mapping")[0].tolist()
        spans = [
            (start, end) if one == 1 and end > start else (-1, -1)
            for one, (start, end) in zip(encoded.sequence_ids(0), spans, strict=True)
        ]
        if all(start < 0 for start, _ in spans):
            return None
        with torch.inference_mode():
            output = self.model(**encoded)
        return best_words(output.start_logits, output.end_logits, spans)


def best_words(start: Any, end: Any, spans: Sequence[tuple[int, int]]) -> Words | None:
    """The best words of a row with scores `(1, T)`, whose tokens are these characters, −1 for those that cannot be of
    an answer; None where "no answer", the first token, is likelier."""
    import torch

    from longspan.tasks.questions.answering import best_spans

    start, end = start.double(), end.double()
    words = torch.tensor([[0 if first >= 0 else -1 for first, _ in spans]])
    score, first, last = (found[0, 0] for found in best_spans(start, end, words, 1, LONGEST))
    none = start[0, 0] + end[0, 0]
    if none > score:
        return None
    every = torch.logaddexp(_total(start, end, words), none)
    return Words(spans[int(first)][0], spans[int(last)][1], float((score - every).exp()))


def _total(start: Any, end: Any, words: Any) -> Any:
    """The log of the sum of exp(s_i + e_j) over all allowed pairs; start, end `(1, T)`, words 0 where allowed."""
    import torch

    never = float("-inf")
    start, end = start.masked_fill(words < 0, never), end.masked_fill(words < 0, never)
    width = min(LONGEST, end.shape[1])
    ends = torch.nn.functional.pad(end, (0, width - 1), value=never).unfold(1, width, 1).logsumexp(2)
    return (start + ends)[0].logsumexp(0)


def _around(spans: Sequence[tuple[int, int]], quote: Quote, room: int, length: int) -> tuple[int, int]:
    """Characters of the tokens around a passage that fit into the room; the whole text where it fits."""
    if len(spans) <= room:
        return 0, length
    inside = [index for index, (start, end) in enumerate(spans) if start < quote.end and quote.start < end] or [0]
    spare = max(0, room - SPARE - len(inside))
    first = max(0, min(inside[0] - spare // 2, len(spans) - room + SPARE))
    last = min(len(spans), first + room - SPARE) - 1
    return spans[first][0], spans[last][1]
