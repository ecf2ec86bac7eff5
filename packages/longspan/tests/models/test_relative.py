"""One table of relative positions for all fusion layers of an encoder."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.models import (
    LongspanForSentenceScoring,
    LongspanModel,
)

WINDOW = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 5}
FUSION = {"mechanism": "fusion", "left_tokens": 3, "right_tokens": 2, "kernel": 3, "stride": 2}
FUSION |= {"pooled_left_tokens": 7, "pooled_right_tokens": 7}
FUSION |= {"relative_span": 5, "global_buckets": 3, "global_span": 29}
ONE_LEVEL = FUSION | {"two_level": False}


def randomise(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def test_all_layers_read_the_encoders_table(make_config):
    model = LongspanModel(make_config(num_hidden_layers=3, attention=[ONE_LEVEL, WINDOW, FUSION]))
    tables = {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if "near" in name or "far" in name
    }
    assert tables == {"encoder.relative.near.weight": (10, 24), "encoder.relative.far.weight": (6, 24)}
    assert not any("relative" in name for name in LongspanModel(make_config()).state_dict())


def test_a_model_equals_its_layers_one_by_one_with_tables_of_their_own(make_config, make_batch):
    config = make_config(num_hidden_layers=3, attention=[ONE_LEVEL, WINDOW, FUSION], position_embedding="none")
    model = randomise(LongspanModel(config))
    ids, mask = make_batch(31, 17)
    is_global = torch.zeros(2, 31, dtype=torch.bool).index_fill(1, torch.tensor([0, 13]), True)
    encoder = model.encoder
    with torch.no_grad():
        want = encoder.embeddings(ids)
        tokens = Tokens(mask=mask.bool(), is_global=is_global)
        for layer, block in enumerate(encoder.layers):
            alone = config.layer_attention(layer).build(width=24, heads=3).eval()
            state = block.attention.state_dict()
            if "fusion" in str(config.layer_attention(layer).mechanism):
                state |= {f"positions.{name}": tensor for name, tensor in encoder.relative.state_dict().items()}
            alone.load_state_dict(state)
            middle = block.attention_norm(want + alone(want, tokens))
            want = block.feed_forward_norm(middle + block.feed_forward(middle))
        got = model(ids, mask, is_global).last_hidden_state
    assert torch.allclose(got[mask.bool()], want[mask.bool()], atol=1e-5)


@pytest.mark.parametrize("name", ["relative_span", "global_buckets", "global_span"])
def test_layers_that_ask_for_different_tables_are_refused(name, make_config):
    with pytest.raises(InputError, match=f"layer 2 has {name}=17, that of layer 0 has .*share one table"):
        make_config(num_hidden_layers=3, attention=[FUSION, WINDOW, FUSION | {name: 17}])


def test_tables_start_normal_and_global_projections_as_copies(make_config):
    config = make_config(attention=FUSION | {"relative_span": 400, "global_buckets": 400, "global_span": 400})
    model = LongspanModel(config)
    for table in model.encoder.relative():
        assert abs(float(table.detach().std()) / config.init_std - 1) < 0.05
    for layer in model.encoder.layers:
        attention = layer.attention
        assert abs(float(attention.position_key.weight.detach().std()) / config.init_std - 1) < 0.15
        assert torch.equal(attention.position_key.weight, attention.global_position_key.weight)
        assert torch.equal(attention.position_query.weight, attention.global_position_query.weight)
        assert not attention.pooled_value.weight.any()


def test_tables_that_were_not_saved_start_like_new_ones(make_config, tmp_path):
    LongspanModel(make_config()).save_pretrained(tmp_path)
    wide = FUSION | {"relative_span": 400}
    model = LongspanModel.from_pretrained(tmp_path, attention=wide)
    near = model.encoder.relative.near.weight
    assert not near.is_meta
    assert abs(float(near.detach().std()) / model.config.init_std - 1) < 0.05
    attention = model.encoder.layers[0].attention
    assert torch.equal(attention.position_key.weight, attention.global_position_key.weight)


def test_sentence_layers_have_tables_of_their_own(make_config, make_batch):
    head = {"head": "sentence_scoring", "layers": 1, "attention": ONE_LEVEL | {"relative_span": 7}}
    config = make_config(attention=FUSION, head=head)
    model = randomise(LongspanForSentenceScoring(config))
    names = [name for name in model.state_dict() if name.endswith("near.weight")]
    assert len(names) == 2
    ids, mask = make_batch(12, 9)
    sentences = torch.arange(12).expand(2, 12) // 4
    assert torch.isfinite(model(ids, mask, sentence_ids=sentences.masked_fill(mask == 0, -1)).scores[0]).all()
