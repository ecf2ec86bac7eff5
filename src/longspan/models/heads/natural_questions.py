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

from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.heads.classification import LongspanWithHead
from longspan.models.heads.question_network import ReadsChunks
from longspan.models.losses import IGNORED, token_loss
from longspan.models.outputs import NaturalQuestionsOutput


class LongspanForNaturalQuestions(LongspanWithHead, ReadsChunks):
    """Long answer, short answer and answerability of one chunk of a document.

    With `config.null_paragraph` the choice among paragraphs has one more slot, "none of them", whose logit is 0; the
    paragraph layer then has a bias, so that this is a learned logit, and `paragraph_logits` are log-odds against it.
    """

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.add_layers(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        paragraph_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        paragraph_labels: Tensor | None = None,
        answer_types: Tensor | None = None,
        max_paragraphs: int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> NaturalQuestionsOutput | tuple[Any, ...]:
        """Logits of B chunks with up to C paragraphs, and the loss where all four labels are given.

        Other inputs are as in `LongspanModel.forward`. A paragraph that a chunk cuts through counts with the tokens
        that are in the chunk. A chunk without any paragraph takes the mean of all its tokens for the document's.

        Args:
            paragraph_ids: `(B, T)` int64, the index of each token's paragraph in its chunk, −1 = none.
            start_positions: `(B,)` int64, the first token of the short answer; 0 = none, −100 = not counted.
            end_positions: `(B,)`, its last token, likewise.
            paragraph_labels: `(B,)`, the paragraph that is the long answer, −100 = none.
            answer_types: `(B,)` in [0, `config.answer_types`): 0 no answer; 1 answer, or 1 yes, 2 no, 3 short, 4 long
                only; −100 = not counted.
            max_paragraphs: C; `None` means the largest index plus one.

        Raises:
            InputError: no `paragraph_ids`, some labels without the others, a label that names no real token, no
                paragraph with tokens or no answer type, an empty input.
        """
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        found = self.logits(output.last_hidden_state, attention_mask, paragraph_ids, max_paragraphs)
        result = NaturalQuestionsOutput(
            **found._asdict(),
            hidden_states=output.hidden_states,
        )
        labels = _given(start_positions, end_positions, paragraph_labels, answer_types)
        if labels is not None:
            result = NaturalQuestionsOutput(loss=self.loss(result, *labels), **result)
        return self.finish(result, return_dict)

    def loss(
        self,
        output: NaturalQuestionsOutput,
        start_positions: Tensor,
        end_positions: Tensor,
        paragraph_labels: Tensor,
        answer_types: Tensor,
    ) -> Tensor:
        """Weighted sum of the four cross-entropies, mean over the chunks; labels as in `forward`.

        Every mean is over all B chunks, a dropped term counts 0: so the loss of a batch is the mean of the losses of
        its chunks, however they are batched. The softmax over tokens has the real ones of the chunk, question included:
        a chunk without an answer points at token 0, which belongs to the question, so that leaving out the others would
        hide from the model only what it can learn.
        """
        terms = ("start_positions", output.start_logits), ("end_positions", output.end_logits)
        terms += ("paragraph_labels", output.paragraph_logits), ("answer_types", output.answer_logits)
        labels = (start_positions, end_positions, paragraph_labels, answer_types)
        total = start_positions.new_zeros((), dtype=torch.float32)
        for weight, (name, logits), wanted in zip(self.config.question_loss_weights, terms, labels, strict=True):
            assert logits is not None
            null = name == "paragraph_labels" and self.config.null_paragraph
            total = total + weight * choice_loss(logits, wanted.flatten(), name, null_slot=null)
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
    outside = (labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[1]))
    missing = torch.zeros_like(outside)
    if logits.shape[1]:
        place = labels.clamp(0, logits.shape[1] - 1)[:, None]
        missing = (labels != IGNORED) & logits.gather(1, place)[:, 0].isneginf()
    wrong = (outside | missing).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{name} is {int(labels[row])} in chunk {row}, which has no such choice; give an index of a real token, "
            "a paragraph with tokens or an answer type, or -100"
        )


def _given(*labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """All four labels or none."""
    names = ("start_positions", "end_positions", "paragraph_labels", "answer_types")
    absent = [name for name, label in zip(names, labels, strict=True) if label is None]
    if len(absent) == len(names):
        return None
    if absent:
        raise InputError(f"{absent[0]} is missing; give all of {', '.join(names)}, or none of them")
    return labels  # type: ignore[return-value]
