"""Natural Questions (Kwiatkowski et al. 2019): passages, short answers, yes or no, and answerability.

The reader of the Poolingformer thesis (chapter 3), which reads a document in chunks; also TyDi QA's primary tasks. From
data to answer::

    reading    data sets by name, files and folders       formats      the files of both data sets
    options    how a document is tokenised                 document     a document as one token stream
    features   chunks of it, with labels                   chunks       which chunks are trained on
    network    the head in plain PyTorch                   head         the model class, its loss
    task       training and evaluation                     answering    one answer from the logits of all chunks
    metric     the official scores                         predictions  the official files
    reader     a model folder, for `longspan answer`

This module defines the options of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from longspan.models.heads import HeadSpec
from longspan.models.heads.specs import Weight, four_weights


@dataclass(frozen=True, kw_only=True)
class NaturalQuestionsHead(HeadSpec):
    """Long answer, short answer and answerability of one chunk of a document.

    Attributes:
        answer_types: number of classes of a chunk: 2 (no answer, answer) or 5 (no answer, yes, no, short answer, long
            answer only).
        null_paragraph: whether chunks without a long answer are trained to choose "none of these paragraphs"; False
            leaves them out of the paragraph loss.
        loss_weights: of the losses of start, end, paragraph and answer type.
    """

    head: ClassVar[str] = "natural_questions"
    model: ClassVar[str] = "LongspanForNaturalQuestions"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "question-answering"
    task: ClassVar[str | None] = "natural_questions"

    answer_types: Literal[2, 5] = 2
    null_paragraph: bool = False
    loss_weights: tuple[Weight, ...] = (1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        """Raises `InputError` unless there are four weights."""
        super().__post_init__()
        four_weights(self.loss_weights, "start, end, paragraph, type")
