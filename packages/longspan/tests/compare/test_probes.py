"""The probes: what they ask has one right answer, and it is the same for everybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT
from longspan.compare.probes.documents import HELD_OUT_SHARE, Novels, write_documents
from longspan.compare.probes.made_up import Duplication, ListOps, Recall, list_value
from longspan.errors import InputError
from longspan.models.losses import IGNORED

MADE_UP = [name for name in PROBES if name != "novels"]


@pytest.fixture
def made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """A probe over made-up documents, where it reads any."""
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    PROBES[name].prepare(tmp_path)
    return PROBES[name](131, tmp_path)


@pytest.mark.parametrize("name", MADE_UP)
def test_a_row_is_the_same_for_everybody_and_within_its_vocabulary(name: str, made: Probe) -> None:
    for form in made.forms:
        for number in range(7):
            row, again = made.row(5, number, form), made.row(5, number, form)
            assert (row.ids == again.ids).all()
            assert (row.labels == again.labels).all()
            assert 0 < len(row.ids) <= made.tokens
            assert row.ids.min() >= 0
            assert row.ids.max() < made.padding
            asked = row.labels != IGNORED
            assert asked.any()
            assert row.labels[asked].min() >= 0
            assert row.labels.max() < made.vocabulary
        texts = {made.row(seed, number, form).ids.tobytes() for seed in (5, 6, HELD_OUT) for number in range(7)}
        assert len(texts) == 21


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_says_what_it_asks_and_what_is_too_short(name: str) -> None:
    assert len(PROBES[name].about()) > 80
    with pytest.raises(InputError, match="is too short for"):
        PROBES[name](PROBES[name].least - 1)


@pytest.mark.parametrize("tokens", [64, 97, 1021])
def test_recall_asks_for_facts_that_stand_before_at_the_distance_it_says(tokens: int) -> None:
    probe = Recall(tokens)
    row = probe.row(1, 2, "bidirectional")
    first_question = 8 + 16  # eight values and sixteen fillers come before them
    first_fact = first_question + 16
    for place in np.flatnonzero(row.labels != IGNORED):
        key = row.ids[place] - first_question
        fact = row.ids[place - row.distances[place]] - first_fact
        assert (fact // 8, fact % 8) == (key, row.labels[place])
    assert (row.ids >= first_fact).sum() == 16
    assert row.is_global.sum() == 16


def test_duplication_asks_for_the_word_once_more() -> None:
    probe = Duplication(12)
    causal, hidden = probe.row(1, 0, "causal"), probe.row(1, 0, "bidirectional")
    word = causal.ids[1:6]
    assert causal.ids.tolist() == [32, *word, 32, *word]
    assert causal.labels.tolist() == [IGNORED] * 6 + [*word, IGNORED]  # each symbol before it is read
    assert hidden.ids.tolist() == [32, *word, 32, *[33] * 5]
    assert hidden.labels.tolist() == [IGNORED] * 7 + [*word]
    assert not causal.is_global.any()


@pytest.mark.parametrize(
    ("operator", "values", "value"),
    [("MIN", [4, 2, 7], 2), ("MAX", [4, 2, 7], 7), ("MED", [9, 1, 4], 4), ("MED", [9, 1, 4, 6], 4), ("SM", [9, 8], 7)],
)
def test_values_of_lists(operator: str, values: list[int], value: int) -> None:
    assert list_value(operator, values) == value


def test_listops_is_read_back_to_the_value_it_asks_for() -> None:
    def value(ids: list[int]) -> int:
        """Of the list at the beginning, which is taken away."""
        operator, values = ListOps.operators[ids.pop(0) - 10], []
        while ids[0] != ListOps.close:
            values.append(value(ids) if ids[0] >= 10 else ids.pop(0))
        ids.pop(0)
        return list_value(operator, values)

    probe, lengths = ListOps(201), set()
    for number in range(40):
        row = probe.row(3, number, "causal")
        lengths.add(len(row.ids))
        *ids, ask = row.ids.tolist()
        assert value(ids) == row.labels[-1]
        assert (ids, ask) == ([], ListOps.ask)
    assert max(lengths) > 100
    assert len(lengths) > 10


@pytest.mark.parametrize("name", ["bytes", "matching"])
def test_held_out_documents_are_no_documents_of_training(name: str, made: Probe) -> None:
    def documents(seed: int) -> set[int]:
        made.row(seed, 0, "bidirectional")
        return set(made.of_source(None).tolist())  # type: ignore[attr-defined]

    assert documents(1)
    assert not documents(1) & documents(HELD_OUT)
    assert all(number % HELD_OUT_SHARE == 0 for number in documents(HELD_OUT))


def test_novels_are_asked_for_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    with pytest.raises(InputError, match="set LONGSPAN_DATA"):
        Novels.prepare(tmp_path)
    texts = (f"chapter {number} ".encode() * 50 for number in range(20))
    write_documents(tmp_path / "documents-novels", iter([("pg_novels", texts)]))
    probe = Novels(32, tmp_path)
    for seed, first in ((1, 0), (HELD_OUT, 16)):
        row = probe.row(seed, 3, "causal")
        asked = np.flatnonzero(row.labels != IGNORED)
        assert asked[0] == first
        assert (row.labels[asked[:-1]] == row.ids[asked[:-1] + 1]).all()  # the next byte


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no documents"):
        write_documents(tmp_path / "documents-bytes", iter([("few", iter([b"one", b"two"]))]))
    assert not (tmp_path / "documents-bytes").exists()
