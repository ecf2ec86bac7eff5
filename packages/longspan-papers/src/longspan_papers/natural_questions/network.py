"""Question answering over a chunk in plain PyTorch: the four logits of the thesis's chapter 3 from the encoder's
states."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longspan.attention.base import projected
from longspan.models.encoder import first_token
from longspan.models.heads.sentence_network import checked_ids, mean_by_sentence
from longspan_papers.natural_questions import NaturalQuestionsHead

LABELS = ("start_positions", "end_positions", "paragraph_labels", "answer_types")
"""The labels of a chunk, in the order of `ChunkLogits`."""


class ChunkLogits(NamedTuple):
    """Logits of a chunk of a document; shapes as in `NaturalQuestionsOutput`."""

    start_logits: Tensor
    end_logits: Tensor
    paragraph_logits: Tensor
    answer_logits: Tensor


class ReadsChunks(nn.Module):
    """The layers of a reader above its encoder: three linear layers and their logits."""

    model: Any
    qa_outputs: nn.Linear
    paragraph: nn.Linear
    answer: nn.Linear

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder."""
        options = config.head_options(NaturalQuestionsHead)
        self.qa_outputs = nn.Linear(config.states_width, 2)
        # Without the null class a bias would shift all paragraphs equally and receive no gradient.
        self.paragraph = nn.Linear(config.states_width, 1, bias=options.null_paragraph)
        self.answer = nn.Linear(config.states_width, options.answer_types)

    def logits(
        self, hidden: Tensor, attention_mask: Tensor | None, paragraph_ids: Tensor | None, max_paragraphs: int | None
    ) -> ChunkLogits:
        """Computes the logits of B chunks with states `(B, T, E)`; arguments and errors as in
        `LongspanForNaturalQuestions`."""
        first_token(hidden)  # raises for an empty input, which has no token 0
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        means, exists = paragraph_means(hidden, paragraph_ids, real, max_paragraphs)
        start, end = torch.unbind(projected(self.qa_outputs, hidden).masked_fill(~real[..., None], float("-inf")), -1)
        return ChunkLogits(
            start_logits=start,
            end_logits=end,
            paragraph_logits=projected(self.paragraph, means).squeeze(-1).masked_fill(~exists, float("-inf")),
            answer_logits=projected(self.answer, document_mean(means, exists, hidden, real)),
        )


def paragraph_means(
    hidden: Tensor, paragraph_ids: Tensor | None, real: Tensor, max_paragraphs: int | None
) -> tuple[Tensor, Tensor]:
    """Computes the mean state of each paragraph's real tokens.

    Args:
        hidden: `(B, T, E)`.
        paragraph_ids: `(B, T)` int64, −1 = none.
        real: `(B, T)` bool.
        max_paragraphs: C, or `None` for as many as there are.

    Returns:
        `(B, C, E)` means, 0 for a paragraph without tokens; `(B, C)` bool, True where it has tokens.
    """
    return mean_by_sentence(hidden, *checked_ids("paragraph", paragraph_ids, hidden, real, max_paragraphs))


def document_mean(means: Tensor, exists: Tensor, hidden: Tensor, real: Tensor) -> Tensor:
    """Computes `(B, E)`: mean of the existing paragraphs; else of the real tokens; 0 if there are neither.

    Args:
        means: `(B, C, E)`.
        exists: `(B, C)` bool.
        hidden: `(B, T, E)`.
        real: `(B, T)` bool.
    """
    paragraphs = exists.sum(1, keepdim=True)
    document = (means * exists[..., None]).sum(1) / paragraphs.clamp(min=1)
    tokens, _ = mean_by_sentence(hidden, torch.where(real, 0, -1), 1)
    return torch.where(paragraphs > 0, document, tokens[:, 0]).to(hidden.dtype)
