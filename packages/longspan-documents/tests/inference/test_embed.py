"""Vectors of texts: alone as in a batch, documents of any length, and weights in 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

import longspan
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

    with pytest.raises(InputError, match="has no words"):
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


@pytest.mark.parametrize(
    "text",
    [
        "\u4eca\u65e5\u306f\u5929\u6c17\u304c\u3044\u3044\u3067\u3059\u3002",
        "\u041c\u043e\u0441\u043a\u0432\u0430 \u0441\u0442\u043e\u043b\u0438\u0446\u0430 "
        "\u0420\u043e\u0441\u0441\u0438\u0438",
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6211\u4eec\u5f88\u597d\u3002",
    ],
    ids=["Japanese", "Russian", "Chinese"],
)
def test_what_the_bundled_encoder_cannot_read_has_no_vector(text: str) -> None:
    """All such texts have nearly one vector; one error names the text and the remedy."""
    for embed_text in (longspan.embed, longspan.embed_document):
        with pytest.raises(InputError, match=r"does not know .* of the words of .*encoder="):
            embed_text(text)
    with pytest.raises(InputError, match="does not know"):
        longspan.embed(["A sentence in English.", text])


def test_a_word_that_is_unknown_leaves_a_text_its_vector() -> None:
    vectors = longspan.embed(
        ["The Japanese word \u5929\u6c17 means weather.", "Das Wetter ist heute sch\u00f6n.", "10,000 = 10^4"]
    )
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
