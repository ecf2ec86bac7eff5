"""Question answering over a long document: the passage with the answer, the short answer in it, and answerability.

The model of the Poolingformer thesis (chapter 3), over a chunk `<s> question </s> document </s>` with states `h_i`::

    s_i, e_i = W_se h_i                            start_logits, end_logits      of the short answer, per token
    P_c = mean of h_i over paragraph c's tokens
    a_c = w_p · P_c                                paragraph_logits              of the long answer, per paragraph
    t   = W_t mean_c P_c                           answer_logits                 answer type of the chunk

The loss is the sum of four cross-entropies: start, end, paragraph and answer type. In a chunk without an answer, start
and end are token 0 (as in BERT-joint, Alberti et al. 2019).
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
    """Output for chunks of a document.

    Attributes:
        loss: scalar, see `LongspanForNaturalQuestions.loss`.
        start_logits: `(B, T)` of the short answer's first token; `-inf` on padding.
        end_logits: `(B, T)` of its last token; `-inf` on padding.
        paragraph_logits: `(B, C)` of the long answer; `-inf` for padding.
        answer_logits: `(B, 2)` no answer, answer; or `(B, 5)` no answer, yes, no, short answer, long answer only.
        hidden_states: per layer `(B, T, E)`, with `output_hidden_states`.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    paragraph_logits: Tensor | None = None
    answer_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForNaturalQuestions(ReadsChunks, LongspanWithHead):
    """Long answer, short answer and answerability of one chunk of a document.

    With `null_paragraph` the choice among paragraphs has an additional class, "none of them", whose logit is 0; the
    paragraph layer then has a bias, which makes it a learned logit, and `paragraph_logits` are log-odds against it.
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
        """Returns logits of B chunks with up to C paragraphs, and the loss if all four labels are present.

        A paragraph cut by a chunk border is pooled over its tokens in the chunk. A chunk without any paragraph uses the
        mean of all its tokens as document state.

        Args:
            paragraph_ids: `(B, T)` int64, the index of each token's paragraph in its chunk, −1 = none.
            start_positions: `(B,)` int64, the first token of the short answer; 0 = none, −100 = ignored.
            end_positions: `(B,)`, its last token, likewise.
            paragraph_labels: `(B,)`, the paragraph that is the long answer, −100 = none.
            answer_types: `(B,)` in [0, the head's `answer_types`): 0 no answer; 1 answer, or 1 yes, 2 no, 3 short, 4
                long only; −100 = ignored.
            max_paragraphs: C; `None` takes the largest index plus one.

        Raises:
            InputError: no `paragraph_ids`, some labels without the others, a label outside the real tokens, the
                paragraphs with tokens or the answer types, an empty input.
        """
        chunk = self.logits(encoded.last_hidden_state, attention_mask, paragraph_ids, max_paragraphs)
        labels = (start_positions, end_positions, paragraph_labels, answer_types)
        return NaturalQuestionsOutput(loss=self.loss(chunk, labels), **chunk._asdict())

    def loss(self, chunk: ChunkLogits, labels: Sequence[Tensor | None]) -> Tensor | None:
        """Returns the weighted sum of the four cross-entropies, mean over the chunks; labels as in `forward`, all or
        none.

        Every mean is over all B chunks, an ignored term counts 0: the loss of a batch is the mean of the losses of its
        chunks, independent of batching. The softmax over tokens includes all real tokens, also the question's: a chunk
        without an answer has token 0 as target, which belongs to the question.
        """
        labels_by_name = {name: wanted for name, wanted in zip(LABELS, labels, strict=True) if wanted is not None}
        if not labels_by_name:
            return None
        total = chunk.answer_logits.new_zeros((), dtype=torch.float32)
        for weight, name, logits in zip(self.options.loss_weights, LABELS, chunk, strict=True):
            if name not in labels_by_name:
                raise InputError(f"{name} is missing; give all of {', '.join(LABELS)}, or none of them")
            null = name == "paragraph_labels" and self.options.null_paragraph
            total = total + weight * choice_loss(logits, labels_by_name[name].flatten(), name, null_slot=null)
        return total


def choice_loss(logits: Tensor, labels: Tensor, name: str, *, null_slot: bool = False) -> Tensor:
    """Computes the sum of the cross-entropies of `(B, N)` logits divided by B, in float32; a row labelled −100 counts
    0.

    Args:
        logits: `-inf` for padding; a row may be all padding.
        labels: `(B,)`.
        name: of the labels, for errors.
        null_slot: a row labelled −100 has the class "none of these", whose logit is 0, instead of counting 0.

    Raises:
        InputError: a label is outside the row's finite logits.
    """
    if not torch.compiler.is_compiling():
        _check_labels(logits, labels, name)
    # One more column, so that a row is never empty, with a finite minimum, since the softmax of a row of -inf is NaN,
    # also in the gradient of an ignored row.
    null = logits.new_full((len(logits), 1), 0.0 if null_slot else float("-inf"))
    slots = torch.cat([null, logits], dim=1).float()
    slots = slots.clamp(min=torch.finfo(torch.float32).min / 2)
    chosen = torch.where(labels == IGNORED, 0 if null_slot else IGNORED, labels + 1)
    return token_loss(slots, chosen, count=max(len(labels), 1))


def _check_labels(logits: Tensor, labels: Tensor, name: str) -> None:
    if labels.shape != logits.shape[:1]:
        raise InputError(f"{name} has shape {tuple(labels.shape)}; give one label for each of {len(logits)} chunks")
    # One more column, absent from every chunk, for labels that are no index.
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
