"""A corpus as token ids on disk."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import TOKENS, token_files
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer

TEXTS = [row.source for row in synthetic_rows(7, seed=0)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def _corpus(path: Path, texts: list[str]) -> Corpus:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Corpus(source=str(path))


def test_the_ids_are_those_of_each_document(tokenizer: Any, tmp_path: Path) -> None:
    corpora = [_corpus(tmp_path / "a.jsonl", TEXTS[:3]), _corpus(tmp_path / "b.jsonl", TEXTS[3:])]
    files = token_files(tmp_path / "tokens", corpora, tokenizer)
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert len(files) == 7
    assert files.ends.tolist() == np.cumsum([len(ids) for ids in expected]).tolist()
    assert files.read(TOKENS, 0, files.values).tolist() == [token for ids in expected for token in ids]
    assert (tmp_path / "tokens" / "tokens.bin").stat().st_size == 2 * files.values
    copy = pickle.loads(pickle.dumps(files))  # as a data loader's worker gets it
    assert copy.read(TOKENS, 5, 9).tolist() == files.read(TOKENS, 5, 9).tolist()
    assert len(pickle.dumps(files)) < 1000
    assert token_files(tmp_path / "two", corpora, tokenizer, limit=2).ends.shape == (2,)


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    class Wide:
        """A tokenizer of 70 000 words, one of which stands for each text."""

        def __len__(self) -> int:
            return 70_000

        def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[69_999] for _ in texts]}

        def get_vocab(self) -> dict[str, int]:
            return {}

    files = token_files(tmp_path / "tokens", [_corpus(tmp_path / "a.jsonl", TEXTS)], Wide())
    assert files.read(TOKENS, 0, 7).tolist() == [69_999] * 7


def test_a_long_document_in_pieces_has_the_ids_of_the_whole(tokenizer: Any, tmp_path: Path) -> None:
    text = " ".join(TEXTS * 30)
    assert len(text) > 300_000
    files = token_files(tmp_path / "tokens", [_corpus(tmp_path / "a.jsonl", [text])], tokenizer)
    assert len(files) == 1
    assert files.read(TOKENS, 0, files.values).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_files_are_used_again_and_another_corpus_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "a.jsonl", TEXTS)
    token_files(tmp_path / "tokens", [corpus], tokenizer)
    written = (tmp_path / "tokens" / "tokens.bin").stat().st_mtime_ns
    token_files(tmp_path / "tokens", [corpus], tokenizer)
    assert (tmp_path / "tokens" / "tokens.bin").stat().st_mtime_ns == written
    for corpora, words in (
        ([_corpus(tmp_path / "a.jsonl", TEXTS[:-1])], tokenizer),
        ([corpus], train_tokenizer(TEXTS[:1], 290)),
    ):
        with pytest.raises(InputError, match="from another corpus, or by another tokenizer"):
            token_files(tmp_path / "tokens", corpora, words)


def test_what_stops_half_way_leaves_nothing(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n{"text": 5}\n')
    with pytest.raises(InputError, match="line 2"):
        token_files(tmp_path / "tokens", [Corpus(source=str(tmp_path / "a.jsonl"))], tokenizer)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(InputError, match="holds no text"):
        token_files(tmp_path / "tokens", [Corpus(source=str(tmp_path / "empty.txt"))], tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "empty.txt"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tokenizer: Any, tmp_path: Path) -> None:
    """Five times the corpus: ten million tokens more on disk, the same few megabytes in memory."""
    peaks, sizes = [], []
    for times in (1, 5):
        path = tmp_path / f"{times}.jsonl"
        with path.open("w") as file:
            for _ in range(times * 120):
                file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS)
        tracemalloc.start()
        files = token_files(tmp_path / f"tokens-{times}", [Corpus(source=str(path))], tokenizer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(files.values)
    assert sizes[1] == 5 * sizes[0] > 1_000_000
    assert peaks[1] < 1.2 * peaks[0] + 1_000_000
