"""Chunks cover a document exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan_documents.text.passages import chunk_map


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_every_token_is_covered_and_owned_once(length: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size))
    chunks = chunk_map(length, size, stride)
    assert {token for chunk in chunks for token in range(chunk.start, chunk.end)} == set(range(length))
    assert [token for chunk in chunks for token in range(chunk.first, chunk.last)] == list(range(length))
    for index, chunk in enumerate(chunks):
        assert chunk.start == index * stride
        assert chunk.start <= chunk.first <= chunk.last <= chunk.end
        assert len(chunk) == size or chunk is chunks[-1]
        assert chunk.end == length or chunk is not chunks[-1]
    assert [chunk.end for chunk in chunks] == sorted({chunk.end for chunk in chunks})


def test_shared_tokens_are_halved() -> None:
    chunks = chunk_map(10, 6, 4)
    assert [(chunk.start, chunk.end, chunk.first, chunk.last) for chunk in chunks] == [(0, 6, 0, 5), (4, 10, 5, 10)]
    assert [(chunk.start, chunk.end) for chunk in chunk_map(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    assert chunk_map(0, 3) == []


@pytest.mark.parametrize("arguments", [(-1, 3, 1), (5, 0, None), (5, 3, 0), (5, 3, 4)])
def test_impossible_chunks_are_refused(arguments: tuple[int, int, int | None]) -> None:
    with pytest.raises(InputError):
        chunk_map(*arguments)
