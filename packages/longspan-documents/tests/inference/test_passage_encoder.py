"""The bundled encoder of passages: transformers' BERT with its weights, and the second look of `longspan answer`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longspan_documents.inference.encoders import restored
from longspan_documents.inference.passage_encoder import FOLDER, PassageEncoder, SecondLook, passage_encoder

TEXTS = [
    "Who may end the contract?",
    "Either party may terminate this agreement by giving thirty days' written notice to the other.",
    "Costs of keeping the house in order are borne by its owner. " * 12,
    "x",
]
NAMES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
"""Modules of a block here, and those of transformers' BERT."""


def bert() -> torch.nn.Module:
    """transformers' BERT with the stored weights."""
    from transformers import BertConfig, BertModel

    ours = restored(load_file(FOLDER / "model.safetensors"))
    below = "model.encoder."
    words = ours[below + "embeddings.token.weight"]
    config = BertConfig(vocab_size=len(words), hidden_size=words.shape[1], num_hidden_layers=6, intermediate_size=1536)
    model = BertModel(config, add_pooling_layer=False).eval()
    theirs = {
        "embeddings.word_embeddings.weight": words,
        "embeddings.position_embeddings.weight": ours[below + "embeddings.position.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(2, words.shape[1]),
    }
    for part in ("weight", "bias"):
        theirs[f"embeddings.LayerNorm.{part}"] = ours[f"{below}embeddings.norm.{part}"]
        for layer in range(6):
            for one, other in NAMES.items():
                theirs[f"encoder.layer.{layer}.{other}.{part}"] = ours[f"{below}layers.{layer}.{one}.{part}"]
    model.load_state_dict(theirs)
    return model


def test_vectors_are_means_of_berts_states() -> None:
    encoder, model = passage_encoder(), bert()
    head = encoder.model
    found = encoder.embed([*TEXTS, "  "])
    assert not found[-1].any()
    for text, vector in zip(TEXTS, found, strict=False):
        ids = torch.tensor([encoder.tokenizer(text)["input_ids"]])
        assert ids[0, [0, -1]].tolist() == [encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id]
        with torch.inference_mode():
            states = model(input_ids=ids).last_hidden_state[0]
            shares = torch.nn.functional.softplus(head.weight(states)[:, 0])
            right = torch.nn.functional.normalize(head.projection(shares @ states), dim=0)
        assert np.abs(vector - right.numpy()).max() < 2e-5


def test_what_is_longer_than_the_table_of_positions_is_read_up_to_its_end() -> None:
    encoder = passage_encoder()
    (ids,) = encoder.encode(["word " * 900])
    assert len(ids) == 512
    assert (ids[0], ids[-1]) == (encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id)
    long, cut = encoder.embed(["word " * 900, "word " * 510])
    assert long == pytest.approx(cut, abs=1e-6)


class Counting(PassageEncoder):
    """Knows what it was asked for."""

    def __init__(self) -> None:
        plain = passage_encoder()
        super().__init__(plain.model, plain.tokenizer)
        self.read: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.read += texts
        return super().embed(texts)


def test_a_second_look_reads_each_passage_once() -> None:
    encoder = Counting()
    passages = [*TEXTS[1:], "It rained."]
    look = SecondLook(encoder, passages)
    vectors = passage_encoder().embed(passages)
    asked = {question: passage_encoder().embed([question])[0] for question in ("Who may leave?", "And when?")}
    for question, numbers in (("Who may leave?", [2, 0]), ("And when?", [0, 3, 2])):
        right = [float(vectors[number] @ asked[question]) for number in numbers]
        assert look.cosines(question, numbers).tolist() == pytest.approx(right, abs=1e-5)
    assert sorted(encoder.read) == sorted(["Who may leave?", passages[2], passages[0], "And when?", passages[3]])
    assert look.cosines("And when?", [0, 3, 2]).tolist() == look.cosines("And when?", [0, 3, 2]).tolist()


def test_it_knows_other_words_for_the_same() -> None:
    question, answer, others = TEXTS[0], TEXTS[1], TEXTS[2:]
    look = SecondLook(passage_encoder(), [answer, *others])
    cosines = look.cosines(question, range(3))
    assert cosines.argmax() == 0
    assert cosines[0] > 2 * cosines[1]
