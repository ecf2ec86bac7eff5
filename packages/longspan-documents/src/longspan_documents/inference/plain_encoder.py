"""The bundled encoder in NumPy: importing PyTorch takes longer than querying an index or reading a short document.

It computes the network of `longspan.models.heads.sentence_network.EmbeddingNetwork` with the same weights, and returns
the same vectors except for rounding. Texts of more than `LONGEST` tokens are passed to PyTorch, which is faster.

Shape legend: T tokens, E width, H heads, D head width, M pools, N sentences, P passages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from longspan.characters import mend
from longspan.errors import InputError, last_line
from longspan.tasks.tokenizers import encode_sentences
from longspan_documents.gelu import gelu
from longspan_documents.inference.encoders import (
    BUNDLED,
    SCALE,
    UNKNOWN,
    BundledTokenizer,
    bundled_encoder,
    of_length_one,
)

LONGEST = 8_192
"""Maximum length in tokens of a text that is computed here."""
BLOCK = 128
"""Queries whose scores are computed at once."""

PARTS = {
    "activation_function": "gelu",
    "embedding_norm": False,
    "global_tokens": "none",
    "normalization": "pre",
    "position_embedding": "sinusoidal",
    "scale_embedding": False,
    "sinusoids": "two_to_period",
    "stack": {"stack": "sequential"},
    "type_vocab_size": 0,
}
"""Required values of `config.json` for the network that is computed here."""
PREFIX = "model.encoder."


@dataclass(frozen=True)
class Layer:
    """A block: its weights by name, and its attention pattern.

    Attributes:
        heads: H.
        eps: ε of the LayerNorms.
        left: tokens of the window to the left.
        right: tokens of the window to the right.
        pools: left and right window and stride of the second level; None without a second level.
    """

    weights: dict[str, np.ndarray]
    heads: int
    eps: float
    left: int
    right: int
    pools: tuple[int, int, int] | None

    def forward(self, hidden: np.ndarray) -> np.ndarray:
        """`(T, E)` → `(T, E)`."""
        hidden = hidden + self._attention(self._norm("attention_norm", hidden))
        wide = self._linear("feed_forward.up", self._norm("feed_forward_norm", hidden))
        return hidden + self._linear("feed_forward.down", gelu(wide))

    def _attention(self, hidden: np.ndarray) -> np.ndarray:
        """Window attention, followed by attention over pools of its output (Poolingformer, arXiv 2105.04371): `(T, E)`
        → `(T, E)`."""
        query, key, value = (self._heads(f"attention.{name}", hidden) for name in ("query", "key", "value"))
        total = merged(attend_near(query, key, value, -self.left, self.right))
        if self.pools is not None:
            left, right, stride = self.pools
            query, key, value = (self._heads(f"attention.pooled_{name}", total) for name in ("query", "key", "value"))
            weights = [self.weights[f"attention.pool_{name}_weight"] for name in ("key", "value")]
            kernel = weights[0].shape[1]
            key, value = (pooled(states, weight, stride) for states, weight in zip((key, value), weights, strict=True))
            # A pool is attended to if its whole kernel is in the window.
            first, last = kernel // 2 - left, right - (kernel - 1 - kernel // 2)
            total = total + merged(attend_near(query, key, value, first, last, stride))
        return self._linear("attention.output", total)

    def _linear(self, name: str, hidden: np.ndarray) -> np.ndarray:
        return hidden @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _heads(self, name: str, hidden: np.ndarray) -> np.ndarray:
        """Project `(T, E)` and split the heads: `(H, T, D)`."""
        projected = self._linear(name, hidden)
        return projected.reshape(len(hidden), self.heads, -1).transpose(1, 0, 2)

    def _norm(self, name: str, hidden: np.ndarray) -> np.ndarray:
        return normed(hidden, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.eps)


def attend_near(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, first: int, last: int, stride: int = 1
) -> np.ndarray:
    """Softmax attention of queries `(H, T, D)` over the keys `(H, S, D)` around each: key j, at place `stride` · j, is
    visible to the query at place i if `first` ≤ `stride` · j − i ≤ `last`. Returns `(H, T, D)`, in time and memory
    linear in T."""
    queries, keys = np.arange(query.shape[1]), stride * np.arange(key.shape[1])
    context = np.empty_like(query)
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK, None]
        low, high = np.searchsorted(keys, (rows[0, 0] + first, rows[-1, 0] + last + 1))
        offsets = keys[low:high] - rows
        visible = (offsets >= first) & (offsets <= last)
        near = query[:, start : start + BLOCK], key[:, low:high], value[:, low:high]
        context[:, start : start + BLOCK] = attend(*near, visible)
    return context


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Softmax attention of queries `(H, T, D)` over `visible` `(T, S)` keys `(H, S, D)`: `(H, T, D)`, 0 if no key is
    visible."""
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
    scores = np.where(visible, scores, np.float32(-1e30))
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30)) * visible
    return weights / np.maximum(weights.sum(-1, keepdims=True), np.float32(1e-30)) @ value


def merged(context: np.ndarray) -> np.ndarray:
    """Merge heads: `(H, T, D)` → `(T, E)`."""
    return context.transpose(1, 0, 2).reshape(context.shape[1], -1)


