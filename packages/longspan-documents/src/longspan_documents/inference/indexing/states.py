"""States of passages that a decomposed model computes without a question, and joint reading of a question with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from longspan.checkpoints.decomposing import decompose
from longspan.checkpoints.loading import load_pair
from longspan.errors import InputError
from longspan.models.encoder import second_part
from longspan.models.fields import FIELDS
from longspan.models.inputs import EncoderInputs
from longspan.models.pieces import joint_states, part_states
from longspan.stacks import stack_config
from longspan.stacks.decomposed import Part
from longspan_documents.inference.indexing.checks import AGAIN, PIECE_TOKENS
from longspan_documents.inference.indexing.store import Piece
from longspan_documents.inference.readers import LONGEST, Words, best_words, short_answer
from longspan_documents.inference.results import RankedPassage, ShortAnswer
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage

TOGETHER = 16
"""Number of pieces in a batch."""
NOT_READ = frozenset({"head", "source_model_type", "source_name", "source_fields", "pooler", "use_cache", "dropout"})
"""Configuration fields that do not affect states."""
STAND_IN = "?"
"""Replaces the other segment if a tokenizer needs both."""


def open_model(source: str | Path, lower_layers: int | None = None, device: str | None = None) -> tuple[Any, Any]:
    """Load a decomposed question-answering model on a device (None: the CPU), and its tokenizer; `lower_layers`
    decomposes a model that is not decomposed.

    Raises:
        InputError: the model cannot be loaded or answer questions, or reads passages together with their question.
    """
    model, tokenizer = load_pair(source, device)
    if not type(model).__name__.endswith("ForQuestionAnswering"):
        raise InputError(
            f"model {str(source)!r} is a {type(model).__name__}, which has no start and end of an answer; give a "
            "…ForQuestionAnswering"
        )
    if lower_layers is not None:
        model = decompose(model, lower_layers)
    stack = stack_config(model.config.stack)
    lower = stack.first_joint(model.config.num_hidden_layers)
    if not lower:
        raise InputError(
            f"model {str(source)!r} has no lower layers that read a passage alone; decompose it with --lower-layers "
            "(9 of 12), or train one: `longspan train deformer-squad`"
        )
    if not stack.reads().restarts_positions:
        raise InputError(
            f"model {str(source)!r} has positions='joint', so that a passage's states depend on the length of the "
            "question; decompose it with positions='restart'"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"the tokenizer of {str(source)!r} does not return offsets in the text; give one with tokenizer.json"
        )
    return model, tokenizer


def made_by(model: Any, tokenizer: Any) -> dict[str, str]:
    """Returns checksums of everything that the states of a passage depend on: the lower layers and embeddings with
    their sizes and options, and the tokenizer."""
    config, stack = model.config, stack_config(model.config.stack)
    lower = stack.first_joint(config.num_hidden_layers)
    fields = {name: getattr(config, name) for name in FIELDS if name not in NOT_READ} | {"stack": lower}
    digest = hashlib.blake2b(json.dumps(fields, sort_keys=True, default=str).encode(), digest_size=16)
    for name, tensor in sorted(model.model.encoder.state_dict().items()):
        kind, _, rest = name.partition(".")
        if kind == "layers" and int(rest.partition(".")[0]) >= lower:
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    words = hashlib.blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
    return {"weights": digest.hexdigest(), "tokenizer": words.hexdigest()}


class StateReader:
    """Reads passages of an index with a decomposed model; a `SpanReader`.

    Args:
        model: a decomposed question-answering model, in evaluation mode.
        tokenizer: the tokenizer of the model.
        pieces_of: returns the pieces of a passage, from the index of its document and its first character.
    """

    def __init__(
        self, model: Any, tokenizer: Any, pieces_of: Callable[[int, int], Sequence[Piece]] | None = None
    ) -> None:
        self.model, self.tokenizer, self.pieces_of = model, tokenizer, pieces_of
        self.encoder = model.model.encoder
        self.limit = int(min(self.encoder.embeddings.max_tokens, tokenizer.model_max_length))

    @torch.inference_mode()
    def pieces(self, document: Document, passages: Sequence[Passage]) -> list[tuple[Piece, ...]]:
        """Returns the pieces of each passage of a document: states `(W, E)` below the upper layers, on the CPU, and
        positions.

        A passage longer than `PIECE_TOKENS` has several, which overlap by the maximum length of an answer.
        """
        ids, types, spans, owners = [], [], [], []
        for owner, passage in enumerate(passages):
            text = document.text[passage.start : passage.end]
            for window in self._windows(text):
                ids.append(window["ids"])
                types.append(window["types"])
                offsets = torch.tensor(window["spans"], dtype=torch.int32).reshape(-1, 2)
                spans.append(torch.where(offsets < 0, -1, offsets + passage.start))
                owners.append(owner)
        pieces: list[list[Piece]] = [[] for _ in passages]
        for first in range(0, len(ids), TOGETHER):
            group = slice(first, first + TOGETHER)
            states = self._states(ids[group], types[group])
            for owner, hidden, offsets in zip(owners[group], states, spans[group], strict=True):
                pieces[owner].append(Piece(hidden, offsets))
        return [tuple(passage_pieces) for passage_pieces in pieces]

    def _states(self, ids: list[list[int]], types: list[list[int] | None]) -> list[Tensor]:
        """Returns states `(W, E)` for each piece; either all pieces have token types, or none."""
        padding = self.model.config.pad_token_id or 0
        rows = pad_sequence([torch.tensor(piece_ids) for piece_ids in ids], batch_first=True, padding_value=padding)
        known_types = [torch.tensor(piece_types) for piece_types in types if piece_types is not None]
        lengths = torch.tensor([len(piece_ids) for piece_ids in ids])
        mask = torch.arange(rows.shape[1]) < lengths[:, None]
        place = self.model.device
        kinds = self._kinds(pad_sequence(known_types, batch_first=True)) if known_types else None
        hidden, _ = part_states(self.encoder, rows.to(place), mask.to(place), kinds)
        return [row[:length].cpu() for row, length in zip(hidden, lengths.tolist(), strict=True)]

    def _kinds(self, types: Tensor) -> Tensor | None:
        return types.to(self.model.device) if self.model.config.type_vocab_size else None

    def _windows(self, text: str) -> list[dict[str, Any]]:
        """Tokenize a passage as it follows a question, in pieces that overlap by the maximum length of an answer."""
        encoded = self.tokenizer(
            STAND_IN,
            text,
            truncation="only_second",
            max_length=min(PIECE_TOKENS, self.limit),
            stride=LONGEST,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        windows = []
        for number in range(len(encoded["input_ids"])):
            ids, parts = encoded["input_ids"][number], encoded.sequence_ids(number)
            types = encoded["token_type_ids"][number] if "token_type_ids" in encoded else None
            first = self._border(ids, types)
            spans = [
                place if part == 1 and place[1] > place[0] else (-1, -1)
                for place, part in zip(encoded["offset_mapping"][number], parts, strict=True)
            ]
            behind = None if types is None else types[first:]
            windows.append({"ids": ids[first:], "types": behind, "spans": spans[first:]})
        return windows

    def _border(self, ids: list[int], types: list[int] | None) -> int:
        """Returns the index of the passage's first token, from token types or, if the tokenizer has none, from
        separators."""
        type_ids = None if types is None else torch.tensor([types])
        inputs = EncoderInputs(input_ids=torch.tensor([ids]), token_type_ids=type_ids)
        border = int(second_part(self.model.config, inputs))
        if border == len(ids):
            raise InputError(
                "the tokenizer does not mark where a passage begins: neither by a token type other than 0 nor by a "
                "separator after the question; give the model's own tokenizer, with its template for pairs"
            )
        return border

    @torch.inference_mode()
    def question(self, question: str) -> Part:
        """Returns the states of a question with its special tokens, `(1, Q, E)`.

        Raises:
            InputError: it is longer than the model's input.
        """
        encoded = self.tokenizer(question, STAND_IN, verbose=False)
        ids = encoded["input_ids"]
        types = encoded.get("token_type_ids")
        count = self._border(ids, types)
        if count > self.limit:
            raise InputError(
                f"the question has {count} tokens and the model reads {self.limit}; ask a shorter question"
            )
        rows = torch.tensor([ids[:count]], device=self.model.device)
        kinds = None if types is None else self._kinds(torch.tensor([types[:count]]))
        return part_states(self.encoder, rows, None, kinds, question=True)

    @torch.inference_mode()
    def read(self, question: Part, pieces: Sequence[Piece]) -> list[Words | None]:
        """Returns the best answer of each piece, in characters of its document; None if "no answer" is more likely.

        Raises:
            InputError: the states are so large that the scores are not finite.
        """
        states = pad_sequence([piece.states for piece in pieces], batch_first=True).to(self.model.device)
        lengths = torch.tensor([len(piece.states) for piece in pieces], device=states.device)
        mask = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        hidden, whole = joint_states(self.encoder, question, states.to(question.hidden.dtype), mask)
        output = self.model.predict(BaseModelOutput(last_hidden_state=hidden), whole)
        if not all(bool(logits.isfinite().all()) for logits in (output.start_logits, output.end_logits)):
            raise InputError(f"the states that the index keeps give scores that are no finite numbers; {AGAIN}")
        before = [(-1, -1)] * question.hidden.shape[1]
        answers = []
        for row, piece in enumerate(pieces):
            spans = before + [(start, end) for start, end in piece.spans.tolist()]
            start, end = (logits[row, : len(spans)][None].cpu() for logits in (output.start_logits, output.end_logits))
            answers.append(best_words(start, end, spans))
        return answers

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """See `SpanReader.best`."""
        assert self.pieces_of is not None
        pieces = [
            (passage, piece) for passage in passages for piece in self.pieces_of(passage.document, passage.quote.start)
        ]
        if not pieces:
            return None
        asked, answers = self.question(question), []
        for first in range(0, len(pieces), TOGETHER):
            group = pieces[first : first + TOGETHER]
            read = self.read(asked, [piece for _, piece in group])
            answers += [(passage, words) for (passage, _), words in zip(group, read, strict=True) if words is not None]
        if not answers:
            return None
        passage, words = max(answers, key=lambda pair: pair[0].weight * pair[1].probability)
        return short_answer(documents, passage.document, words, 0)
