"""Questions over a long document: the passage with the answer, the short answer in it, and whether there is one.

The model of the Poolingformer thesis (chapter 3), over a chunk `<s> question </s> document </s>` with states `h_i`::

    s_i, e_i = W_se h_i                            start_logits, end_logits      of the short answer, per token
    P_c = mean of h_i over paragraph c's tokens
    a_c = w_p · P_c                                paragraph_logits              of the long answer, per paragraph
    t   = W_t mean_c P_c                           answer_logits                 whether, or how, the chunk answers

The loss is the sum of four cross-entropies: start, end, paragraph and answer type. A chunk without an answer points
start and end at token 0 (the practice of BERT-joint, Alberti et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.utils import ModelOutput

from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.losses import IGNORED, token_loss
from longspan_papers.natural_questions import NaturalQuestionsHead
from longspan_papers.natural_questions.network import LABELS, ChunkLogits, ReadsChunks


@dataclass
class NaturalQuestionsOutput(ModelOutput):
    """What a chunk of a document says to a question.

    Attributes:
        loss: scalar, see `LongspanForNaturalQuestions.loss`.
        start_logits: `(B, T)` of the short answer's first token; `-inf` on padding.
        end_logits: `(B, T)` of its last token; `-inf` on padding.
        paragraph_logits: `(B, C)` of the long answer; `-inf` for paragraphs that a chunk does not have.
        answer_logits: `(B, 2)` no answer, answer; or `(B, 5)` no answer, yes, no, short answer, long answer only.
        hidden_states: per layer `(B, T, E)`, when asked for.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    paragraph_logits: Tensor | None = None
    answer_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForNaturalQuestions(ReadsChunks, LongspanWithHead):
    """Long answer, short answer and answerability of one chunk of a document.

    With `null_paragraph` the choice among paragraphs has one more slot, "none of them", whose logit is 0; the paragraph
    layer then has a bias, so that this is a learned logit, and `paragraph_logits` are log-odds against it.
    """

    spec = NaturalQuestionsHead

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        paragraph_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        paragraph_labels: Tensor | None = None,
        answer_types: Tensor | None = None,
        max_paragraphs: int | None = None,
    ) -> NaturalQuestionsOutput:
        """Logits of B chunks with up to C paragraphs, and the loss where all four labels are given.

        A paragraph that a chunk cuts through counts with the tokens that are in the chunk. A chunk without any
        paragraph takes the mean of all its tokens for the document's.

        Args:
            paragraph_ids: `(B, T)` int64, the index of each token's paragraph in its chunk, −1 = none.
            start_positions: `(B,)` int64, the first token of the short answer; 0 = none, −100 = not counted.
            end_positions: `(B,)`, its last token, likewise.
            paragraph_labels: `(B,)`, the paragraph that is the long answer, −100 = none.
            answer_types: `(B,)` in [0, the head's `answer_types`): 0 no answer; 1 answer, or 1 yes, 2 no, 3 short, 4
                long only; −100 = not counted.
            max_paragraphs: C; `None` means the largest index plus one.

        Raises:
            InputError: no `paragraph_ids`, some labels without the others, a label that names no real token, no
                paragraph with tokens or no answer type, an empty input.
        """
        chunk = self.logits(encoded.last_hidden_state, attention_mask, paragraph_ids, max_paragraphs)
        labels = (start_positions, end_positions, paragraph_labels, answer_types)
        return NaturalQuestionsOutput(loss=self.loss(chunk, labels), **chunk._asdict())

    def loss(self, chunk: ChunkLogits, labels: Sequence[Tensor | None]) -> Tensor | None:
        """Weighted sum of the four cross-entropies, mean over the chunks; labels as in `forward`, all of them or none.

        Every mean is over all B chunks, a dropped term counts 0: so the loss of a batch is the mean of the losses of
        its chunks, however they are batched. The softmax over tokens has the real ones of the chunk, question included:
        a chunk without an answer points at token 0, which belongs to the question, so that leaving out the others would
        hide from the model only what it can learn.
        """
        given = {name: wanted for name, wanted in zip(LABELS, labels, strict=True) if wanted is not None}
        if not given:
            return None
        total = chunk.answer_logits.new_zeros((), dtype=torch.float32)
        for weight, name, logits in zip(self.options.loss_weights, LABELS, chunk, strict=True):
            if name not in given:
                raise InputError(f"{name} is missing; give all of {', '.join(LABELS)}, or none of them")
            null = name == "paragraph_labels" and self.options.null_paragraph
            total = total + weight * choice_loss(logits, given[name].flatten(), name, null_slot=null)
        return total


def choice_loss(logits: Tensor, labels: Tensor, name: str, *, null_slot: bool = False) -> Tensor:
    """Sum of the cross-entropies of `(B, N)` logits divided by B, in float32; a row labelled −100 counts 0.

    Args:
        logits: `-inf` for what a row does not have; a row may have nothing.
        labels: `(B,)`.
        name: of the labels, for errors.
        null_slot: a row labelled −100 chooses "none of these", whose logit is 0, instead of counting 0.

    Raises:
        InputError: a label outside the row's finite logits.
    """
    if not torch.compiler.is_compiling():
        _check_labels(logits, labels, name)
    # One column more, so that a row is never empty; and a finite floor, since the softmax of a row of -inf alone is
    # NaN, also in the gradient of a row that does not count.
    null = logits.new_full((len(logits), 1), 0.0 if null_slot else float("-inf"))
    slots = torch.cat([null, logits], dim=1).float()
    slots = slots.clamp(min=torch.finfo(torch.float32).min / 2)
    chosen = torch.where(labels == IGNORED, 0 if null_slot else IGNORED, labels + 1)
    return token_loss(slots, chosen, count=max(len(labels), 1))


def _check_labels(logits: Tensor, labels: Tensor, name: str) -> None:
    if labels.shape != logits.shape[:1]:
        raise InputError(f"{name} has shape {tuple(labels.shape)}; give one label for each of {len(logits)} chunks")
    # One column more, which no chunk has, for labels that are no index.
    count = logits.shape[1]
    place = torch.where((labels < 0) | (labels >= count), count, labels)
    absent = functional.pad(logits, (0, 1), value=float("-inf")).gather(1, place[:, None])[:, 0].isneginf()
    wrong = ((labels != IGNORED) & absent).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{name} is {int(labels[row])} in chunk {row}, which has no such choice; give an index of a real token, "
            "a paragraph with tokens or an answer type, or -100"
        )
