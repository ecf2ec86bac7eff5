"""Opening a model of questions: `load_reader`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.inference.span_reader import SpanReader


@lru_cache(maxsize=2)
def load_reader(source: str | Path) -> SpanReader:
    """Load a model of questions once, for many.

    Args:
        source: the folder or name of the model.

    Raises:
        InputError: it cannot be loaded, or cannot answer questions.
    """
    from longspan.checkpoints.loading import check_tokenizer, load_tokenizer
    from longspan.checkpoints.sources import load_any
    from longspan.inference.chunk_reader import ChunkReader
    from longspan.inference.window_reader import WindowReader
    from longspan.models import LongspanForNaturalQuestions

    model = load_any(source).float().eval()
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    if isinstance(model, LongspanForNaturalQuestions):
        return ChunkReader(model, tokenizer, _task(Path(source), model, tokenizer))
    if not type(model).__name__.endswith("ForQuestionAnswering"):
        raise InputError(
            f"model {str(source)!r} is a {type(model).__name__}, which cannot answer questions; give a "
            "…ForQuestionAnswering, or one that `longspan train` made for the task natural_questions"
        )
    return WindowReader(model, tokenizer)


def _task(folder: Path, model: Any, tokenizer: Any) -> Any:
    """The task as the recipe beside the model has it; without a recipe, what model and tokenizer tell of it."""
    from longspan.tasks import task_beside
    from longspan.tasks.questions.natural_questions import NaturalQuestions
    from longspan.tasks.questions.options import QuestionOptions, marker_tokens

    if (task := task_beside(folder)) is not None:
        return task
    marked = set(marker_tokens(QuestionOptions())) <= set(tokenizer.get_vocab())
    return NaturalQuestions(markers=marked).fitted(model.config)
