"""A question and its paragraphs as one sequence: `[CLS] [q] question [/q] <t> title </t> sentence [s] sentence [s] …`.

The five marks are tokens of their own. Titles and sentences are tokenised one by one, as if a space stood before them,
so that each knows its tokens; every token knows its characters, from which answers are read. What is longer than
`max_tokens` is cut at the end, and a sentence whose mark is cut off is not there for evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.tasks.predicting import pad
from longspan_documents.questions.tokens import NOWHERE, encode_text, token_ids, without_space
from longspan_papers.hotpotqa.head import NO, WORDS, YES
from longspan_papers.hotpotqa.rows import HopRow, Occurrence
from longspan_papers.natural_questions.document import asked_words, match_types, stem, words_in
from longspan_papers.natural_questions.features import special_ids

MARKS = ("[q]", "[/q]", "<t>", "</t>", "[s]")
"""The question's two, the title's two, and the one behind each sentence."""

TITLE = -1
"""The number of a title among the sentences of its paragraph."""


@dataclass
class Written:
    """What is written so far: T tokens, and where things are in them."""

    ids: list[int] = field(default_factory=list)
    is_global: list[bool] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(T) characters of each token in its title or sentence; `NOWHERE` for others."""
    parts: list[int] = field(default_factory=list)
    """(T) the title or sentence of each token, as index of `owners`; −1 = none."""
    owners: list[tuple[int, int]] = field(default_factory=list)
    """(N) paragraph and sentence of each part."""

    def add(self, token: int, *, is_global: bool) -> int:
        """One token that is no text; returns its place."""
        self.add_all([token], [NOWHERE], -1, is_global=is_global)
        return len(self.ids) - 1

    def add_all(self, ids: list[int], spans: list[tuple[int, int]], part: int, *, is_global: bool) -> None:
        """Append tokens of one part, each with its place in the text; `NOWHERE` belongs to no part."""
        self.ids += ids
        self.spans += spans
        self.parts += [part if span != NOWHERE else -1 for span in spans]
        self.is_global += [is_global] * len(ids)


def hop_features(row: HopRow, tokenizer: Any, options: Any) -> dict[str, Any]:
    """What the model reads of a row, as plain lists.

    `input_ids`, `is_global` and `parts` have T entries; `titles` and `marks` are `(token, paragraph)` and `(token,
    paragraph, sentence)` of what can be judged; labels are there where the row has an answer.

    Args:
        row: the question.
        tokenizer: of transformers, with the marks.
        options: the task, `MultiHop`.

    Raises:
        InputError: the tokenizer has no offsets, no first token or no marks; the question leaves no room.
    """
    written, titles, marks = _write(row, tokenizer, options)
    most = options.max_tokens
    features = {
        "input_ids": written.ids[:most],
        "is_global": written.is_global[:most],
        "parts": written.parts[:most],
        "spans": written.spans[:most],
        "owners": written.owners,
        "titles": [one for one in titles if one[0] < most],
        "marks": [one for one in marks if one[0] < most],
    }
    if options.match_steps:
        features["token_type_ids"] = _types(row, features, options.match_steps)
    return features if row.answer is None else features | _labels(row, features)


def _write(
    row: HopRow, tokenizer: Any, options: Any
) -> tuple[Written, list[tuple[int, int]], list[tuple[int, int, int]]]:
    """The sequence, as far as it is needed at most, and its titles and marks."""
    marks, every = mark_ids(tokenizer), options.global_on == "marks"
    written, titles, sentences = Written(), [], []
    written.add(special_ids(tokenizer)[0], is_global=True)
    question, _ = encode_text(tokenizer, f" {row.question.strip()}", f"the question of row {row.id!r}")
    ids = [marks["[q]"], *question[: options.max_question_tokens], marks["[/q]"]]
    written.add_all(ids, [NOWHERE] * len(ids), -1, is_global=True)
    if len(written.ids) > options.max_tokens // 2:
        raise InputError(
            f"the question of row {row.id!r} has {len(question)} tokens, which leaves less than half of max_tokens="
            f"{options.max_tokens} for its paragraphs; shorten it, raise max_tokens or lower max_question_tokens"
        )
    for number, paragraph in enumerate(row.paragraphs):
        if len(written.ids) >= options.max_tokens:
            break
        titles.append((written.add(marks["<t>"], is_global=every), number))
        _add_text(written, paragraph.title, (number, TITLE), tokenizer)
        written.add(marks["</t>"], is_global=False)
        for index, text in enumerate(paragraph.sentences):
            _add_text(written, text, (number, index), tokenizer)
            sentences.append((written.add(marks["[s]"], is_global=every), number, index))
    return written, titles, sentences


def mark_ids(tokenizer: Any) -> dict[str, int]:
    """Mark → id; `InputError` where the tokenizer lacks one."""
    vocabulary = tokenizer.get_vocab()
    if lacking := [mark for mark in MARKS if mark not in vocabulary]:
        raise InputError(
            f"the tokenizer lacks {', '.join(lacking)}, which mark questions, titles and sentences; use the tokenizer "
            "that the model was trained with"
        )
    return {mark: vocabulary[mark] for mark in MARKS}


