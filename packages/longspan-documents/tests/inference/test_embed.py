"""Vectors of texts: alone as in a batch, documents of any length, and weights in 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

from longspan.attention.features.packed import worth_packing
from longspan.errors import InputError
from longspan_documents.inference.encoders import batches_of, bundled_encoder, mean_vector


def test_batches_hold_every_text_once_and_have_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan_documents.inference.encoders.BATCH_TOKENS", 10)
    lengths = [3, 50, 1, 4, 4, 2, 1]
    found = batches_of(lengths)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 10 for batch in found)


def test_the_mean_of_vectors_has_length_one() -> None:
    assert mean_vector(np.array([[1.0, 0], [0, 1]])) == pytest.approx([0.5**0.5] * 2)
    assert not mean_vector(np.zeros((0, 2))).any()


@pytest.mark.parametrize("texts", ["", "  \n", ["words", ""], [3]])
def test_texts_without_words_are_refused(texts) -> None:
    from longspan_documents.inference.embed import embed

    with pytest.raises(InputError, match="says nothing"):
        embed(texts)


TEXTS = ["", "One.", "The river rose. " * 40, "Two words", "It rained all day and nobody came. " * 3, "\u00fc" * 9]


def test_texts_in_one_row_have_the_vectors_that_they_have_alone() -> None:
    """By the bundled encoder, whose batches of texts of unlike length are read without padding."""
    encoder = bundled_encoder()
    alone = np.stack([encoder.embed([text])[0] for text in TEXTS])
    rows: list[tuple[int, ...]] = []
    hook = encoder.model.model["encoder"].embeddings.register_forward_hook(
        lambda _, inputs, __: rows.append(tuple(inputs[0].shape))
    )
    try:
        np.testing.assert_allclose(encoder.embed(TEXTS), alone, atol=1e-6)
    finally:
        hook.remove()
    lengths = [len(encoder.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    assert rows == [(1, sum(max(length, 1) for length in lengths))]  # of an empty text one unknown token


def test_what_has_little_padding_stays_padded() -> None:
    assert worth_packing([10, 5])
    assert not worth_packing([10, 10])
    assert not worth_packing([100, 95, 90])
    assert not worth_packing([10, 0])
    assert not worth_packing([])
