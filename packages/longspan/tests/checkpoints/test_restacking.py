"""Top-down inference from published weights: every layer of BART's encoder is taken over, and the rest is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from longspan.checkpoints import from_transformers
from longspan.checkpoints.decomposing import restacked
from longspan.checkpoints.lengthening.lengthen import lengthen
from longspan.cli import main
from longspan.errors import InputError
from longspan.tasks.classification.classification import Classification
from longspan.tasks.summaries.importance import Importance
from longspan.training.models import published_model
from longspan.training.sections import Model

STACK = {"stack": "top_down", "kernel": 5, "stride": 3, "segment_layers": 1}
SIZES = {"d_model": 12, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 61}
SIZES |= {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "encoder_layers": 3, "decoder_layers": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    bart = BartForConditionalGeneration(BartConfig(**SIZES, max_position_embeddings=32, init_std=0.2))
    bart.save_pretrained(tmp_path / "bart")
    return tmp_path / "bart"


@torch.no_grad()
def test_two_thirds_of_the_layers_are_bottom_up_and_every_weight_is_taken_over(folder):
    published = BartForConditionalGeneration.from_pretrained(folder).eval()
    longer = lengthen(folder, "longformer", 97, left_tokens=40, right_tokens=40)
    model = restacked(longer, STACK)
    assert torch.equal(model.encoder.embeddings.position.weight[34:66], model.encoder.embeddings.position.weight[2:34])
    ids = torch.randint(3, 61, (2, 30))
    ours = model(ids, decoder_input_ids=ids[:, :7], output_hidden_states=True)
    theirs = published(ids, decoder_input_ids=ids[:, :7], output_hidden_states=True)
    # The bottom-up layers are BART's; so are all of them, where nothing is read of the segments.
    for layer in range(3):
        torch.testing.assert_close(
            ours.encoder_hidden_states[layer], theirs.encoder_hidden_states[layer], atol=2e-5, rtol=1e-5
        )
    model.encoder.layers[2].cross_attention_norm.weight.zero_()
    torch.testing.assert_close(model(ids, decoder_input_ids=ids[:, :7]).logits, theirs.logits, atol=2e-5, rtol=1e-5)


def test_what_was_copied_and_what_is_new_is_reported(folder):
    source = from_transformers(folder)
    model = restacked(source, STACK)
    report, cross = model.stack_report, 4 * (12 * 12 + 12)
    assert report.copied == sum(each.numel() for each in source.parameters())
    assert report.new["cross_attention"] == cross
    assert report.new["cross_attention_norm"] == 2 * 12
    assert report.new["segments"] == 1024 * 12 + cross + 4 * 12 + 2 * 12 * 20 + 32
    assert set(model.new_weights) == set(model.state_dict()) - set(source.state_dict())
    assert f"{report.copied:,} parameters copied · " in str(report)
    assert not any(each.isnan().any() for each in model.parameters())
    with pytest.raises(InputError, match=r"no place for 'encoder\.layers\..*, whose stack is 'top_down'"):
        restacked(model, "sequential")
    with pytest.raises(InputError, match=r"model\.stack is for encoders"):
        restacked(source, "decomposed")


@pytest.mark.parametrize("pooling", ["average", "importance"])
def test_what_reads_segments_can_be_lengthened_again(folder, pooling):
    """The table of segment positions is repeated as that of tokens is; a short text comes out as before."""
    short = restacked(from_transformers(folder), STACK | {"max_segments": 10, "pooling": pooling})
    longer = lengthen(short, "longformer", 97, left_tokens=40, right_tokens=40)
    assert longer.config.stack["max_segments"] == 32
    table, before = (each.encoder.layers.segments.position.weight for each in (longer, short))
    assert torch.equal(table, before.repeat(4, 1)[:32])
    assert longer.report.parity_logits < 1e-5
    importance = torch.rand(1, 97) if pooling == "importance" else None
    longer(torch.randint(3, 61, (1, 97)), importance=importance, decoder_input_ids=torch.full((1, 2), 5))
    assert lengthen(short, "full", 32).config.stack["max_segments"] == 10


def test_the_command_says_what_is_new(folder, tmp_path, capsys):
    options = ["--attention", "longformer", "--max-tokens", "90", "--stack", '{"stack": "top_down"}']
    assert main(["lengthen", str(folder), *options, "--output", str(tmp_path / "long")]) == 0
    out = capsys.readouterr().out
    assert "stack          top_down: " in out
    assert "new in segments" in out


def test_a_tagger_takes_over_the_encoder_of_bart_without_its_decoder(folder):
    options = {"attention": "longformer", "stack": STACK, "max_tokens": 90}
    model = published_model(Importance(max_tokens=90), Model(source=str(folder), **options), folder)
    assert model.config.num_labels == 1
    assert not model.config.is_encoder_decoder
    own, source = model.model.encoder.state_dict(), from_transformers(folder).encoder.state_dict()
    shared = [name for name in source if own[name].shape == source[name].shape]
    assert set(source) - set(shared) == {"embeddings.position.weight"}
    assert all(torch.equal(own[name], source[name]) for name in shared)
    assert set(model.new_weights) >= {"classifier.weight", "classifier.bias"}
    assert not any("decoder" in name for name in model.state_dict())
    with pytest.raises(InputError, match="this task needs a LongspanForSequenceClassification"):
        published_model(Classification(max_tokens=90), Model(source=str(folder)), folder)
