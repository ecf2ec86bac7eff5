"""Where the chance of a training example comes from, so that a resumed run and another model see the same."""

from __future__ import annotations

import hashlib

import numpy as np


def example_key(seed: int | None, epoch: int, index: int, content: bytes) -> int:
    """A number of 128 bits for a random generator: in training, with a seed, another one in every epoch; without one,
    of the content alone, so that any two models with one tokenizer are validated on the same examples."""
    material = content if seed is None else np.array([seed, epoch, index], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(material, digest_size=16).digest(), "little")
