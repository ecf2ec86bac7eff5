"""`generate()` against first principles: greedy by hand, beams by exhaustive search, scores by teacher forcing."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import GenerationConfig

from longspan.errors import InputError
from longspan.models import LongspanForConditionalGeneration

BEAMS = [
    {"num_beams": 1},
    {"num_beams": 4},
    {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True, "min_new_tokens": 4},
]


@pytest.fixture
def model(make_config):
    torch.manual_seed(3)
    config = make_config(decoder_layers=2, decoder_attention_heads=2, global_tokens="first", init_std=0.4)
    return LongspanForConditionalGeneration(config).eval()


def write(model, ids, mask, **options):
    return model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **({"max_new_tokens": 12} | options))


def log_probability(model, ids, mask, sequence):
    """Sum of log p of the tokens behind the start token, up to and including the end token."""
    logits = model(ids, mask, decoder_input_ids=sequence[None, :-1]).logits[0]
    tokens = sequence[1:]
    ends = (tokens == 2).nonzero()
    count = int(ends[0]) + 1 if len(ends) else len(tokens)
    return logits.log_softmax(-1)[range(count), tokens[:count]].sum()


@torch.no_grad()
def test_greedy_is_the_most_likely_token_each_time(model, make_batch):
    ids, mask = make_batch(19)
    expected = torch.tensor([[2]])
    while expected.shape[1] < 13 and (expected.shape[1] == 1 or expected[0, -1] != 2):
        logits = model(ids, mask, decoder_input_ids=expected).logits
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(write(model, ids, mask), expected)


@pytest.mark.parametrize("options", BEAMS)
def test_cached_equals_uncached(model, options, make_batch):
    ids, mask = make_batch(19, 7, 12)
    assert torch.equal(write(model, ids, mask, **options), write(model, ids, mask, use_cache=False, **options))


@pytest.mark.parametrize("options", BEAMS)
def test_a_document_alone_or_in_a_batch_gives_the_same_text(model, options, make_batch):
    ids, mask = make_batch(19, 7, 12)
    together = write(model, ids, mask, **options)
    count = options.get("num_return_sequences", 1)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = write(model, ids[row : row + 1, :length], None, **options)
        batched = together[row * count : (row + 1) * count]
        assert torch.equal(batched[:, : alone.shape[1]], alone)
        assert (batched[:, alone.shape[1] :] == 1).all()


@torch.no_grad()
def test_beam_scores_are_sums_of_log_probabilities(model, make_batch):
    ids, mask = make_batch(19)
    options = {"num_beams": 5, "num_return_sequences": 5, "length_penalty": 0.0}
    output = write(model, ids, mask, return_dict_in_generate=True, output_scores=True, **options)
    expected = torch.stack([log_probability(model, ids, mask, sequence) for sequence in output.sequences])
    torch.testing.assert_close(output.sequences_scores, expected, atol=1e-4, rtol=1e-5)
    assert (output.sequences_scores.diff() <= 0).all()


@torch.no_grad()
def test_enough_beams_find_the_best_of_all_sequences(make_config, make_batch):
    config = make_config(vocab_size=4, decoder_layers=1, decoder_attention_heads=2, init_std=0.6)
    model = LongspanForConditionalGeneration(config).eval()
    ids = torch.tensor([[0, 3, 3, 0, 3]])
    found = write(model, ids, None, num_beams=16, length_penalty=0.0, max_new_tokens=3)[0]
    best = max(
        float(log_probability(model, ids, None, torch.tensor([2, *tokens])))
        for tokens in itertools.product(range(4), repeat=3)
    )
    assert float(log_probability(model, ids, None, found)) == pytest.approx(best, abs=1e-5)


def test_the_source_is_encoded_and_projected_once(model, make_batch):
    calls: list[str] = []
    model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    for layer in model.decoder.layers:
        layer.cross_attention.key.register_forward_hook(lambda _, inputs, __: calls.append(f"{len(inputs[0])} rows"))
    ids, mask = make_batch(19, 7)
    write(model, ids, mask, num_beams=4)
    assert calls == ["encoder", "2 rows", "2 rows"]


def test_a_global_mask_reaches_the_encoder(model, make_batch):
    ids, mask = make_batch(19, 7)
    chosen = torch.zeros_like(mask)
    chosen[:, 1:4] = 1
    encoded = model.get_encoder()(ids, mask, chosen)
    expected = write(model, ids, mask, encoder_outputs=encoded, num_beams=3)
    assert torch.equal(write(model, ids, mask, global_attention_mask=chosen, num_beams=3), expected)
    assert not torch.equal(encoded[0], model.get_encoder()(ids, mask)[0])


def test_sampling_repeats_with_its_seed_and_fills_every_row(model, make_batch):
    ids, mask = make_batch(19, 7)
    texts = []
    for _ in range(2):
        torch.manual_seed(5)
        texts.append(model.generate(ids, attention_mask=mask, do_sample=True, num_return_sequences=3, max_new_tokens=9))
    assert texts[0].shape[0] == 6
    assert torch.equal(*texts)
    assert len({tuple(row) for row in texts[0].tolist()}) > 2


def test_a_preallocated_cache_writes_the_same_text(model, make_batch):
    ids, mask = make_batch(19, 7)
    for options in BEAMS[:2]:
        static = write(model, ids, mask, cache_implementation="static", disable_compile=True, **options)
        assert torch.equal(static, write(model, ids, mask, **options))


@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("cache", [None, "static"])
def test_any_number_of_layers(encoder_layers, decoder_layers, cache, make_config, make_batch):
    config = make_config(num_hidden_layers=encoder_layers, decoder_layers=decoder_layers, decoder_attention_heads=2)
    model = LongspanForConditionalGeneration(config).eval()
    ids, mask = make_batch(19, 7)
    kind = {} if cache is None else {"cache_implementation": cache, "disable_compile": True}
    assert torch.equal(write(model, ids, mask, **kind), write(model, ids, mask, use_cache=False))


def test_more_tokens_than_positions_are_refused_before_the_first_is_written(model, make_config, make_batch):
    config = make_config(decoder_layers=1, decoder_attention_heads=2, max_decoder_position_embeddings=9)
    model = LongspanForConditionalGeneration(config).eval()
    ids, mask = make_batch(19)
    assert write(model, ids, mask, max_new_tokens=9, min_new_tokens=9).shape == (1, 10)
    with pytest.raises(InputError, match=r"max_new_tokens=10 .* at most 9"):
        write(model, ids, mask, max_new_tokens=10)
    with pytest.raises(InputError, match=r"max_new_tokens=8 .* at most 7"):
        write(model, ids, mask, max_new_tokens=8, decoder_input_ids=torch.tensor([[2, 5, 7]]))
    settings = GenerationConfig.from_dict({**model.generation_config.to_dict(), "max_length": 11})
    with pytest.raises(InputError, match=r"max_length=11 .* at most 10"):
        model.generate(ids, generation_config=settings)


def test_forced_first_token_and_blocked_repeats(model, make_batch):
    ids, mask = make_batch(19)
    text = write(model, ids, mask, num_beams=3, forced_bos_token_id=7, no_repeat_ngram_size=2, min_new_tokens=12)[0]
    assert text[1] == 7
    pairs = list(itertools.pairwise(text[1:].tolist()))
    assert len(set(pairs)) == len(pairs)
