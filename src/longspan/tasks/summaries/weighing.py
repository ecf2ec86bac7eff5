"""How important each token of a document is: by the labels of its reference summary, or as a trained tagger sees it.

Both are what a model with `pooling: importance` weighs tokens by when it pools them to segments (AdaPool).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from longspan.data.text.words import important_words
from longspan.errors import InputError
from longspan.models.losses import IGNORED

UPPER_BOUND = "importance of tokens from the references themselves (oracle): an upper bound, and no result"
"""What an evaluation says that was shown what only the references tell."""

Places = Sequence[tuple[int, int]]
"""Where tokens stand in a text, in characters; special tokens have no width."""


def labels_of(places: Places, text: str, reference: str, language: str | None = None) -> list[int]:
    """1 for each token that has a part in an important word of the text, 0 for others, −100 for special tokens."""
    labels, words, at = [], important_words(text, reference, language), 0
    for start, end in places:
        while at < len(words) and words[at][1] <= start:
            at += 1
        inside = at < len(words) and words[at][0] < end
        labels.append(IGNORED if end <= start else int(inside))
    return labels


def weights_of_labels(labels: Sequence[int]) -> list[float]:
    """The importance that labels stand for: special tokens have none."""
    return [float(label == 1) for label in labels]


class Tagger:
    """A model that `longspan train` made for the task `importance`, and the tokens that it knows."""

    def __init__(self, model: Any, tokenizer: Any, source: str) -> None:
        self.model, self.tokenizer, self.source = model, tokenizer, source

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise `InputError` where another model's tokens are not those of the tagger."""
        if tokenizer is not self.tokenizer and tokenizer.get_vocab() != self.tokenizer.get_vocab():
            own, here = len(self.tokenizer), len(tokenizer)
            differ = f"{own} entries, here {here}" if own != here else f"{own} entries, as here, but others"
            raise InputError(
                f"the importance tagger {self.source!r} was trained with another tokenizer ({differ}); train one with "
                "this model's tokenizer"
            )

    @torch.no_grad()
    def probabilities(self, ids: Sequence[int], places: Places) -> list[float]:
        """How likely each token is important; 0 for special tokens.

        Raises:
            InputError: more tokens than the tagger reads.
        """
        config = self.model.config
        if config.position_embedding != "sinusoidal" and len(ids) > config.max_position_embeddings:
            raise InputError(
                f"the document has {len(ids)} tokens, but the importance tagger {self.source!r} reads at most "
                f"{config.max_position_embeddings}; shorten it, or train a tagger that reads more"
            )
        given = torch.tensor([list(ids)], device=self.model.device)
        found = self.model(given).logits[0, :, 0].float().sigmoid().tolist()
        return [value if end > start else 0.0 for value, (start, end) in zip(found, places, strict=True)]


@lru_cache(maxsize=2)
def load_tagger(source: str) -> Tagger:
    """The tagger in a folder.

    Raises:
        InputError: there is no model, or one of another kind.
    """
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForTokenClassification

    model, tokenizer = load_pair(source)
    if not isinstance(model, LongspanForTokenClassification) or model.config.num_labels != 1:
        raise InputError(
            f"model {source!r} is a {type(model).__name__} and no importance tagger; give one that `longspan train` "
            "made for the task importance"
        )
    return Tagger(model, tokenizer, source)
