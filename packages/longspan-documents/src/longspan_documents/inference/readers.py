"""Question-answering models, which extract the answer from passages; `load_reader` loads one.

`WindowReader` runs any `…ForQuestionAnswering` of transformers, which scores a start and an end for every token.
`QUESTION_READERS` lists the readers of other model classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from longspan.devices import check_named
from longspan.errors import InputError
from longspan.imports import Table
from longspan.settings import check_kind
from longspan_documents.inference.results import Quote, RankedPassage, ShortAnswer, quote_of
from longspan_documents.text.blocks import Document

# Not in scripts without spaces between words: Thai and related scripts, Chinese, Japanese.
_INSIDE_WORD = re.compile(r"(?:(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffff])[^\W_]){2}")


class Words(NamedTuple):
    """An answer, characters `start … end − 1` of a text, and its probability."""

    start: int
    end: int
    probability: float
    yes_no: str = "none"


class SpanReader(Protocol):
    """A loaded question-answering model, as `load_reader` returns it."""

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """Returns the best answer in these passages and the text around them; None if the model finds none.

        Raises:
            InputError: the question leaves no room for a document.
        """
        ...


QUESTION_READERS: Table[Callable[[Any, Any, Path], SpanReader]] = Table("question_readers", {})
"""Name of a model class → function that creates its reader, from the model, its tokenizer and their folder or Hub
name."""


def short_answer(documents: Sequence[Document], number: int, words: Words, offset: int) -> ShortAnswer:
    """Returns the answer of a model that read a document from character `offset` on, extended to whole words, with its
    position."""
    start, end = whole_words(documents[number].text, words.start + offset, words.end + offset)
    quote = quote_of(documents[number], start, end)
    return ShortAnswer(document=number, quote=quote, probability=words.probability, yes_no=words.yes_no)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span so that it neither begins nor ends inside a word."""
    while start > 0 and _INSIDE_WORD.fullmatch(text, start - 1, start + 1):
        start -= 1
    while end < len(text) and _INSIDE_WORD.fullmatch(text, end - 1, end + 1):
        end += 1
    return start, end


LONGEST = 30
"""Maximum number of tokens of a short answer."""
MOST_TOKENS = 15
"""Default maximum number of tokens of a pipeline's answer."""
ROOM = 32
"""Minimum number of tokens that a question must leave for the document."""
SPARE = 8
"""Tokens that a piece of a document may have more than it had in the whole."""


@dataclass(frozen=True)
class Stretch:
    """Characters of a document that are read together, around a passage with its probability as weight."""

    document: int
    start: int
    end: int
    weight: float


