"""Chunks on disk are the chunks that were made, once."""

from __future__ import annotations

import pickle

import pytest

from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.questions.made_up import synthetic_questions
from longspan_documents.questions.rows import QuestionRow
from longspan_papers.natural_questions.chunks import LABELS, question_chunks
from longspan_papers.natural_questions.features import chunk_features
from longspan_papers.natural_questions.options import QuestionOptions, marker_tokens

OPTIONS = QuestionOptions(max_tokens=101, stride=47, max_candidates=13, match_types=True)
ROWS = synthetic_questions(3, seed=2)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_tokenizer((row.text for row in ROWS), 350)
    tokenizer.add_tokens(marker_tokens(OPTIONS), special_tokens=True)
    return tokenizer


def plain(chunk):
    return {name: value if isinstance(value, int) else value.tolist() for name, value in chunk.items()}


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_equal_the_features(training, types, tokenizer, tmp_path):
    options = QuestionOptions(max_tokens=101, stride=47, max_candidates=13, match_types=types)
    made = question_chunks(tmp_path / "c", ROWS, tokenizer, options, sources=["a"], training=training, seed=5)
    expected = [
        chunk
        for row in ROWS
        for chunk in chunk_features(row, tokenizer, options, training=training, seed=5)
        if chunk["candidates"]
    ]
    assert len(made) == len(expected) > 5
    assert made.index["questions"] == 3
    names = ["input_ids", "paragraph_ids", "question_tokens", *LABELS, *(["token_type_ids"] if types else [])]
    for index, chunk in enumerate(expected):
        assert plain(made[index]) == {name: chunk[name] for name in names}
    assert plain(made[-1]) == plain(made[len(made) - 1])
    assert plain(made[-len(made)]) == plain(made[0])
    copy = pickle.loads(pickle.dumps(made))  # as a worker process gets it
    assert plain(copy[1]) == plain(made[1])
    assert not copy.__getstate__()["_maps"]


def test_made_once_and_only_from_the_same(tokenizer, tmp_path):
    folder = tmp_path / "chunks"
    made = question_chunks(folder, ROWS, tokenizer, OPTIONS, sources=["a"], training=True, seed=5)

    def never():
        raise AssertionError("read again")
        yield

    again = question_chunks(folder, never(), tokenizer, OPTIONS, sources=["a"], training=True, seed=5)
    assert [plain(row) for row in again] == [plain(row) for row in made]
    other = QuestionOptions(max_tokens=101, stride=46, max_candidates=13, match_types=True)
    for changes in ({"sources": ["b"]}, {"seed": 6}, {"training": False}, {"options": other}):
        given = {"options": OPTIONS, "sources": ["a"], "training": True, "seed": 5} | changes
        with pytest.raises(InputError, match="was made from other rows"):
            question_chunks(folder, ROWS, tokenizer, **given)


def test_nothing_is_left_of_a_mistake(tokenizer, tmp_path):
    folder = tmp_path / "chunks"
    options = {"sources": [], "training": True, "seed": 0}
    with pytest.raises(InputError, match="the 0 rows give no chunk"):
        question_chunks(folder, [], tokenizer, OPTIONS, **options)
    row = ROWS[0]
    bare = QuestionRow(id="bare", question=row.question, text=row.text, candidates=row.candidates)
    with pytest.raises(InputError, match="'bare' has no annotations"):
        question_chunks(folder, [ROWS[1], bare], tokenizer, OPTIONS, **(options | {"training": False}))
    assert list(tmp_path.iterdir()) == []
