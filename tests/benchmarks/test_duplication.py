"""The duplication table: its rows, what full attention of shared queries is, and other rounds with equal weights."""

from __future__ import annotations

import torch

from duplication import (
    EVALUATED,
    FULL,
    HEADS,
    PROBE,
    PUBLISHED,
    TRAINED,
    WIDTH,
    WORD,
    accuracy,
    cells,
    model,
    spread,
    with_rounds,
)
from longspan.attention import attention_config


def test_a_row_is_a_word_written_twice() -> None:
    row = PROBE.row(3, 5, "causal")
    word = row.ids[1 : WORD + 1]
    assert row.ids.tolist() == [127, *word, 127, *word]
    assert row.labels.tolist() == [-100] * (WORD + 1) + [*word, -100]
    assert 0 <= word.min() <= word.max() < 127


def test_one_bucket_is_full_attention_of_shared_queries() -> None:
    trained = model(FULL)
    layer = attention_config(trained.config.layer_attention(0)).build(width=WIDTH, heads=HEADS, causal=True).eval()
    hidden = torch.randn(2, PROBE.tokens, WIDTH)
    query = layer.split_heads(layer.query(hidden))
    value = layer.split_heads(layer.value(hidden))
    scores = query @ torch.nn.functional.normalize(query, dim=-1).mT
    seen = torch.ones(PROBE.tokens, PROBE.tokens, dtype=torch.bool).tril(-1)
    seen[0, 0] = True  # who sees nobody else sees itself
    context = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
    expected = layer.output(layer.merge_heads(context))
    assert torch.allclose(layer(hidden), expected, atol=1e-4)


def test_other_rounds_have_the_same_weights_and_other_rotations() -> None:
    trained = model(2)
    other, again = with_rounds(trained, 4, 1), with_rounds(trained, 4, 2)
    names = {name for name, _ in trained.named_parameters()}
    assert all(torch.equal(trained.state_dict()[name], other.state_dict()[name]) for name in names)
    one, two = (next(value for name, value in each.named_buffers() if "rotations" in name) for each in (other, again))
    assert one.shape[1] == 4
    assert not torch.equal(one, two)
    assert 0 <= accuracy(trained, 1, count=32) < 10


def test_the_table_is_shaped_as_published() -> None:
    assert tuple(PUBLISHED) == TRAINED
    assert all(len(line) == len(EVALUATED) for line in PUBLISHED.values())
    rows = [{"rounds": 4, "percent": {str(each): 50.0 + seed for each in EVALUATED}} for seed in (0, 2)]
    lines = cells(rows)
    assert [line[0] for line in lines[:4]] == ["**full**", "full, published", "**LSH-4**", "LSH-4, published"]
    assert lines[0][1:] == ["–"] * 5
    assert lines[2][1:] == ["51.0 (50.0 to 52.0)"] * 5
    assert lines[3][1:] == ["0.8", "100", "99.9", "99.4", "91.9"]
    assert spread([12.345]) == spread([12.345, 12.346]) == "12.3"
