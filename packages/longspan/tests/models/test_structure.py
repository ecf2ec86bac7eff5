"""Structure from a model's inputs to its layers, and where it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration, LongspanModel

ETC: Any = {"mechanism": "etc", "radius_tokens": 2, "clamp_tokens": 2, "hard_global_to_long": True}
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
IDS = torch.arange(3, 23)[None]
GLOBALS = torch.arange(20)[None] < 2
OWNERS = torch.cat([torch.full((2,), -1), torch.zeros(9), torch.ones(9)])[None].long()


def model(**options: Any) -> LongspanModel:
    torch.manual_seed(0)
    return LongspanModel(LongspanConfig(**SIZES | {"attention": ETC} | options)).eval()


@pytest.mark.parametrize(
    "options",
    [{}, {"stack": "universal"}, {"stack": "reversible", "normalization": "pre"}, {"num_memory_tokens": 3}],
)
def test_a_summary_token_sees_its_own_words(options):
    own = model(**options)
    with torch.no_grad():
        before = own(IDS, global_attention_mask=GLOBALS, belongs_to=OWNERS).last_hidden_state[0]
        changed = IDS.clone()
        changed[0, 15] += 7
        after = own(changed, global_attention_mask=GLOBALS, belongs_to=OWNERS.int()).last_hidden_state[0]
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_a_document_alone_and_padded_on_the_left_is_the_same():
    own = model(position_embedding="none")
    pad = torch.zeros(1, 4)
    inputs = {
        "input_ids": torch.cat([pad.long(), IDS], 1),
        "attention_mask": torch.cat([pad, torch.ones(1, 20)], 1),
        "global_attention_mask": torch.cat([pad, GLOBALS], 1),
        "belongs_to": torch.cat([pad.long() + 9, OWNERS], 1),
    }
    with torch.no_grad():
        alone = own(IDS, global_attention_mask=GLOBALS, belongs_to=OWNERS).last_hidden_state
        torch.testing.assert_close(own(**inputs).last_hidden_state[:, 4:], alone, rtol=1e-5, atol=1e-5)


def test_a_writer_reads_a_structured_source():
    torch.manual_seed(0)
    config = LongspanConfig(**SIZES, attention=ETC, decoder_layers=1, decoder_attention="full")
    writer = LongspanForConditionalGeneration(config).eval().double()  # a loss of new weights moves little
    source = {"global_attention_mask": GLOBALS, "belongs_to": OWNERS}
    with torch.no_grad():
        states = writer.encoder(IDS, **source)
        options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 2, "do_sample": False}
        written = writer.generate(IDS, **source, **options)
        assert torch.equal(written, writer.generate(IDS, encoder_outputs=states, **options))
        plain = writer(IDS, GLOBALS | True, GLOBALS, labels=IDS).loss
        assert abs(writer(IDS, GLOBALS | True, labels=IDS, **source).loss - plain) > 1e-10


def test_structure_is_refused_where_nothing_reads_it():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"attention": "longformer"}, "'longformer' reads no structure"),
        ({"stack": "top_down"}, "stack 'top_down' does not support structure"),
    ]
    for options, wrong in cases:
        with pytest.raises(InputError, match=wrong):
            model(**options)(IDS, belongs_to=OWNERS)
    own = model()
    with pytest.raises(InputError, match="holds 0 in row 0, which has 0 global tokens"):
        own(IDS, belongs_to=OWNERS)
    for wrong in (OWNERS.float(), OWNERS[:, :3]):
        with pytest.raises(InputError, match="belongs_to is torch"):
            own(IDS, global_attention_mask=GLOBALS, belongs_to=wrong)
