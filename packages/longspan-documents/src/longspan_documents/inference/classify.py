"""`longspan.classify`: a document of any kind in, its label out, with a probability for each label that there is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.characters import counted
from longspan.devices import check_loads, check_named
from longspan.options import takes
from longspan.settings import check_kind
from longspan_documents.inference.verbs import Classify

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class DocumentLabel:
    """What a document is.

    Attributes:
        label: the most likely one.
        probability: of this label, between 0 and 1, as the model sees it.
        probabilities: of every label that the model knows, the most likely one first.
        tokens: how many tokens the model read.
        of_tokens: how many the document has.
        seconds: time from text to label, without loading the model.
        note: a warning for the reader, or None.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    tokens: int
    of_tokens: int
    seconds: float
    note: str | None = None

    def __str__(self) -> str:
        return self.label


@takes(Classify)
def classify(document: str | Path | Document, options: Classify) -> DocumentLabel:
    """Tell which label a document has.

    Args:
        document: the text itself, a `Path` to a file of any kind that `read` knows, or what `read` gave.

    Returns:
        A `DocumentLabel`; `print` shows the label.

    Raises:
        InputError: nothing to read; a model that cannot be loaded, or does not classify; a device that is not there, or
            one for a classifier that is loaded already.
    """
    from longspan_documents.text.reading import as_document

    opened = as_document(document, options)
    return classifier_in(options).classify(opened)


def classifier_in(options: Classify) -> Classifier:
    """The classifier that options name, loaded."""
    model = options.model
    check_kind(model, "model", (str, Path, Classifier), "a folder, or what `load_classifier` returned")
    check_loads("model", model, options.device, options.dtype)
    return model if isinstance(model, Classifier) else load_classifier(str(model), options.device, options.dtype)


def load_classifier(model: str | Path, device: str | None = None, dtype: str | None = None) -> Classifier:
    """Load a classifier once for many documents; arguments and errors as in `classify`. The latest two stay loaded."""
    check_kind(model, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    return _load(str(model), device, dtype)


@lru_cache(maxsize=2)
def _load(model: str, device: str | None, dtype: str | None) -> Classifier:
    from longspan.checkpoints.loading import load_pair
    from longspan.inference.model_use import other_use
    from longspan.models import LongspanForSequenceClassification
    from longspan.tasks import task_beside
    from longspan.tasks.classification.classification import Classification

    loaded, tokenizer = load_pair(model, device, dtype)
    classifies, labels = isinstance(loaded, LongspanForSequenceClassification), loaded.config.num_labels or 1
    if not classifies or labels < 2:
        lack = f"which has {counted(labels, 'label')}" if classifies else "which does not classify"
        raise other_use(model, type(loaded).__name__, lack, labels)
    task = task_beside(Path(model))
    task = task if isinstance(task, Classification) else Classification()
    return Classifier(loaded, tokenizer, task.fitted(loaded.config))


class Classifier:
    """A model that classifies, ready for many documents; `load_classifier` opens one.

    Args:
        model, tokenizer: loaded.
        task: the classification task that it was trained for, which knows how texts are cleaned and cut.

    Attributes:
        labels: those that it knows.
    """

    def __init__(self, model: Any, tokenizer: Any, task: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.labels: tuple[str, ...] = task.labels

    def classify(self, document: Document) -> DocumentLabel:
        """See `longspan.classify`."""
        return self.classify_text(document.words)

    def classify_text(self, text: str) -> DocumentLabel:
        """The same for a text that is taken as it stands, as training takes the rows of its files."""
        import torch

        from longspan.characters import mend
        from longspan_documents.inference.results import notes

        begin = time.perf_counter()
        text, halves = mend(text)
        ids, whole = self.task.encode(text, self.tokenizer)
        batch = self.task.collator(self.tokenizer)([{"input_ids": ids}])
        batch = {name: values.to(self.model.device) for name, values in batch.items()}
        with torch.inference_mode():
            shares = self.model(**batch).logits[0].cpu().double().softmax(-1).tolist()
        named = dict(sorted(zip(self.labels, shares, strict=True), key=lambda pair: -pair[1]))
        label = next(iter(named))
        cut = f"the model read the first {len(ids):,} of {whole:,} tokens" if len(ids) < whole else None
        return DocumentLabel(
            label=label,
            probability=named[label],
            probabilities=named,
            tokens=len(ids),
            of_tokens=whole,
            seconds=time.perf_counter() - begin,
            note=notes(cut, halves=halves),
        )