class WindowReader:
    """Reads with a model that scores each token as start and as end of the answer (Devlin et al. 2019, section 4.2).

    With scores s and e, and 0 the first token, which represents "no answer"::

        p(i, j) = exp(s_i + e_j) / (exp(s_0 + e_0) + sum over allowed pairs of exp(s + e)),   0 ≤ j − i < LONGEST
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        # In models such as RoBERTa, positions start at 2.
        self.limit = int(min(model.config.max_position_embeddings - 2, tokenizer.model_max_length))

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """See `SpanReader.best`."""
        read = [
            (stretch, self.read(question, documents[stretch.document].text[stretch.start : stretch.end]))
            for stretch in self.stretches(question, documents, passages)
        ]
        answers = [(stretch, words) for stretch, words in read if words is not None]
        if not answers:
            return None
        stretch, words = max(answers, key=lambda pair: pair[0].weight * pair[1].probability)
        return short_answer(documents, stretch.document, words, stretch.start)

    def stretches(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> list[Stretch]:
        """Returns what is read: each document as a whole if it fits, else each passage with as much text around it as
        fits."""
        from longspan_documents.questions.tokens import encode_text

        asked = len(self.tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
        room = self.limit - asked - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < ROOM:
            raise InputError(
                f"the question has {asked} tokens and the model reads {self.limit} at once; ask a shorter question"
            )
        weights: dict[tuple[int, int, int], float] = {}
        for passage in passages:
            text = documents[passage.document].text
            _, spans = encode_text(self.tokenizer, text, passage.file)
            start, end = _around(spans, passage.quote, room, len(text))
            place = (passage.document, start, end)
            weights[place] = max(weights.get(place, 0.0), passage.weight)
        return [Stretch(*place, weight) for place, weight in weights.items()]

    def read(self, question: str, text: str) -> Words | None:
        """Returns the best answer in a text; None if "no answer" is more likely."""
        start, end, spans = self._scores(question, text)
        return None if all(first < 0 for first, _ in spans) else best_words(start, end, spans)

    def places(
        self,
        question: str,
        documents: Sequence[Document],
        passages: Sequence[RankedPassage],
        top: int,
        *,
        max_answer_len: int = MOST_TOKENS,
        align_to_words: bool = True,
    ) -> tuple[list[tuple[int, int, float]], float]:
        """Returns the most likely answers in one document, and the score of "no answer", as transformers 4 computed
        them.

        With p and q the softmax of the start and end scores over the document's tokens and the first token::

            score(i, j) = p_i q_j,   0 ≤ j − i < max_answer_len

        In a long document, scores in a stretch are weighted by its passage's probability relative to the best
        passage's.

        Args:
            question: as in `best`.
            documents: as in `best`.
            passages: as in `best`.
            top: maximum number of answers per stretch.
            max_answer_len: maximum number of tokens of an answer.
            align_to_words: whether answers are extended to whole words; scores of answers in the same words are added.

        Returns:
            First character, end and score of each answer, unordered, and the score of the first token.
        """
        text = documents[0].text
        stretches = self.stretches(question, documents, passages)
        highest = max((stretch.weight for stretch in stretches), default=0) or 1.0
        found: dict[tuple[int, int], float] = {}
        nothing = 1.0
        for stretch in stretches:
            start, end, spans = self._scores(question, text[stretch.start : stretch.end])
            pairs, none = likeliest(start, end, spans, top, max_answer_len)
            nothing = min(nothing, none)
            here: dict[tuple[int, int], float] = {}
            for first, last, score in pairs:
                place = first + stretch.start, last + stretch.start
                place = whole_words(text, *place) if align_to_words else place
                here[place] = here.get(place, 0.0) + score
            for place, score in here.items():
                found[place] = max(found.get(place, 0.0), score * stretch.weight / highest)
        return [(*place, score) for place, score in found.items()], nothing

    def _scores(self, question: str, text: str) -> tuple[Any, Any, list[tuple[int, int]]]:
        """Returns start and end scores `(1, T)`, and the characters of each token, −1 for tokens that are not of the
        text."""
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
            (start, end) if sequence == 1 and end > start else (-1, -1)
            for sequence, (start, end) in zip(encoded.sequence_ids(0), spans, strict=True)
        ]
        with torch.inference_mode():
            output = self.model(**encoded.to(self.model.device))
        return output.start_logits.cpu(), output.end_logits.cpu(), spans


def likeliest(
    start: Any, end: Any, spans: Sequence[tuple[int, int]], top: int, most: int
) -> tuple[list[tuple[int, int, float]], float]:
    """Returns first character, end and score of the `top` best pairs of at most `most` tokens, best first, and the
    score of the first token; arguments as in `best_words`, scores as in `WindowReader.places`."""
    import torch

    inside = torch.tensor([first >= 0 for first, _ in spans])
    counted = inside.clone()
    counted[0] = True
    odds = [scores[0].double().masked_fill(~counted, float("-inf")).softmax(0) for scores in (start, end)]
    none = float(odds[0][0] * odds[1][0])
    starts, ends = (share.masked_fill(~inside, 0) for share in odds)
    width = min(most, len(spans))
    pairs = starts[:, None] * torch.nn.functional.pad(ends, (0, width - 1)).unfold(0, width, 1)
    scores, places = pairs.flatten().topk(min(top, pairs.numel()))
    best = [
        (spans[place // width][0], spans[place // width + place % width][1], score)
        for place, score in zip(places.tolist(), scores.tolist(), strict=True)
        if score > 0
    ]
    return best, none


def best_words(start: Any, end: Any, spans: Sequence[tuple[int, int]]) -> Words | None:
    """Returns the best answer of a row, or None if "no answer", the first token, is more likely.

    Args:
        start: scores `(1, T)`.
        end: scores `(1, T)`.
        spans: characters of each token, −1 for tokens that cannot be part of an answer.
    """
    import torch

    from longspan_documents.questions.scores import best_spans

    start, end = start.double(), end.double()
    words = torch.tensor([[0 if first >= 0 else -1 for first, _ in spans]])
    score, first, last = (values[0, 0] for values in best_spans(start, end, words, 1, LONGEST))
    none = start[0, 0] + end[0, 0]
    if none > score:
        return None
    total = torch.logaddexp(_total(start, end, words), none)
    return Words(spans[int(first)][0], spans[int(last)][1], float((score - total).exp()))


def _total(start: Any, end: Any, words: Any) -> Any:
    """Returns the log of the sum of exp(s_i + e_j) over all allowed pairs; start and end are `(1, T)`, words 0 for
    allowed tokens."""
    import torch

    never = float("-inf")
    start, end = start.masked_fill(words < 0, never), end.masked_fill(words < 0, never)
    width = min(LONGEST, end.shape[1])
    ends = torch.nn.functional.pad(end, (0, width - 1), value=never).unfold(1, width, 1).logsumexp(2)
    return (start + ends)[0].logsumexp(0)


def _around(spans: Sequence[tuple[int, int]], quote: Quote, room: int, length: int) -> tuple[int, int]:
    """Returns the characters of the tokens around a passage that fit the room; the whole text if it fits."""
    if len(spans) <= room:
        return 0, length
    inside = [index for index, (start, end) in enumerate(spans) if start < quote.end and quote.start < end] or [0]
    spare = max(0, room - SPARE - len(inside))
    first = max(0, min(inside[0] - spare // 2, len(spans) - room + SPARE))
    last = min(len(spans), first + room - SPARE) - 1
    return spans[first][0], spans[last][1]


def load_reader(source: str | Path, device: str | None = None, dtype: str | None = None) -> SpanReader:
    """Load a question-answering model for many questions.

    Args:
        source: folder or Hub name of the model.
        device: as PyTorch names devices ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: the model cannot be loaded or cannot answer questions, or a device does not exist.
    """
    check_kind(source, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    return _load(str(source), device, dtype)


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> SpanReader:
    from longspan.checkpoints.loading import check_tokenizer, load_tokenizer
    from longspan.checkpoints.sentence_modules import is_sentence_encoder
    from longspan.checkpoints.sources import load_any
    from longspan.devices import check_place, placed

    if is_sentence_encoder(source):
        raise InputError(f"model {source!r} is a sentence encoder: use --encoder (encoder=… in Python)")
    check_place(device, dtype)
    model = placed(load_any(source).float(), device, dtype).eval()
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    return reader_of(model, tokenizer, source)


def reader_of(model: Any, tokenizer: Any, source: str | Path | None = None) -> SpanReader:
    """Returns the reader of a loaded question-answering model.

    Args:
        model: as transformers or `longspan.checkpoints` load it.
        tokenizer: the tokenizer of the model.
        source: folder or Hub name; None uses the name that the model has stored.

    Raises:
        InputError: the model cannot answer questions.
    """
    from longspan.inference.model_use import other_use

    named = source or model.name_or_path
    if (made := QUESTION_READERS.get(type(model).__name__)) is not None:
        return made(model, tokenizer, Path(named))
    if not type(model).__name__.endswith("ForQuestionAnswering"):
        raise other_use(named, type(model).__name__, "which cannot answer questions", model.config.num_labels)
    return WindowReader(model, tokenizer)
