"""`longspan.classify`: predicts the label of a document of any kind, with the probability of each label."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.characters import counted
from longspan.devices import check_loads, check_named
from longspan.options import expand_options
from longspan.settings import check_kind
from longspan_documents.inference.verbs import Classify

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class DocumentLabel:
    """The predicted label of a document.

    Attributes:
        label: the most likely label.
        probability: its probability according to the model.
        probabilities: the probability of every label of the model, in descending order.
        tokens: number of tokens that the model read.
        of_tokens: number of tokens of the document.
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


@expand_options(Classify)
def classify(document: str | Path | Document, options: Classify) -> DocumentLabel:
    """Predict the label of a document.

    Args:
        document: the text itself, a `Path` to a file of any kind that `read` supports, or a document returned by
            `read`.

    Returns:
        A `DocumentLabel`; `print` shows the label.

    Raises:
        InputError: there is nothing to read, a model cannot be loaded or does not classify, or a device does not exist
            or is specified for a classifier that is already loaded.
    """
    from longspan_documents.text.reading import as_document

    opened = as_document(document, options)
    return classifier_in(options).classify(opened)


def classifier_in(options: Classify) -> Classifier:
    """Returns the classifier that the options specify, loaded."""
    model = options.model
    check_kind(model, "model", (str, Path, Classifier), "a folder, or what `load_classifier` returned")
    check_loads("model", model, options.device, options.dtype)
    return model if isinstance(model, Classifier) else load_classifier(str(model), options.device, options.dtype)


def load_classifier(model: str | Path, device: str | None = None, dtype: str | None = None) -> Classifier:
    """Load a classifier for many documents; arguments and errors as in `classify`. The two latest are cached."""
    check_kind(model, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    return _load(str(model), device, dtype)


@lru_cache(maxsize=2)
def _load(model: str, device: str | None, dtype: str | None) -> Classifier:
    from longspan.checkpoints.loading import load_pair
    from longspan.inference.model_use import other_use
    from longspan.models import LongspanForSequenceClassification
    from longspan.tasks import task_of_folder
    from longspan.tasks.classification.classification import Classification

    loaded, tokenizer = load_pair(model, device, dtype)
    classifies, labels = isinstance(loaded, LongspanForSequenceClassification), loaded.config.num_labels or 1
    if not classifies or labels < 2:
        lack = f"which has {counted(labels, 'label')}" if classifies else "which does not classify"
        raise other_use(model, type(loaded).__name__, lack, labels)
    task = task_of_folder(Path(model))
    task = task if isinstance(task, Classification) else Classification()
    return Classifier(loaded, tokenizer, task.fitted(loaded.config))


class Classifier:
    """A loaded classifier; `load_classifier` opens one.

    Args:
        model: on its device.
        tokenizer: the tokenizer of the model.
        task: the classification task of its training, which defines how texts are cleaned and truncated.

    Attributes:
        labels: the labels of the model.
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
        """Classify a text as it is, like the rows of training files."""
        import torch

        from longspan.characters import mend
        from longspan_documents.inference.results import notes

        begin = time.perf_counter()
        text, halves = mend(text)
        ids, of_tokens = self.task.encode(text, self.tokenizer)
        batch = self.task.collator(self.tokenizer)([{"input_ids": ids}])
        batch = {name: values.to(self.model.device) for name, values in batch.items()}
        with torch.inference_mode():
            shares = self.model(**batch).logits[0].cpu().double().softmax(-1).tolist()
        named = dict(sorted(zip(self.labels, shares, strict=True), key=lambda pair: -pair[1]))
        label = next(iter(named))
        cut = f"the model read the first {len(ids):,} of {of_tokens:,} tokens" if len(ids) < of_tokens else None
        return DocumentLabel(
            label=label,
            probability=named[label],
            probabilities=named,
            tokens=len(ids),
            of_tokens=of_tokens,
            seconds=time.perf_counter() - begin,
            note=notes(cut, halves=halves),
        )
