"""How far the pieces of a document must overlap: as far as its layers reach, wherever a token stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan.attention.layers import reach
from longspan.models import LongspanConfig
from longspan.models.encoder import Encoder
from longspan.models.heads import sentence_network
from longspan.models.heads.sentence_network import reach_of, sums_by_sentence

SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "position_embedding": "sinusoidal",
    "position_period": 64.0,
    "normalization": "pre",
    "dropout": 0.0,
}


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (["poolingformer"] * 2, (2 * (512 + 128), 4)),
        ([{"mechanism": "fusion", "two_level": False}] * 2, (256, 1)),
        ([{"mechanism": "longformer", "dilation": [1, 3]}, "longformer"], (3 * 256 + 256, 1)),
    ],
)
def test_reach_is_that_of_the_receptive_field(attention: list[Any], expected: tuple[int, int]) -> None:
    config = LongspanConfig(**SIZES, num_hidden_layers=2, attention=attention)
    assert reach_of(config) == expected
    layers = [config.layer_attention(layer) for layer in range(2)]
    sides = [reach(layers, length=4001, token=2000 + phase)[-1] for phase in range(expected[1])]
    assert max(max(pair) for pair in sides) == expected[0]


def test_what_sees_everything_has_no_reach() -> None:
    assert reach_of(LongspanConfig(**SIZES, num_hidden_layers=2, attention=["longformer", "full"])) is None


@pytest.mark.parametrize("windows", ["shared", "per_query"])
def test_pieces_give_the_states_of_the_whole(windows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = {"pooled_left_tokens": 9, "pooled_right_tokens": 7, "stride": 3, "windows": windows, "init": "normal"}
    both = {"mechanism": "poolingformer", "left_tokens": 3, "right_tokens": 2, **pools}
    config = LongspanConfig(**SIZES, num_hidden_layers=3, attention=[both] * 3)
    torch.manual_seed(0)
    encoder = Encoder(config).double().eval()
    ids = torch.randint(3, 31, (701,))
    sentences = torch.arange(701) // 7
    whole = sums_by_sentence(encoder, ids, sentences)
    monkeypatch.setattr(sentence_network, "SEGMENT", 60)
    torch.testing.assert_close(sums_by_sentence(encoder, ids, sentences), whole)
