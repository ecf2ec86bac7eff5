"""Vocabularies of whole words: lists in text and JSON, mistakes in them, and pickles that are never loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.checkpoints.loading import load_tokenizer
from longspan.errors import InputError

WORDS = ["<eos>", "the", "<unk>", "of", "Straße"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "transfo-xl", "vocab_size": 5}')
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocab.txt", "\n".join(WORDS)),
        ("vocab.txt", "\n".join([*WORDS, ""])),
        ("vocab.json", json.dumps(WORDS)),
        ("vocab.json", json.dumps({word: number for number, word in reversed(list(enumerate(WORDS)))})),
    ],
)
def test_a_list_is_a_tokenizer(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "vocab.bin").write_bytes(b"\x80\x04never read")
    tokenizer = load_tokenizer(folder)
    assert tokenizer("the Straße of\nx")["input_ids"] == [1, 4, 3, 0, 2]
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 2, 0)
    tokenizer.save_pretrained(folder / "saved")
    assert load_tokenizer(folder / "saved")("the Straße of\nx")["input_ids"] == [1, 4, 3, 0, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.pkl", b"\x80\x04.", "vocab.pkl' is a pickle, which is never loaded.*put a word list vocab.txt there"),
        ("vocab.bin", b"\x80\x04.", "vocab.bin' is a pickle"),
        ("vocab.txt", b"<eos>\n<unk>\nthe\nthe\n", "has 'the' twice"),
        ("vocab.txt", b"<eos>\nthe\n", "no <unk>"),
        ("vocab.txt", b"<eos>\n\n<unk>\n", "no word in line 2"),
        ("vocab.txt", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("vocab.json", b"{", "not valid JSON"),
        ("vocab.json", b'{"<eos>": 0, "<unk>": 2}', "does not give its words the ids 0 to 1"),
        ("vocab.json", b"[1, 2]", "no list of words"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value)
