"""No n-gram twice but for ignored tokens: cases worked by hand, transformers' own block, and beams that obey."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.models.generation import DistinctNgrams

A, B, C, STOP = 5, 6, 7, 4


@pytest.mark.parametrize(
    ("size", "tokens", "forbidden"),
    [
        (3, [A, B, C, A, B], [C]),  # a b c … a b: c would make "a b c" twice
        (3, [A, B, C, A, B, A, A, B], [A, C]),
        (3, [A, B], []),
        (3, [A, B, STOP, A, B], []),  # "a b ." may come again
        (3, [A, STOP, B, C, A, STOP], []),  # "a . b" too
        (3, [STOP, A, B, STOP, A], []),
        (2, [A, B, A], [B]),
        (2, [A, STOP, B, STOP], []),
        (1, [A, STOP, B], [A, B]),
        (1, [], []),
    ],
)
def test_by_hand(size: int, tokens: list[int], forbidden: list[int]) -> None:
    block = DistinctNgrams(size, [STOP])
    assert block.forbidden(tokens) == forbidden
    scores = torch.zeros(1, 9)
    found = block(torch.tensor([tokens], dtype=torch.long), scores)
    assert found[0].isinf().nonzero().flatten().tolist() == forbidden
    assert not scores.any()


def test_without_ignored_tokens_it_is_the_one_of_transformers() -> None:
    draw = torch.Generator().manual_seed(0)
    for size in (2, 3):
        for length in (1, 2, 11, 30):
            ids = torch.randint(0, 4, (5, length), generator=draw)
            scores = torch.randn(5, 4, generator=draw)
            theirs = NoRepeatNGramLogitsProcessor(size)(ids, scores.clone())
            assert torch.equal(DistinctNgrams(size)(ids, scores), theirs)


def test_it_is_part_of_generation() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LongspanForConditionalGeneration(
        LongspanConfig(vocab_size=9, decoder_layers=1, max_position_embeddings=64, init_std=0.3, **sizes)
    ).eval()
    ids = torch.tensor([[0, 5, 6, 7, 2]])
    free = model.generate(ids, max_new_tokens=24, min_new_tokens=24, num_beams=2)[0].tolist()
    pairs = list(pairwise(free))
    assert len(set(pairs)) < len(pairs)
    (ignored,) = {max(set(free), key=free.count)}
    model.generation_config.no_repeat_ngram_size = 2
    model.generation_config.no_repeat_ngram_ignored = [ignored]
    found = model.generate(ids, max_new_tokens=24, min_new_tokens=24, num_beams=2)[0].tolist()
    pairs = [pair for pair in pairwise(found) if ignored not in pair]
    assert len(set(pairs)) == len(pairs)
    assert found.count(ignored) > 4
    strict = model.generate(ids, max_new_tokens=24, min_new_tokens=24, num_beams=2, no_repeat_ngram_ignored=[])[
        0
    ].tolist()
    pairs = list(pairwise(strict))
    assert len(set(pairs)) == len(pairs)


def test_no_ngrams_of_nothing() -> None:
    with pytest.raises(InputError, match="size=0"):
        DistinctNgrams(0)
