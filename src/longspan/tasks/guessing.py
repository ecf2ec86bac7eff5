"""What tasks share that guess tokens and are scored by the bits that it takes; and where the chance of an example comes
from, so that a resumed run and another model see the same."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from longspan.models.losses import IGNORED
from longspan.tasks.base import Outcome, Task
from longspan.tasks.predicting import batches


class GuessingTask(Task):
    """A task whose labels are tokens of the text itself."""

    generates: ClassVar[bool] = False
    guessed: ClassVar[tuple[str, str]]
    """What is guessed, as predictions name it, and the score of the bits that each takes."""

    @property
    def mode(self) -> str:
        """How the text is cut up when it is scored, in few words; a score without them cannot be compared."""
        return ""

    @property
    def flavour(self) -> str:
        """What the scores are, in words."""
        raise NotImplementedError

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """For each chunk: the bits of what is guessed, how much of it is right, how much there is; `(B, 3)` float64."""
        raise NotImplementedError

    def text_scores(self, bits: float, dataset: Any) -> dict[str, float]:
        """Scores of all bits together that need to know the text."""
        return {}

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Bits, perplexity and accuracy over everything that is guessed; a line for each chunk."""
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path(folder))
            each = batches(model, dataset, self.collator(tokenizer), batch_size)
            table = torch.cat([self.sums(model, batch) for batch in each])
            bits, correct, count = table.sum(0).tolist()
            scores = self.text_scores(bits, dataset)
        scores |= {**self.loss_scores(bits * math.log(2) / count), "accuracy": 100 * correct / count}
        lines = [
            {"chunk": index, self.guessed[0]: int(tokens), "bits": round(value, 3), "correct": int(right)}
            for index, (value, right, tokens) in enumerate(table.tolist())
        ]
        return Outcome(scores=scores, lines=lines, flavour=self.flavour, mode=self.mode)

    def loss_weight(self, batch: dict[str, Any]) -> float:
        """The number of tokens that are guessed."""
        return float((batch["labels"] != IGNORED).sum())

    def loss_scores(self, loss: float) -> dict[str, float]:
        """The loss in bits, and as a perplexity."""
        return {self.guessed[1]: loss / math.log(2), "perplexity": math.exp(min(loss, 700.0))}


def example_key(seed: int | None, epoch: int, index: int, content: bytes) -> int:
    """A number of 128 bits for a random generator: in training, with a seed, another one in every epoch; without one,
    of the content alone, so that any two models with one tokenizer are validated on the same examples."""
    material = content if seed is None else np.array([seed, epoch, index], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(material, digest_size=16).digest(), "little")
