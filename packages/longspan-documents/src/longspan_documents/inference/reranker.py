"""Reranks the best passages with a cross-encoder, which reads question and passage together.

It is a model of transformers for sequence classification with one label, as sentence-transformers' CrossEncoder also
saves it. A passage that is longer than its input is read in chunks, and has the score of its best chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from longspan.devices import check_loads
from longspan.errors import InputError, named
from longspan.settings import check_kind
from longspan_documents.inference.encoders import batches_of


class Reranker:
    """A loaded cross-encoder; `load_reranker` loads one.

    Args:
        model: returns `logits` `(B, 1)` for a question and a passage.
        tokenizer: the tokenizer of the model.
        source: its name in messages.
        max_tokens: of a question and a passage together; None if unlimited.
    """

    def __init__(self, model: Any, tokenizer: Any, source: str, max_tokens: int | None = None) -> None:
        self.model, self.tokenizer, self.source, self.max_tokens = model, tokenizer, source, max_tokens

    def order(self, question: str, passages: Sequence[str]) -> np.ndarray:
        """Returns the indices of the passages in descending order of scores, `(P,)`; ties keep their order."""
        return np.argsort(-self.scores(question, passages), kind="stable")

    def scores(self, question: str, passages: Sequence[str]) -> np.ndarray:
        """Returns the model's score of each passage for a question, `(P,)` float64; higher is better.

        Raises:
            InputError: the question leaves no room for a passage, or scores are not finite.
        """
        import torch

        encoded = self._encoded(question, passages)
        owners = encoded.pop("overflow_to_sample_mapping", list(range(len(passages))))
        found = np.full(len(passages), -np.inf)
        for chosen in batches_of([len(ids) for ids in encoded["input_ids"]]):
            several = {name: [values[index] for index in chosen] for name, values in encoded.items()}
            with torch.inference_mode():
                batch = self.tokenizer.pad(several, return_tensors="pt").to(self.model.device)
                logits = self.model(**batch).logits[:, 0].cpu().double().numpy()
            np.maximum.at(found, [owners[index] for index in chosen], logits)
        if not np.isfinite(found).all():
            raise InputError(f"the reranker {self.source!r} gives scores that are no finite numbers; give another")
        return found

    def _encoded(self, question: str, passages: Sequence[str]) -> dict[str, Any]:
        """Encode pairs of question and passage, in chunks if a passage is too long."""
        questions = [question] * len(passages)
        most = self.max_tokens
        if most is None:
            return dict(self.tokenizer(questions, list(passages), verbose=False))
        asked = len(self.tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
        room = most - asked - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 16:
            raise InputError(
                f"the question has {asked} tokens and the reranker {self.source!r} reads {most}; ask a shorter question"
            )
        cut = {"truncation": "only_second", "max_length": most, "return_overflowing_tokens": True}
        return dict(self.tokenizer(questions, list(passages), stride=room // 4, verbose=False, **cut))


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> Reranker:
    from longspan.checkpoints.published import load_published, longest_text
    from longspan.checkpoints.sentence_modules import is_sentence_encoder

    if is_sentence_encoder(source):
        raise InputError(f"model {source!r} is a sentence encoder: use --encoder (encoder=… in Python)")
    model, tokenizer = load_published(source, "labels", device=device, dtype=dtype)
    if model.config.num_labels != 1:
        raise InputError(
            f"model {source!r} is a {type(model).__name__} with {model.config.num_labels} labels, which scores no "
            "passages; give a cross-encoder, whose one label is how well a passage answers"
        )
    base = getattr(model, model.base_model_prefix, model)
    return Reranker(model, tokenizer, source, longest_text(base, tokenizer))


def load_reranker(source: str | Path | Reranker, device: str | None = None, dtype: str | None = None) -> Reranker:
    """Load a cross-encoder for many questions; the two latest are cached.

    Args:
        source: a folder or a Hub name, or an object that this function returned.
        device: as PyTorch names devices ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: it cannot be loaded, or is no cross-encoder with one label; a device does not exist, or is specified
            for a reranker that is already loaded.
    """
    check_loads("reranker", source, device, dtype)
    if hasattr(source, "scores"):
        return source  # pyright: ignore[reportReturnType]
    check_kind(source, "reranker", (str, Path), "a folder, a name, or what `load_reranker` returned")
    with named("reranker"):
        return _load(str(source), device, dtype)
