"""Which tokens are hidden, and chunks that hold every token of a corpus once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from longspan.data.corpus.tokens import TOKENS
from longspan.data.ragged import Ragged
from longspan.tasks.language_modelling.masking import IGNORED, MaskedChunks, Masking

MASK, ORDINARY = 4, np.arange(5, 1000)
LENGTHS = [23, 0, 1, 40, 7, 11]


def _masking(probability: float = 0.15, mask_share: float = 0.8, random_share: float = 0.1) -> Masking:
    return Masking(
        probability=probability,
        mask_share=mask_share,
        random_share=random_share,
        mask_id=MASK,
        ordinary=ORDINARY,
    )


def _folder(folder: Path, ids: np.ndarray, lengths: Sequence[int]) -> Ragged:
    """Documents on disk, written by hand as `longspan.data.ragged` describes the folder."""
    folder.mkdir(exist_ok=True)
    ids.astype("<u2").tofile(folder / "tokens.bin")
    np.cumsum(lengths).astype("<i8").tofile(folder / "rows.bin")
    index = {"rows": len(lengths), "values": len(ids), "columns": {"tokens": "<u2"}, "numbers": [], "fingerprint": "x"}
    (folder / "index.json").write_text(json.dumps(index))
    return Ragged(folder)


@pytest.fixture
def files(tmp_path: Path) -> Ragged:
    """Six documents whose ids count on from 100."""
    return _folder(tmp_path, np.arange(100, 100 + sum(LENGTHS)), LENGTHS)


def _chunks(files: Ragged, *, between: int | None = None, seed: int | None = 3, max_tokens: int = 13) -> MaskedChunks:
    return MaskedChunks(
        files=files,
        masking=_masking(),
        special_ids=np.array([0, 1, 2, 3, 4]),
        before=[0],
        after=[2],
        between=between,
        max_tokens=max_tokens,
        seed=seed,
    )


def test_shares_of_what_is_hidden() -> None:
    """In 200 000 tokens: 15 % exactly; of them 80/10/10 within four standard deviations."""
    ids = np.random.default_rng(0).integers(5, 1000, 200_000)
    fixed = np.zeros(len(ids), dtype=bool)
    fixed[::10] = True
    shown, labels = _masking().apply(ids, fixed, key=1)
    chosen = labels != IGNORED
    assert chosen.sum() == round(0.15 * 180_000)
    assert not (chosen & fixed).any()
    assert (shown[~chosen] == ids[~chosen]).all()
    assert (labels[chosen] == ids[chosen]).all()
    masked = (shown == MASK)[chosen].mean()
    same = (shown == ids)[chosen].mean()
    count = chosen.sum()
    for share, expected in ((masked, 0.8), (same, 0.1 + 0.1 / 995), (1 - masked - same, 0.1 - 0.1 / 995)):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)
    others = shown[chosen & (shown != ids) & (shown != MASK)]
    assert others.min() >= 5
    assert np.unique(others).size > 900
    # Every part of the text is equally likely to be chosen.
    halves = chosen.reshape(8, -1).sum(1)
    assert abs(halves - count / 8).max() < 4 * np.sqrt(count / 8)


def test_one_token_is_hidden_at_least_and_special_ones_never() -> None:
    for length in (1, 2, 3):
        _, labels = _masking().apply(np.arange(10, 10 + length), np.zeros(length, dtype=bool), key=7)
        assert (labels != IGNORED).sum() == 1
    _, labels = _masking().apply(np.arange(3), np.ones(3, dtype=bool), key=7)
    assert (labels == IGNORED).all()
    shown, labels = _masking(1.0, 0.0, 0.0).apply(np.arange(10, 15), np.zeros(5, dtype=bool), key=7)
    assert shown.tolist() == labels.tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("max_tokens", [3, 4, 13, 25, 100])
def test_chunks_hold_every_token_once_and_no_border(files: Ragged, max_tokens: int) -> None:
    chunks = _chunks(files, max_tokens=max_tokens)
    room = max_tokens - 2
    assert len(chunks) == sum(-(-length // room) for length in LENGTHS)
    contents = [chunks.content(index).tolist() for index in range(len(chunks))]
    assert [token for content in contents for token in content] == list(range(100, 100 + sum(LENGTHS)))
    borders = set((100 + np.cumsum(LENGTHS)).tolist())
    assert all(1 <= len(content) <= room and not borders & set(content[1:]) for content in contents)
    item = chunks[0]["labels"].copy()
    assert item[0] == item[-1] == IGNORED


@pytest.mark.parametrize("max_tokens", [3, 4, 13, 25, 200])
def test_across_documents_a_token_stands_between_them(files: Ragged, max_tokens: int) -> None:
    chunks = _chunks(files, between=2, max_tokens=max_tokens)
    expected: list[int] = []
    token = 100
    for number, length in enumerate(LENGTHS):
        expected += [2] * (number > 0) + list(range(token, token + length))
        token += length
    contents = [chunks.content(index).tolist() for index in range(len(chunks))]
    assert [token for content in contents for token in content] == expected
    assert {len(content) for content in contents[:-1]} <= {max_tokens - 2}
    for index in range(len(chunks)):
        item = chunks[index]
        assert (item["labels"][item["input_ids"] == 2] == IGNORED).all()


def _labels(chunks: MaskedChunks) -> list[list[int]]:
    return [chunks[index]["labels"].tolist() for index in range(len(chunks))]


def test_training_masks_depend_on_seed_epoch_and_chunk_alone(files: Ragged) -> None:
    one, two, other = _chunks(files), _chunks(files), _chunks(files, seed=4)
    first = _labels(one)
    assert _labels(two)[::-1] == first[::-1]
    assert _labels(other) != first
    one.set_epoch(1)
    second = _labels(one)
    assert second != first
    one.set_epoch(0)
    assert _labels(one) == first
    two.set_epoch(1)
    assert two[3]["labels"].tolist() == second[3]  # as a resumed run begins, in the middle of an epoch


def test_validation_masks_depend_on_the_content_alone(files: Ragged, tmp_path: Path) -> None:
    chunks = _chunks(files, seed=None)
    before = _labels(chunks)
    chunks.set_epoch(5)
    assert _labels(chunks) == before
    # The same document elsewhere: without the documents before it.
    other = _folder(tmp_path / "other", files.read(TOKENS, 24, 64), [40])
    assert _labels(_chunks(other, seed=None)) == before[4:8]


def test_the_masks_are_those_of_every_numpy() -> None:
    """Worked out from the published definition: the places are the smallest of Philox's first raw numbers."""
    raw = np.random.Philox(key=11).random_raw(20)
    _, labels = _masking().apply(np.arange(100, 120), np.zeros(20, dtype=bool), key=11)
    smallest = sorted(range(20), key=lambda place: int(raw[place]))[:3]
    assert sorted(smallest) == np.flatnonzero(labels != IGNORED).tolist()
