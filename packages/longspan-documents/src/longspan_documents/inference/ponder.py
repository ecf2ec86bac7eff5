"""How many steps a model takes over each token of a text, where its tokens stop by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from longspan.characters import check_characters
from longspan.errors import InputError
from longspan.settings import check_kind
from longspan_documents.text.folders import check_not_path


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A token of a text.

    Attributes:
        start, end: where it stands, in characters.
        steps: how many the model took over it.
    """

    start: int
    end: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Pondered:
    """A text and how many steps each of its tokens took.

    Attributes:
        text: the text.
        pieces: its tokens in order; special tokens, which have no words, are left out.
        most: the most steps that the model can take.
    """

    text: str
    pieces: tuple[Piece, ...]
    most: int

    @property
    def mean(self) -> float:
        """Mean number of steps per token; 0 for a text without tokens."""
        return sum(piece.steps for piece in self.pieces) / max(len(self.pieces), 1)


def ponder_times(model: Any, text: str, tokenizer: Any = None) -> Pondered:
    """Read a text with a model whose stack has `halting: adaptive`, and count the steps of each token.

    Args:
        model: a folder that `longspan train` wrote, or a model.
        text: what is read; of an encoder–decoder, by the encoder.
        tokenizer: of the model, where that is no folder; a fast one, which knows where tokens stand.

    Raises:
        InputError: the model's tokens all take the same steps; there is no tokenizer; the text is too long.
    """
    import torch

    check_kind(text, "text", str, "a text")
    check_characters(text, "text")
    check_not_path(text, "text", "give {path}.read_text()")
    if isinstance(model, str | PathLike):
        from longspan.checkpoints.loading import load_pair

        model, tokenizer = load_pair(fspath(model))
    if not hasattr(model, "config"):
        raise InputError(f"model is of type {type(model).__name__}; give a folder or a model")
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        raise InputError(f"tokenizer is {type(tokenizer).__name__}; give the model's own, a fast one of transformers")
    encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt", verbose=False)
    # An encoder beside a decoder, a head's encoder, or a decoder alone.
    reader = getattr(model, "encoder", None) or getattr(model, "model", None) or model
    was_training = model.training
    model.eval()
    with torch.no_grad():
        output = reader(encoded["input_ids"].to(model.device))
    model.train(was_training)
    if output.get("ponder_times") is None:
        raise InputError(
            f"model has the stack {model.config.stack['stack']!r}, in which every token takes every step; give one "
            "with the stack 'universal' and halting='adaptive'"
        )
    spans = zip(encoded["offset_mapping"][0].tolist(), output.ponder_times[0].tolist(), strict=True)
    pieces = tuple(Piece(start=start, end=end, steps=int(steps)) for (start, end), steps in spans if end > start)
    return Pondered(text=text, pieces=pieces, most=model.config.num_hidden_layers)