def pooled(hidden: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """Sums of κ tokens around every `stride`-th token, with weights computed from this token (LDConv).

    `hidden` `(H, T, D)` and `weight` `(H, κ, D)` → `(H, M, D)`; see `longspan.ops.tiles.pooling.pool_reference`.
    """
    length, kernel = hidden.shape[1], weight.shape[1]
    centres = np.arange(0, length, stride)
    places = centres[:, None] + np.arange(kernel) - kernel // 2
    valid = (places >= 0) & (places < length)
    scores = np.where(valid, np.einsum("hmd,hkd->hmk", hidden[:, centres], weight), np.float32(-1e30))
    shares = np.exp(scores - scores.max(-1, keepdims=True)) * valid
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hmk,hmkd->hmd", shares, hidden[:, places.clip(0, length - 1)])


def normed(hidden: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """LayerNorm of `(…, E)`."""
    centred = hidden - hidden.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


class PlainEncoder:
    """The bundled encoder without PyTorch, with the methods of `longspan_documents.inference.encoders.Encoder`.

    Args:
        folder: contains the files of the encoder.

    Raises:
        InputError: a file is missing or damaged, or describes a network that is not computed here.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._open(folder)
        except Exception as error:  # tokenizer and safetensors raise exceptions of their own types
            raise InputError(
                f"the bundled model in {folder} is damaged ({last_line(error)}); install the package again"
            ) from error

    def _open(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if unsupported := [name for name, value in PARTS.items() if config[name] != value]:
            raise ValueError(f"{unsupported[0]} is {config[unsupported[0]]!r}")
        weights = _weights(folder / "model.safetensors")
        self.tokenizer = BundledTokenizer(folder)
        self._vectors = weights.pop(f"{PREFIX}embeddings.token.weight")
        self._scale = weights.pop(f"{PREFIX}embeddings.token.weight{SCALE}")
        self._rest = weights
        self._config = config
        self.layers = [_layer(config, weights, number) for number in range(config["num_hidden_layers"])]
        self.dimensions = len(weights["projection.weight"])

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors `(N, D)` of separate texts; 0 for blank and for unknown ones."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            if text.strip():
                row[:] = self.embed_document([text])[0]
        return vectors

    def embed_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Returns unit vectors `(N + P, D)` of a text's sentences, which are read together, followed by those of its
        passages.

        Args:
            sentences: the N sentences in order; there may be none.
            firsts: P increasing indices of the first sentences of passages; a passage ends where the next begins.
        """
        return self.read_document(sentences, firsts)[0]

    def read_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> tuple[np.ndarray, int]:
        """Returns the vectors of `embed_document`, and the number of tokens."""
        encoded = encode_sentences([mend(text)[0] for text in sentences], self.tokenizer)
        tokens = sum(map(len, encoded))
        if not encoded or self.tokenizer.unknown_share(" ".join(sentences)) > UNKNOWN:
            return np.zeros((len(encoded) + len(firsts), self.dimensions), np.float32), tokens
        if tokens > LONGEST:
            return bundled_encoder().read_document(sentences, firsts)
        states = self._states(np.array([token for ids in encoded for token in ids]))
        sums = np.add.reduceat(states, np.cumsum([0, *map(len, encoded[:-1])]))
        if len(firsts):
            sums = np.concatenate([sums, np.add.reduceat(sums, np.asarray(firsts))])
        return of_length_one(sums @ self._rest["projection.weight"].T), tokens

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the last hidden state of each token times its weight: `(T,)` ids → `(T, E)`."""
        hidden = self._vectors[tokens].astype(np.float32) * self._scale[tokens]
        hidden = hidden + sinusoids(len(tokens), hidden.shape[1], self._config)
        for layer in self.layers:
            hidden = layer.forward(hidden)
        rest = self._rest
        final = [rest[f"{PREFIX}final_norm.{name}"] for name in ("weight", "bias")]
        hidden = normed(hidden, final[0], final[1], self._config["layer_norm_eps"])
        return hidden * np.logaddexp(np.float32(0), hidden @ rest["weight.weight"].T + rest["weight.bias"])


def sinusoids(length: int, width: int, config: dict[str, Any]) -> np.ndarray:
    """Returns "two_to_period" position embeddings `(T, E)`; see `longspan.models.embeddings.TwoToPeriodSinusoids`."""
    exponent = np.linspace(0, 1, (width + 1) // 2)
    waves = (math.pi * (config["position_period"] / 2) ** -exponent).astype(np.float32)
    angle = np.arange(config["position_offset"], config["position_offset"] + length)[:, None].astype(np.float32) * waves
    scale = np.float32(2**0.5 * config["init_std"])
    return scale * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :width]


def _weights(file: Path) -> dict[str, np.ndarray]:
    """Load the tensors of a file, with half precision converted to float32."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
    halves = {name: tensor.astype(np.float32) for name, tensor in tensors.items() if tensor.dtype == np.float16}
    if broken := [name for name, tensor in halves.items() if not np.isfinite(tensor).all()]:
        raise ValueError(f"{file.name} holds no finite numbers in {broken[0]}")
    return tensors | halves


def _layer(config: dict[str, Any], weights: dict[str, np.ndarray], number: int) -> Layer:
    """Returns block `number`, with the attention of its entry in `config.json`."""
    spec = next(entry for entry in config["attention"] if number in _numbers(entry["layers"]))
    prefix = f"{PREFIX}layers.{number}."
    block_weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    pools = None
    if "pooled_left_tokens" in spec:
        pools = (spec["pooled_left_tokens"], spec["pooled_right_tokens"], spec["stride"])
    return Layer(
        block_weights,
        config["num_attention_heads"],
        config["layer_norm_eps"],
        spec["left_tokens"],
        spec["right_tokens"],
        pools,
    )


def _numbers(layers: str) -> Iterable[int]:
    """Parse a layer range: "3" or "1-2"."""
    first, _, last = layers.partition("-")
    return range(int(first), int(last or first) + 1)


@lru_cache(maxsize=1)
def plain_encoder() -> PlainEncoder:
    """Load the bundled encoder in NumPy; it is cached."""
    return PlainEncoder(BUNDLED)
