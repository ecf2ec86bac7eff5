"""A question and its paragraphs as one sequence: `[CLS] [q] question [/q] <t> title </t> sentence [s] sentence [s] …`.

The five markers are special tokens. Titles and sentences are tokenised separately, with a space before each, so that
the tokens of each are known; answers are extracted by the character offsets of tokens. Input longer than `max_tokens`
is truncated at the end; a sentence whose marker is cut off cannot be predicted as evidence.
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
"""The two markers of the question, the two of a title, and the one after each sentence."""

TITLE = -1
"""The index of a title among the sentences of its paragraph."""


@dataclass
class Written:
    """The sequence while it is built: T tokens and their origin."""

    ids: list[int] = field(default_factory=list)
    is_global: list[bool] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(T) character span of each token in its title or sentence; `NOWHERE` for others."""
    parts: list[int] = field(default_factory=list)
    """(T) the title or sentence of each token, as index into `owners`; −1 = none."""
    owners: list[tuple[int, int]] = field(default_factory=list)
    """(N) paragraph and sentence of each part."""

    def add(self, token: int, *, is_global: bool) -> int:
        """Appends a token that is not text; returns its position."""
        self.add_all([token], [NOWHERE], -1, is_global=is_global)
        return len(self.ids) - 1

    def add_all(self, ids: list[int], spans: list[tuple[int, int]], part: int, *, is_global: bool) -> None:
        """Appends tokens of one part with their character spans; tokens at `NOWHERE` belong to no part."""
        self.ids += ids
        self.spans += spans
        self.parts += [part if span != NOWHERE else -1 for span in spans]
        self.is_global += [is_global] * len(ids)


def hop_features(row: HopRow, tokenizer: Any, options: Any) -> dict[str, Any]:
    """Returns the model input of a row, as plain lists.

    `input_ids`, `is_global` and `parts` have T entries; `titles` and `marks` are the `(token, paragraph)` and `(token,
    paragraph, sentence)` positions that are classified; labels are present if the row has an answer.

    Args:
        row: the question.
        tokenizer: of transformers, with the markers.
        options: the task, `MultiHop`.

    Raises:
        InputError: the tokenizer has no offsets, no first token or no markers; the question leaves no room.
    """
    written, titles, marks = _write(row, tokenizer, options)
    most = options.max_tokens
    features = {
        "input_ids": written.ids[:most],
        "is_global": written.is_global[:most],
        "parts": written.parts[:most],
        "spans": written.spans[:most],
        "owners": written.owners,
        "titles": [position for position in titles if position[0] < most],
        "marks": [position for position in marks if position[0] < most],
    }
    if options.match_steps:
        features["token_type_ids"] = _types(row, features, options.match_steps)
    return features if row.answer is None else features | _labels(row, features)


def _write(
    row: HopRow, tokenizer: Any, options: Any
) -> tuple[Written, list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Returns the sequence, at least up to the maximum length, with its titles and markers."""
    marks, marks_global = mark_ids(tokenizer), options.global_on == "marks"
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
        titles.append((written.add(marks["<t>"], is_global=marks_global), number))
        _add_text(written, paragraph.title, (number, TITLE), tokenizer)
        written.add(marks["</t>"], is_global=False)
        for index, text in enumerate(paragraph.sentences):
            _add_text(written, text, (number, index), tokenizer)
            sentences.append((written.add(marks["[s]"], is_global=marks_global), number, index))
    return written, titles, sentences


def mark_ids(tokenizer: Any) -> dict[str, int]:
    """Returns marker → id; raises `InputError` if the tokenizer lacks one."""
    vocabulary = tokenizer.get_vocab()
    if lacking := [mark for mark in MARKS if mark not in vocabulary]:
        raise InputError(
            f"the tokenizer lacks {', '.join(lacking)}, which mark questions, titles and sentences; use the tokenizer "
            "that the model was trained with"
        )
    return {mark: vocabulary[mark] for mark in MARKS}


def _add_text(written: Written, text: str, owner: tuple[int, int], tokenizer: Any) -> None:
    """Appends a title or a sentence; one without words adds only its entry in `owners`."""
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
    """Returns the type of each token, see `word_types`; 0 for the question and the markers. Truncated text is
    ignored."""
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
    """Returns the labels of a row, as far as they are not truncated."""
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
    """Returns the first and last token that overlap a character span; None if truncated."""
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
    """Collates rows to tensors: `input_ids`, both masks, `parts`, and the labels if all rows have them."""
    labels = {"relevance_labels": float(IGNORED), "evidence_labels": float(IGNORED)}
    batch = pad(features, {"input_ids": padding, "is_global": 0, "token_type_ids": 0, **labels})
    batch["global_attention_mask"] = batch.pop("is_global").bool()
    if all("answer_types" in feature for feature in features):
        most = max(len(feature["start_positions"]) for feature in features)
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor(
                [[*feature[name], *[IGNORED] * (most - len(feature[name]))] for feature in features]
            )
        batch["answer_types"] = torch.tensor([feature["answer_types"] for feature in features])
    return batch


BESIDE = 3
"""The type of a rare word next to a word of the question; see `match_types` for the others."""

RARE = 3
"""A word is rare if it is in at most one in this many paragraphs, or in at most two."""


def word_types(question: str, paragraphs: Sequence[Sequence[str]], steps: int) -> dict[str, int]:
    """Returns stem → type: 2 for the question's words; with two steps, 3 for rare words in a text with a rare word of
    type 2.

    The second step resembles query expansion, or following a link: a name next to the requested one is often the title
    of the next paragraph. Frequent words do not discriminate and are excluded.

    Args:
        question: in words.
        paragraphs: the texts of each visible to the model: title and sentences.
        steps: 1 or 2.
    """
    question_words = asked_words(question)
    if steps < 2:
        return question_words
    texts = [[set(map(stem, words_in(text))) for text in paragraph] for paragraph in paragraphs]
    counts = Counter(word for paragraph in texts for word in set[str]().union(*paragraph))
    rare = {word for word, count in counts.items() if count <= max(2, len(texts) // RARE)}
    beside = set[str]().union(
        *(text for paragraph in texts for text in paragraph if text & rare & question_words.keys())
    )
    return dict.fromkeys(beside & rare, BESIDE) | question_words