def _add_text(written: Written, text: str, owner: tuple[int, int], tokenizer: Any) -> None:
    """A title or a sentence; one without words adds nothing but its number."""
    written.owners.append(owner)
    begins = len(text) - len(text.lstrip())
    if begins == len(text):
        return
    spaced = f" {text[begins:]}"
    ids, offsets = token_ids(tokenizer, spaced)
    places = (without_space(spaced, start, end) for start, end in offsets)
    spans = [NOWHERE if place == NOWHERE else (place[0] + begins - 1, place[1] + begins - 1) for place in places]
    written.add_all(ids, spans, len(written.owners) - 1, is_global=False)


def _types(row: HopRow, features: Mapping[str, Any], steps: int) -> list[int]:
    """The type of each token, see `word_types`; 0 for the question and the marks. What is cut off leads nowhere."""
    whole = {number: [row.paragraphs[number].title] for _, number in features["titles"]}
    for _, number, index in features["marks"]:
        whole[number].append(row.paragraphs[number].sentences[index])
    kinds = word_types(row.question, [*whole.values()], steps)
    types = [0] * len(features["input_ids"])
    tokens: dict[int, list[int]] = {}
    for token, part in enumerate(features["parts"]):
        if part >= 0:
            tokens.setdefault(part, []).append(token)
    for part, places in tokens.items():
        text = row.text_of(*features["owners"][part])
        matched = match_types(kinds, text, [features["spans"][token] for token in places])
        for token, kind in zip(places, matched, strict=True):
            types[token] = kind
    return types


def _labels(row: HopRow, features: Mapping[str, Any]) -> dict[str, Any]:
    """What is learned of a row, as far as it is not cut off."""
    relevance, evidence = ([float(IGNORED)] * len(features["input_ids"]) for _ in range(2))
    for place, number in features["titles"]:
        relevance[place] = float(row.paragraphs[number].title in row.needed)
    facts = set(row.facts)
    for place, number, index in features["marks"]:
        evidence[place] = float((row.paragraphs[number].title, index) in facts)
    places = [_tokens_of(place, features) for place in row.occurrences()]
    spans = [span for span in places if span is not None] or [(IGNORED, IGNORED)]
    return {
        "relevance_labels": relevance,
        "evidence_labels": evidence,
        "start_positions": [start for start, _ in spans],
        "end_positions": [end for _, end in spans],
        "answer_types": {"yes": YES, "no": NO}.get(row.answer_type, WORDS),
    }


def _tokens_of(place: Occurrence, features: Mapping[str, Any]) -> tuple[int, int] | None:
    """First and last token that touch some characters; None where they are cut off."""
    owner = (place.paragraph, place.sentence)
    if owner not in features["owners"]:
        return None
    part = features["owners"].index(owner)
    inside = [
        token
        for token, (number, (start, end)) in enumerate(zip(features["parts"], features["spans"], strict=True))
        if number == part and start < place.end and place.start < end
    ]
    whole = inside and features["spans"][inside[-1]][1] >= place.end
    return (inside[0], inside[-1]) if whole else None


def collate(features: Sequence[Mapping[str, Any]], *, padding: int) -> dict[str, Tensor]:
    """Rows to tensors: `input_ids`, both masks, `parts` and the labels where all rows have them."""
    labels = {"relevance_labels": float(IGNORED), "evidence_labels": float(IGNORED)}
    batch = pad(features, {"input_ids": padding, "is_global": 0, "token_type_ids": 0, **labels})
    batch["global_attention_mask"] = batch.pop("is_global").bool()
    if all("answer_types" in one for one in features):
        most = max(len(one["start_positions"]) for one in features)
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor([[*one[name], *[IGNORED] * (most - len(one[name]))] for one in features])
        batch["answer_types"] = torch.tensor([one["answer_types"] for one in features])
    return batch


BESIDE = 3
"""The type of a word that stands beside one of the question; see `match_types` for the others."""

RARE = 3
"""A word is rare that stands in one of so many paragraphs at most, or in two."""


def word_types(question: str, paragraphs: Sequence[Sequence[str]], steps: int) -> dict[str, int]:
    """Stem → type: 2 for the question's words; with two steps, 3 for rare words in a text with a rare one of these.

    The second step is what query expansion does, or following a link: a name beside the one that was asked for often
    titles the next paragraph. Words that stand everywhere would lead everywhere, so they lead nowhere.

    Args:
        question: in words.
        paragraphs: the texts of each that the model sees: title and sentences.
        steps: 1 or 2.
    """
    asked = asked_words(question)
    if steps < 2:
        return asked
    texts = [[set(map(stem, words_in(text))) for text in paragraph] for paragraph in paragraphs]
    counts = Counter(word for paragraph in texts for word in set[str]().union(*paragraph))
    rare = {word for word, count in counts.items() if count <= max(2, len(texts) // RARE)}
    beside = set[str]().union(*(text for paragraph in texts for text in paragraph if text & rare & asked.keys()))
    return dict.fromkeys(beside & rare, BESIDE) | asked
