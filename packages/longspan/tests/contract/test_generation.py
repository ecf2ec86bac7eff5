"""Text by every mechanism that keeps a state, in every model that writes: the cached way is the way without a cache."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.generation import BaseStreamer

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration

PROMPT, NEW = 11, 9
"""Together longer than the windows and blocks of every form, so that states drop what is behind them."""
WAYS = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "top_k": 9},
    "sampled-beams": {"do_sample": True, "num_beams": 3},
}


def build(kind, *mechanisms):
    """A tiny model that writes, one layer per mechanism; its weights are large, so that no two tokens are close."""
    torch.manual_seed(3)
    layers, plan = [mechanism.to_dict() for mechanism in mechanisms], {}
    if kind is LongspanForConditionalGeneration:
        plan = {"decoder_layers": len(layers), "decoder_attention": layers, "num_hidden_layers": 1}
    else:
        plan = {"num_hidden_layers": len(layers), "attention": layers}
    sizes = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2, "init_std": 0.4}
    return kind(LongspanConfig(max_position_embeddings=97, **sizes, **plan)).eval()


KINDS = [
    pytest.param(LongspanForCausalLM, id="decoder"),
    pytest.param(LongspanForConditionalGeneration, id="encoder-decoder", marks=pytest.mark.variant),
]


@pytest.fixture(params=KINDS)
def writer(request, stateful_form):
    return build(request.param, stateful_form.config, stateful_form.config)


@pytest.fixture(params=KINDS)
def plain_writer(request, plain_stateful_form):
    """One for each mechanism: what it hands to `generate` does not depend on its options."""
    return build(request.param, plain_stateful_form.config, plain_stateful_form.config)


@pytest.fixture
def prompt():
    """Two prompts, the second padded on the left for a decoder, on the right for an encoder."""
    return torch.randint(3, 61, (2, PROMPT))


def write(model, ids, mask=None, **options):
    torch.manual_seed(5)
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW} | options
    return model.generate(ids, attention_mask=torch.ones_like(ids) if mask is None else mask, **options)


def test_cached_equals_uncached(writer, prompt):
    """Of greedy text, `test_greedy_text_is_the_loop_over_the_likeliest_token` says it."""
    for name, way in WAYS.items():
        assert torch.equal(write(writer, prompt, **way), write(writer, prompt, use_cache=False, **way)), name


def test_a_padded_prompt_writes_what_it_writes_alone(writer, prompt):
    mask = torch.ones_like(prompt)
    left = isinstance(writer, LongspanForCausalLM)
    mask[1, slice(4) if left else slice(-4, None)] = 0
    alone = prompt[1:, mask[1] == 1]
    for way in ({}, WAYS["beams"]):
        together = write(writer, prompt.masked_fill(mask == 0, 1), mask, **way)
        rows = len(together) // 2
        assert torch.equal(together[rows:, -NEW:], write(writer, alone, **way)[:, -NEW:])


class Heard(BaseStreamer):
    """Every token in the order in which it is streamed."""

    def __init__(self):
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_streamed_tokens_are_those_returned(plain_writer, prompt):
    heard = Heard()
    written = write(plain_writer, prompt[:1], streamer=heard)
    assert heard.tokens == written[0].tolist()
    assert heard.ended


def drafts(writer, form):
    """What proposes the next tokens: a shorter model, the model itself, or the text that is there."""
    helps = {"model": {"assistant_model": build(type(writer), form.config)}}
    helps["itself"] = {"assistant_model": build(type(writer), form.config, form.config)}
    # transformers 5.17 then writes nothing at all in an encoder-decoder, with its own BART neither
    if not (writer.config.is_encoder_decoder and transformers.__version__ < "5.23"):
        helps["prompt"] = {"prompt_lookup_num_tokens": 5}
    return helps


@pytest.mark.parametrize("kind", KINDS)
def test_assisted_decoding_writes_the_same(kind, croppable_form, prompt):
    writer = build(kind, croppable_form.config, croppable_form.config)
    ids = prompt[:1].repeat(1, 2)  # with something to look up
    alone = write(writer, ids, use_cache=False)
    for draft, way in drafts(writer, croppable_form).items():
        assert torch.equal(write(writer, ids, **way), alone), draft


@pytest.mark.parametrize("kind", KINDS)
def test_assisted_decoding_is_refused_where_a_state_cannot_go_back(kind, uncroppable_form, prompt):
    writer = build(kind, uncroppable_form.config, uncroppable_form.config)
    for way in drafts(writer, uncroppable_form).values():
        with pytest.raises(ValueError, match="stateful"):
            write(writer, prompt[:1].repeat(1, 2), **way)


@pytest.mark.slow
def test_prompts_may_be_read_in_pieces_and_continued(stateful_form, prompt):
    model = build(LongspanForCausalLM, stateful_form.config, stateful_form.config)
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    whole = write(model, prompt, mask, use_cache=False)
    for size in (1, 4, 100):
        assert torch.equal(write(model, prompt, mask, prefill_chunk_size=size), whole)
    part = write(model, prompt, mask, max_new_tokens=6, min_new_tokens=6, return_dict_in_generate=True)
    own = type(model.decoder.layers[0].attention.new_state())
    assert [type(layer) for layer in part.cache.layers] == [own, own]
    assert torch.equal(part.sequences, whole[:, : PROMPT + 6])
    grown = torch.cat([mask, mask.new_ones(2, 6)], 1)
    options = {"max_new_tokens": NEW - 6, "min_new_tokens": NEW - 6, "cache": part.cache}
    assert torch.equal(write(model, part.sequences, grown, **options), whole)


def test_greedy_text_is_the_loop_over_the_likeliest_token(writer, prompt):
    """Step by step without a cache, as the textbook has it."""
    pair = writer.config.is_encoder_decoder
    written = torch.full((2, 1), writer.config.decoder_start_token_id) if pair else prompt
    first = written.shape[1]
    for _ in range(NEW):
        given = {"input_ids": prompt, "decoder_input_ids": written} if pair else {"input_ids": written}
        with torch.no_grad():
            logits = writer(**given, use_cache=False).logits[:, -1]
        logits[:, writer.config.eos_token_id] = -torch.inf  # a text of as many tokens as `write` asks for
        written = torch.cat([written, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(write(writer, prompt)[:, first:], written[:, first:])


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_returned_beside_the_text_has_its_shapes(plain_writer, prompt, beams):
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    found = write(plain_writer, prompt, num_beams=beams, output_hidden_states=True, **wanted)
    rows, pair, width = 2 * beams, plain_writer.config.is_encoder_decoder, plain_writer.config.hidden_size
    assert torch.equal(found.sequences, write(plain_writer, prompt, num_beams=beams))
    assert [tuple(step.shape) for step in found.scores] == [(rows, 61)] * NEW
    assert [tuple(step.shape) for step in found.logits] == [(rows, 61)] * NEW
    steps = found.decoder_hidden_states if pair else found.hidden_states
    read = [1 if pair else PROMPT] + [1] * (NEW - 1)
    assert [[tuple(layer.shape) for layer in step] for step in steps] == [[(rows, n, width)] * 3 for n in read]
    if pair:
        assert [tuple(layer.shape) for layer in found.encoder_hidden_states] == [(2, PROMPT, width)] * 2
    if beams == 1:
        chosen = torch.stack(found.scores).argmax(-1).T
        assert torch.equal(chosen, found.sequences[:, -NEW:])


def test_text_goes_on_from_embeddings_and_weights_are_refused(plain_writer, prompt):
    table = plain_writer.get_input_embeddings()
    mask = torch.ones_like(prompt)
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    embedded = plain_writer.generate(inputs_embeds=table(prompt), attention_mask=mask, **options)
    assert torch.equal(embedded[:, -NEW:], write(plain_writer, prompt)[:, -NEW:])
    with pytest.raises(InputError, match="output_attentions=True is not offered"):
        plain_writer(prompt, output_attentions=True)
