"""`longspan.choose`: probabilities of candidate answers to a question, from documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.characters import check_characters
from longspan.devices import check_loads, check_named
from longspan.errors import InputError
from longspan.settings import check_kind, show
from longspan_documents.inference.answer import Source, check_question, open_documents
from longspan_papers.wikihop.rows import ChoiceRow


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The probabilities of candidate answers.

    Attributes:
        question: as passed.
        answer: the most likely candidate.
        probabilities: of each candidate, between 0 and 1, the most likely first.
        pieces: number of pieces of the documents that the model read.
        seconds: time from documents to answer, without loading the model.
    """

    question: str
    answer: str
    probabilities: dict[str, float]
    pieces: int
    seconds: float

    def __str__(self) -> str:
        return self.answer


def choose(
    document: Source | Sequence[Source],
    question: str,
    candidates: Sequence[str],
    model: str | Path | Chooser,
    *,
    device: str | None = None,
    dtype: str | None = None,
) -> Choice:
    """Selects the candidate that answers a question, from several documents together.

    Args:
        document: the text itself, a `Path` to a file or a folder, or several of these; all of them are read.
        question: in the format of the model's training data; WikiHop's are a relation and its subject, "country sms
            posen".
        candidates: the possible answers, without duplicates.
        model: the folder of a model that `longspan train` made for the task `candidate_choice`; or the result of
            `load_chooser`.
        device: PyTorch device name ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Returns:
        A `Choice`; `print` shows the answer.

    Raises:
        InputError: no text, no question, no candidates or duplicates; the model cannot be loaded or is of another task;
            candidates leave no room for documents; the device is not available, or is passed with a loaded chooser.
    """
    documents, _ = open_documents(document)
    check_kind(model, "model", (str, Path, Chooser), "a folder, or what `load_chooser` returned")
    check_loads("model", model, device, dtype)
    chooser = model if isinstance(model, Chooser) else load_chooser(model, device, dtype)
    return chooser.choose([source.text for source in documents], question, candidates)


class Chooser:
    """A loaded model for many questions; `load_chooser` creates one.

    Args:
        model, tokenizer: loaded.
        task: the candidate choice of its training, which splits documents into pieces.
    """

    def __init__(self, model: Any, tokenizer: Any, task: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task

    def choose(self, texts: Sequence[str], question: str, candidates: Sequence[str]) -> Choice:
        """Answers one question; arguments and errors as in `longspan.choose`, `texts` are those of the documents."""
        begin = time.perf_counter()
        check_question(question)
        check_candidates(candidates)
        row = ChoiceRow("the question", question, tuple(candidates), tuple(texts))
        pieces = len(self.task.pieces(row, self.tokenizer)["rows"])
        (shares,) = self.task.probabilities(self.model, self.tokenizer, [row])
        ranked = sorted(zip(candidates, shares, strict=True), key=lambda pair: -pair[1])
        return Choice(
            question=question,
            answer=ranked[0][0],
            probabilities=dict(ranked),
            pieces=pieces,
            seconds=time.perf_counter() - begin,
        )


def load_chooser(model: str | Path, device: str | None = None, dtype: str | None = None) -> Chooser:
    """Loads a model once for many questions; arguments and errors as in `choose`. The two most recent models stay in
    memory."""
    check_kind(model, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    return _load(str(model), device, dtype)


@lru_cache(maxsize=2)
def _load(model: str, device: str | None, dtype: str | None) -> Chooser:
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForCandidateScoring
    from longspan.tasks import task_of_folder
    from longspan_papers.wikihop.task import CandidateChoice

    loaded, tokenizer = load_pair(model, device, dtype)
    if not isinstance(loaded, LongspanForCandidateScoring):
        raise InputError(
            f"model {model!r} is a {type(loaded).__name__}, which does not choose among candidates; give one that "
            "`longspan train` made for the task candidate_choice"
        )
    task = task_of_folder(Path(model))
    return Chooser(
        loaded, tokenizer, (task if isinstance(task, CandidateChoice) else CandidateChoice()).fitted(loaded.config)
    )


def check_candidates(candidates: Sequence[str]) -> None:
    """Raises `InputError` for no candidates, blank ones and duplicates."""
    if not isinstance(candidates, list | tuple) or not candidates:
        raise InputError(f"candidates={show(candidates)} gives nothing to choose from; give a list of one text or more")
    for candidate in candidates:
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"candidate {show(candidate)} is blank; give texts with words in them")
        check_characters(candidate, "a candidate")
    if twice := [candidate for candidate in candidates if list(candidates).count(candidate) > 1]:
        raise InputError(f"candidate {twice[0]!r} is given twice; give each once")
