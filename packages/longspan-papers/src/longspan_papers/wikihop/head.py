"""Candidate scoring over documents that are read in pieces (WikiHop, Beltagy et al. 2020).

Every piece is the question, all candidates and a part of the documents. A linear layer w scores the state of each
candidate's token, and a candidate's logit is the mean over the pieces P of its question::

    z_c = mean over p of w · h_p,c,    p(c) = softmax(z)_c,    L = −log p(answer)

L depends on all pieces, but memory may hold only one. So in training the pieces are read twice (`pieces_at_once`):
first without activations, for z and ∂L/∂h_p,c; then one by one in the backward pass, with the same dropout, each with
its fixed gradient. This equals the gradient of the joint computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import checked_ids, mean_by_sentence
from longspan.models.losses import token_loss, wide
from longspan_papers.wikihop import CandidateHead


@dataclass
class CandidateScoringOutput(ModelOutput):
    """Output for N questions with up to C candidates each.

    Attributes:
        loss: scalar, mean cross-entropy of the questions with a label.
        logits: `(N, C)` in float32 at least, means over the pieces; `-inf` for padding.
        hidden_states: per layer `(P, T, E)` of the pieces, with `output_hidden_states`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class CandidateStates(ModelOutput):
    """States of the candidates' tokens in P pieces, `(P, C, E)`, and whether the candidate exists, `(P, C)`."""

    states: Tensor | None = None
    exists: Tensor | None = None
    stack_loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForCandidateScoring(LongspanWithHead):
    """Selects the answer to a question among candidates, over several documents."""

    spec = CandidateHead

    def add_layers(self, config: Any) -> None:
        # A bias would shift all candidates equally and receive no gradient.
        self.score = nn.Linear(config.states_width, 1, bias=False)

    def encode(self, inputs: dict[str, Any], own: dict[str, Any]) -> CandidateStates:
        """Returns the candidates' states, with `pieces_at_once` pieces in memory if the batch has `example_ids`."""
        ids, most = own.get("candidate_ids"), own.get("max_candidates")
        values = next(
            (inputs[name] for name in ("input_ids", "inputs_embeds") if inputs[name] is not None), torch.empty(0)
        )
        at_once: int = self.options.pieces_at_once or len(values)
        joint = own.get("example_ids") is None or inputs.get("output_hidden_states")
        if joint or len(values) <= at_once:
            return self.read(inputs, ids, most)
        ids, most = checked_ids("candidate", ids, values, inputs["attention_mask"], most)
        outputs = []
        for first in range(0, len(values), at_once):
            part = _rows({**inputs, "candidate_ids": ids}, slice(first, first + at_once), values.shape[1])
            arguments = (part, part.pop("candidate_ids"), most)
            learns = torch.is_grad_enabled()
            outputs.append(checkpoint(self.read, *arguments, use_reentrant=False) if learns else self.read(*arguments))
        losses = [output.stack_loss for output in outputs if output.stack_loss is not None]
        return CandidateStates(
            states=torch.cat([output.states for output in outputs]),
            exists=torch.cat([output.exists for output in outputs]),
            stack_loss=torch.stack(losses).mean() if losses else None,
        )

    def read(self, inputs: dict[str, Any], candidate_ids: Tensor | None, most: int | None) -> CandidateStates:
        """Returns the candidates' mean states `(P, C, E)` in P pieces that the encoder reads as one batch."""
        encoded = self.model(**inputs, return_dict=True)
        hidden = encoded.last_hidden_state
        states, exists = mean_by_sentence(
            hidden, *checked_ids("candidate", candidate_ids, hidden, inputs["attention_mask"], most)
        )
        return CandidateStates(
            states=states,
            exists=exists,
            stack_loss=getattr(encoded, "stack_loss", None),
            hidden_states=encoded.hidden_states,
        )

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        candidate_ids: Tensor | None = None,
        example_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_candidates: int | None = None,
    ) -> CandidateScoringOutput:
        """Returns `logits` `(N, C)` of the candidates of N questions, and the loss with `labels`.

        Args:
            candidate_ids: `(P, T)` int64, the candidate's index at its token, −1 elsewhere; several tokens of one
                candidate are averaged.
            example_ids: `(P,)` int64, the question of each piece, 0 … N − 1, each with a piece; `None`: every piece is
                a question.
            labels: `(N,)` int64, the correct candidate, −100 for none.
            max_candidates: C; `None` takes the largest index plus one.
        """
        scores = projected(self.score, encoded.states).squeeze(-1)
        scores, exists = mean_of_pieces(scores, encoded.exists, example_ids)
        loss = None
        if labels is not None:
            loss = token_loss(scores.masked_fill(~exists, torch.finfo(scores.dtype).min), labels)
        return CandidateScoringOutput(loss=loss, logits=scores.masked_fill(~exists, float("-inf")))


def _rows(inputs: dict[str, Any], some: slice, length: int) -> dict[str, Any]:
    """Returns some rows of a batch, without trailing padding common to all of them."""
    mask = inputs["attention_mask"]
    real = None if mask is None else mask[some].any(0).nonzero()
    width = length if real is None or not len(real) else int(real.max()) + 1
    return {name: value[some, :width] if isinstance(value, Tensor) else value for name, value in inputs.items()}


def mean_of_pieces(scores: Tensor, exists: Tensor, example_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Averages scores `(P, C)`, in float32 at least, and their existence, per question, `(N, C)`; see `predict`."""
    scores = wide(scores)
    if example_ids is None:
        return scores, exists
    if example_ids.shape != scores.shape[:1]:
        raise InputError(
            f"example_ids has shape {tuple(example_ids.shape)} but there are {len(scores)} pieces; give one for each"
        )
    empty = scores.new_zeros(int(example_ids.max()) + 1 if len(example_ids) else 0, scores.shape[1])
    sums = empty.index_add(0, example_ids, scores.masked_fill(~exists, 0.0))
    counts = empty.index_add(0, example_ids, exists.to(empty.dtype))
    return sums / counts.clamp(min=1), counts > 0
