"""Reformer in and out against transformers' own classes, with the same hashes: by a `hash_seed` both draw the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from closeness import check_outputs, check_weights
from longspan import InputError, LongspanConfig, LongspanForCausalLM
from longspan.checkpoints import from_transformers, lengthen, to_transformers
from longspan.checkpoints.architectures import ARCHITECTURES
from longspan.checkpoints.loading import load_model
from longspan.checkpoints.mapping import transfer

WRITER = "ReformerModelWithLMHead"
CASES: dict[str, dict[str, Any]] = {
    WRITER: {},
    f"{WRITER} of uncounted buckets": {"num_buckets": None, "num_hashes": 3, "hash_seed": 0},
    f"{WRITER} of two hashes": {"num_buckets": [4, 6], "lsh_attn_chunk_length": 6, "hidden_act": "gelu"},
    f"{WRITER} of three hashes, long local chunks": {
        "num_buckets": [2, 4, 2],
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 6,
        "local_num_chunks_before": 2,
        "lsh_num_chunks_before": 3,
    },
    f"{WRITER} of hashed layers and one table": {"attn_layers": ["lsh", "lsh"], "axial_pos_embds": False},
    f"{WRITER} of local layers": {"attn_layers": ["local", "local"], "layer_norm_eps": 1e-3, "axial_norm_std": 0.5},
    f"{WRITER} of many heads": {"num_attention_heads": 5, "attention_head_size": 8, "hidden_dropout_prob": 0.2},
    f"{WRITER} in pieces": {"chunk_size_lm_head": 1, "chunk_size_feed_forward": 1, "initializer_range": 0.1},
    "ReformerModel": {"lsh_num_chunks_after": 1, "attn_layers": ["lsh", "local", "local"]},
    "ReformerForMaskedLM": {"local_num_chunks_after": 1},
    "ReformerForMaskedLM of wide rings": {
        "num_buckets": None,
        "lsh_attn_chunk_length": 3,
        "local_num_chunks_before": 3,
        "local_num_chunks_after": 2,
        "lsh_num_chunks_before": 0,
        "lsh_num_chunks_after": 2,
    },
    "ReformerForSequenceClassification": {"num_labels": 3, "classifier_dropout": 0.3},
    "ReformerForQuestionAnswering": {"lsh_attention_probs_dropout_prob": 0.2},
}
LENGTHS = (1, 4, 5, 8, 9, 12, 16, 17, 31, 48, 53)
"""Up to the shortest chunk transformers adds no padding; some are multiples of every chunk, some of none."""
OF_THE_FILE = {"architectures", "transformers_version", "dtype", "_name_or_path"}


def made(published, case: str, **options: Any):
    name = case.split(" ")[0]
    return published(name, is_decoder=name == WRITER, **(CASES.get(case, {}) | options))


def fresh(model):
    """transformers counts buckets once, for the first long text, and then never again."""
    for layer in model.reformer.encoder.layers if hasattr(model, "reformer") else model.encoder.layers:
        if hasattr(layer.attention.self_attention, "num_buckets") and model.uncounted:
            layer.attention.self_attention.num_buckets = None
    return model


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_on_disk_is_equal_at_every_length_and_goes_back(
    case, published, batch, widest, tmp_path, monkeypatch
):
    """In float32 transformers rounds log 2 − 10⁵ to 1/128, by which a token that sees none but itself loses a
    thousandth where there are several rounds; so ours in float32 is compared with theirs in float64, by the same
    rotations."""
    theirs = made(published, case).double()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    ours = load_model(tmp_path / "ours").eval()
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    check_weights(back, theirs, unread={"lm_head.bias"})  # transformers reads lm_head.decoder.bias
    before, after = ({k: v for k, v in m.config.to_dict().items() if k not in OF_THE_FILE} for m in (theirs, back))
    assert before == after
    for model in (theirs, back.eval()):
        model.uncounted = model.config.num_buckets is None
    names = "last_hidden_state", "logits", "start_logits", "end_logits"
    for tokens in LENGTHS:
        inputs = batch(theirs, tokens)
        for mask in (inputs["attention_mask"], None):
            given = inputs | {"attention_mask": mask}
            want, same, got = fresh(theirs)(**given), fresh(back)(**given), ours(**given)
            for name in (name for name in names if name in want):
                check_outputs(same[name], want[name])
                assert widest(want[name], got[name], mask) <= 1e-10
    got = ours.float()(**inputs)[0].double()
    draw = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *args, dtype, **rest: draw(*args, dtype=torch.float32, **rest).to(dtype))
    want = fresh(theirs.float().double())(**inputs)[0]
    assert widest(want, got, inputs["attention_mask"]) <= 1e-5


@pytest.mark.parametrize("buckets", [4, [2, 4]])
def test_gradients_of_training_are_equal(buckets, published, batch, widest):
    """Transformers trains on texts of exactly as many tokens as there are axial positions."""
    theirs = made(
        published,
        WRITER,
        num_buckets=buckets,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
    ).double()
    ours, inputs = from_transformers(theirs).train(), batch(theirs, 72)
    want, got = theirs.train()(**inputs).logits, ours(**inputs).logits
    assert widest(want, got, inputs["attention_mask"]) <= 1e-10
    upstream = torch.randn_like(want) * inputs["attention_mask"][..., None]
    want.backward(upstream)
    got.backward(upstream)
    known = ARCHITECTURES["reformer"]
    found = {name: parameter.grad for name, parameter in theirs.named_parameters() if name != "lm_head.bias"}
    wanted = {name: torch.zeros_like(parameter) for name, parameter in ours.named_parameters()}
    unreached = transfer(known.unpack(found, theirs.config), wanted, known.pairs(known.heads[WRITER], theirs))
    assert unreached == ([] if "lm_head.decoder.bias" in found else ["lm_head.bias"])
    if unreached:  # transformers before 5.24 adds no bias to the logits; ours begins at zero and learns
        wanted["lm_head.bias"] = upstream.sum((0, 1))
    torch.testing.assert_close({name: each.grad for name, each in ours.named_parameters()}, wanted)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    "published_options",
    [
        {  # google/reformer-crime-and-punishment
            "hidden_size": 256,
            "attention_head_size": 64,
            "feed_forward_size": 512,
            "vocab_size": 320,
            "lsh_attn_chunk_length": 64,
            "local_attn_chunk_length": 64,
            "axial_pos_shape": [512, 1024],
            "axial_pos_embds_dim": [64, 192],
            "max_position_embeddings": 524288,
            "num_buckets": [64, 128],
            "num_hashes": 1,
            "intermediate_size": 3072,
            "output_past": True,
            "num_chunks_before": 1,
        },
        {  # google/reformer-enwik8, narrower
            "hidden_size": 64,
            "num_attention_heads": 8,
            "attention_head_size": 8,
            "vocab_size": 258,
            "attn_layers": ["local", "local", "lsh", "local"],
            "lsh_attn_chunk_length": 256,
            "local_attn_chunk_length": 128,
            "axial_pos_shape": [128, 512],
            "axial_pos_embds_dim": [16, 48],
            "max_position_embeddings": 65536,
            "num_buckets": 512,
            "num_hashes": 4,
        },
    ],
    ids=["crime-and-punishment", "enwik8"],
)
def test_the_sizes_of_published_files(published_options, published, batch, widest, tmp_path):
    theirs = made(published, WRITER, **published_options).double()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    for tokens in (100, 333, 512):
        inputs = batch(theirs, tokens)
        assert widest(theirs(**inputs).logits, ours(**inputs).logits, inputs["attention_mask"]) <= 1e-9
    if theirs.config.num_hashes == 1:
        theirs, ours = theirs.float(), ours.float()
        assert widest(theirs(**inputs).logits, ours(**inputs).logits, inputs["attention_mask"]) <= 1e-4


@pytest.mark.slow
@torch.no_grad()
def test_it_writes_the_same_words_by_reading_the_whole_text_in_every_step(published):
    theirs = made(published, WRITER)
    ours, ids = from_transformers(theirs), torch.randint(3, 61, (2, 7))
    length = {"max_new_tokens": 23, "min_new_tokens": 23, "do_sample": False}
    want = theirs.generate(ids, use_cache=False, **length)
    assert want.tolist() == ours.generate(ids, **length).tolist()
    assert want.tolist() == ours.generate(ids, use_cache=False, **length).tolist()
    beams = theirs.generate(ids, use_cache=False, num_beams=3, **length)
    assert beams.tolist() == ours.generate(ids, num_beams=3, **length).tolist()
    assert ours(ids).cache is None
    for ask in (ours.generate, ours):
        with pytest.raises(
            InputError,
            match=r"keeps no state between steps, since .* unless chunks='bucket'; .*\(use_cache=False\), or choose",
        ):
            ask(ids, use_cache=True, **({} if ask is ours else {"max_new_tokens": 3}))


@torch.no_grad()
def test_chunks_of_buckets_keep_a_state_and_give_other_numbers(published, widest):
    """The same weights: what they would need is training on."""
    theirs = made(published, WRITER)
    plain = {"mechanism": "reformer", "chunk_tokens": 4, "head_width": 5, "bias": False, "chunks_after": 0}
    specs = [plain | {"local": True}, plain | {"chunk_tokens": 8}] * 2
    ours, ids = from_transformers(theirs, attention=specs), torch.randint(3, 61, (2, 29))
    assert widest(theirs(ids).logits, ours(ids).logits) > 0.01
    length = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    assert torch.equal(ours.generate(ids, **length), ours.generate(ids, use_cache=False, **length))
    with pytest.raises(InputError, match="is none of transformers' reformer, which has 'reformer' with chunks='publi"):
        to_transformers(ours)


def test_without_a_seed_training_draws_and_evaluation_does_not(published, batch):
    theirs = made(published, WRITER, hash_seed=None, hidden_dropout_prob=0.0)
    ours, inputs = from_transformers(theirs), batch(theirs, 53)
    assert torch.equal(ours(**inputs).logits, ours(**inputs).logits)
    ours.train()
    assert not torch.equal(ours(**inputs).logits, ours(**inputs).logits)
    assert to_transformers(ours).config.hash_seed is None
    state = torch.get_rng_state()
    ours.eval()(**inputs)
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_made_here_goes_out(batch, widest):
    layer = {"mechanism": "reformer", "chunks": "published", "chunk_tokens": 8, "head_width": 6, "bias": False}
    layer |= {"correct_duplicates": False, "buckets": [4], "chunks_after": 0, "hash_buckets": 16}
    config = LongspanConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=60, position_offset=0, position_embedding="axial", axial_shape=[5, 12],
        axial_widths=[16, 8], embedding_norm=False, normalization="pre", layer_norm_eps=1e-12, attention=layer,
        stack={"stack": "reversible", "join": "both"}, tie_word_embeddings=False, dropout=0.0,
    )  # fmt: skip
    ours = LongspanForCausalLM(config).double().eval()
    assert 0.5 < ours.decoder.embeddings.position.rows.weight.std() < 1.5
    theirs = to_transformers(ours)
    assert (type(theirs).__name__, theirs.config.hash_seed, theirs.config.attn_layers) == (WRITER, 0, ["lsh"] * 2)
    inputs = batch(theirs, 37)
    assert widest(theirs(**inputs).logits, ours(**inputs).logits, inputs["attention_mask"]) <= 1e-10
    config.layer_norm_eps, config.attention["bias"] = 1e-5, True
    with pytest.raises(InputError, match="cannot be represented by transformers' reformer"):
        to_transformers(LongspanForCausalLM(config))


def test_what_has_no_counterpart_is_one_sentence(published):
    for name in ("ReformerModel", "ReformerForSequenceClassification", "ReformerForQuestionAnswering"):
        with pytest.raises(InputError, match="is_decoder=True in this reformer checkpoint goes with ReformerModelWith"):
            from_transformers(published(name, is_decoder=True))
    with pytest.raises(InputError, match=r"num_labels=3 .* an answer has 2 ends"):
        from_transformers(published("ReformerForQuestionAnswering", num_labels=3))
    with pytest.raises(InputError, match=r"axial_shape=\[4, 18\] has 72 places, but max_position_embeddings=80"):
        from_transformers(published("ReformerModel", max_position_embeddings=80))
    with pytest.raises(InputError, match="weights do not fit the configuration"):
        from_transformers(published("ReformerModel"), attention="full")
    tied = made(published, WRITER, tie_word_embeddings=True)  # which transformers does not do either
    assert from_transformers(tied).config.tie_word_embeddings is False


def test_heads_of_the_table(published):
    theirs = {f"Reformer{end}" for end in ("Model", "ModelWithLMHead", "ForMaskedLM")}
    theirs |= {"ReformerForSequenceClassification", "ReformerForQuestionAnswering"}
    assert set(ARCHITECTURES["reformer"].heads) == theirs


@torch.no_grad()
def test_padding_may_stand_anywhere(published, widest):
    theirs = made(published, "ReformerForMaskedLM").double()
    ours, ids = from_transformers(theirs), torch.randint(3, 61, (3, 41))
    mask = (torch.rand(3, 41) < 0.6).long()
    mask[0, :9] = 0
    mask[:, 20] = 1
    want, got = (model(ids, attention_mask=mask).logits for model in (theirs, ours))
    assert widest(want, got, mask) <= 1e-10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attn_layers": ["local", "full"]}, r"attn_layers\[1\] is 'full'; choose 'local' or 'lsh'"),
        ({"attn_layers": []}, "attn_layers is .*'local' or 'lsh' for each layer"),
        ({"axial_pos_shape": [4]}, r"axial_pos_shape is \[4\]; it must be a list of two numbers"),
        ({"axial_pos_embds_dim": [10, 15]}, "config.json|cannot be loaded"),
        ({"num_buckets": [4, 3]}, r"buckets=\(4, 3\) is odd"),
        ({"num_buckets": "many"}, "num_buckets is 'many'"),
        ({"hash_seed": -1}, "hash_seed is -1; it must be at least 0"),
        ({"lsh_attn_chunk_length": 0}, "lsh_attn_chunk_length is 0; it must be at least 1"),
        ({"feed_forward_size": 10**6}, "feed_forward_size=1000000, but the weights in its folder have fewer"),
        ({"attention_head_size": 6}, "do not fit its config.json"),
    ],
    ids=str,
)
def test_a_damaged_configuration_is_one_sentence(wrong, message, published, tmp_path):
    made(published, WRITER).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    with pytest.raises(InputError, match=message):
        from_transformers(tmp_path)


def test_another_model_can_have_the_local_layers(published, batch, widest):
    theirs = published("BertForMaskedLM")
    longer = lengthen(theirs, {"mechanism": "reformer", "local": True, "chunk_tokens": 64}, max_tokens=128)
    assert longer.report.parity_hidden <= 1e-4
    inputs = batch(theirs, 37)
    assert widest(theirs(**inputs).logits, longer(**inputs).logits, inputs["attention_mask"]) <= 1e-4


@torch.no_grad()
@pytest.mark.parametrize("case", [WRITER, "ReformerForMaskedLM"])
def test_the_bias_of_the_head_is_read_where_transformers_has_one(case, published, batch, widest):
    """Published weights have one, which transformers reads from 5.24 on."""
    theirs = made(published, case).double()
    bias = theirs.state_dict().get("lm_head.decoder.bias")
    if bias is None:
        assert (
            not from_transformers(theirs)
            .state_dict()["lm_head.bias" if case == WRITER else "lm_head.decoder.bias"]
            .any()
        )
    else:
        bias.normal_()
        inputs = batch(theirs, 72)
        want, got = theirs(**inputs).logits, from_transformers(theirs)(**inputs).logits
        assert widest(want, got, inputs["attention_mask"]) <= 1e-10


def test_a_bias_that_no_head_has_is_refused():
    with pytest.raises(InputError, match="head_bias=True is for the head of LongspanForCausalLM"):
        LongspanConfig(head_bias=True, head={"head": "sequence_classification"})
    with pytest.raises(InputError, match="head_bias=True is for the head of LongspanForCausalLM"):
        LongspanConfig(head_bias=True, cutoffs=[100], attention="full")
