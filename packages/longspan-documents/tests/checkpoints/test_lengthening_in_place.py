"""T5, Flan-T5, mT5, UMT5 and LongT5 from folders, lengthened, against their own classes told by a mask of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import longspan
from longspan import InputError
from longspan.checkpoints.lengthening.in_place import read_further
from longspan.checkpoints.published import load_published
from longspan.patterns import parse
from longspan.training.models import published_model
from longspan.training.sections import Model
from longspan_documents.inference.verbs import Decoding
from tiny_writers import TEXT, word_tokenizer, words

SIZES: dict[str, Any] = {"vocab_size": 45, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 3}
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}
SIZES |= {"pad_token_id": 0, "eos_token_id": 2, "n_positions": 41}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5", {}),
    "Flan-T5": ("T5", GATED),
    "mT5": ("MT5", GATED),
    "UMT5": ("UMT5", GATED),
}
LOCAL: dict[str, Any] = {"local_radius": 7, "encoder_attention_type": "local"}
MEANS = LOCAL | {"encoder_attention_type": "transient-global"}


def write(folder: Path, kind: str, **options: Any) -> Path:
    """A random checkpoint as it is published, in which tokens and distances count."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | options))
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def longer(source: Path, folder: Path, **options: Any) -> Path:
    """What `lengthen` makes of it, with its tokenizer, in a folder."""
    longspan.lengthen(source, "longformer", 4096, **options).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def ours(folder: Path) -> Any:
    return load_published(folder, "sequences")[0]


def theirs(folder: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()


def decoder_tokens(source: Path, eager: Any) -> Tensor:
    """Three tokens for a decoder, or one where transformers' own two ways differ: UMT5 of 5.17 sees later tokens by
    SDPA, which its decoder keeps in a lengthened model."""
    several, given = torch.tensor([[0, 7, 9]] * 2), inputs(17)
    by_sdpa = transformers.AutoModelForSeq2SeqLM.from_pretrained(source, attn_implementation="sdpa").eval()
    logits = (model(**given, decoder_input_ids=several).logits for model in (eager, by_sdpa))
    return several if torch.allclose(*logits, atol=1e-4) else several[:, :1]


def inputs(tokens: int) -> dict[str, Tensor]:
    ids = torch.randint(3, 45, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens - 5)]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def in_windows(model: Any, given: dict[str, Tensor], pattern: str) -> dict[str, Any]:
    """What a decoder reads when their own encoder is told which pairs see each other, by the least score for others."""
    tokens = given["input_ids"].shape[1]
    index = torch.arange(tokens)
    visible = parse(pattern).visible(index[:, None], index[None]) & given["attention_mask"][:, None, None].bool()
    scores = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    states = model.get_encoder()(given["input_ids"], attention_mask=scores)
    return {"encoder_outputs": states, "attention_mask": given["attention_mask"]}


def equal(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("case", KINDS)
def test_a_folder_becomes_a_longer_one(case: str, tmp_path: Path) -> None:
    kind, options = KINDS[case]
    source = write(tmp_path / "source", kind, **options)
    folder, narrow = (
        longer(source, tmp_path / "long"),
        longer(source, tmp_path / "narrow", left_tokens=6, right_tokens=3),
    )
    model, peer = ours(folder), theirs(source)
    written = {"decoder_input_ids": decoder_tokens(source, peer)}
    for tokens in (1, 17, 41):  # as long as it could read
        given = inputs(tokens)
        equal(model(**given, **written).logits, peer(**given, **written).logits)
        for beams in (1, 3):
            choice = {"num_beams": beams, "max_new_tokens": 11, "min_new_tokens": 11}
            assert model.generate(**given, **choice).tolist() == peer.generate(**given, **choice).tolist()
    given = inputs(131)
    for place, pattern in ((folder, "window(41)"), (narrow, "window(6, 3)")):
        model, states = ours(place), in_windows(peer, given, pattern)
        equal(model(**given, **written).logits, peer(**states, **written).logits)
        # transformers reads the folder as the model that it is, with full attention.
        equal(theirs(place)(**given, **written).logits, peer(**given, **written).logits)


def test_the_report_and_what_the_folder_says(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "T5")
    model: Any = longspan.lengthen(source, "longformer", 4096)
    report = model.report
    assert (report.tokens_before, report.tokens_after, report.parity_tokens) == (41, 4096, 41)
    assert max(report.parity_hidden, report.parity_logits) <= 1e-5
    assert report.parameters["copied"] == sum(each.numel() for each in theirs(source).parameters())
    assert "layers 0–1: longformer(left_tokens=41, right_tokens=41)" in str(report)
    model.save_pretrained(tmp_path / "long")
    said = json.loads((tmp_path / "long" / "config.json").read_text(encoding="utf-8"))
    assert (said["n_positions"], said["longspan_pattern"]) == (4096, "window(41, 41)")
    assert said["architectures"] == ["T5ForConditionalGeneration"]
    assert "attn_implementation" not in said
    # Again: the windows stay, unless others are asked for.
    again: Any = longspan.lengthen(tmp_path / "long", max_tokens=5000)
    assert (again.config.n_positions, again.config.longspan_pattern) == (5000, "window(41, 41)")
    assert again.report.parity_hidden <= 1e-5
    wider: Any = longspan.lengthen(model, {"mechanism": "longformer", "left_tokens": 99}, 5000)
    assert (wider.config.longspan_pattern, model.config.longspan_pattern) == ("window(99, 41)", "window(41, 41)")
    # Files that say no longest input: 1,024 tokens, which mT5 read in training.
    unsaid: Any = longspan.lengthen(write(tmp_path / "mt5", "MT5", n_positions=None), "longformer", 4096)
    assert (unsaid.report.tokens_before, unsaid.config.longspan_pattern) == (1024, "window(1024, 1024)")


def test_a_source_in_memory_stays_as_it_is(tmp_path: Path) -> None:
    def state(model: Any) -> list[Any]:
        configs = model.config, model.encoder.config
        return [(config.to_dict(), config._attn_implementation) for config in configs]

    source = theirs(write(tmp_path / "source", "T5"))
    before = state(source)
    model = longspan.lengthen(source, "longformer", 300, left_tokens=5, right_tokens=5)
    assert state(source) == before != state(model)
    half: Any = longspan.lengthen(source.to(torch.bfloat16), "longformer", 300)
    assert half.dtype == torch.bfloat16
    assert half.report.parity_logits <= 1e-5  # compared in float32


def test_a_long_text_takes_linear_memory(memory: Callable[..., Any], tmp_path: Path) -> None:
    model = ours(longer(write(tmp_path / "source", "T5"), tmp_path / "long"))
    with torch.no_grad(), memory() as made:
        written = model.generate(torch.full((1, 4001), 7), max_new_tokens=3, min_new_tokens=3)
    assert written.shape == (1, 4)
    assert made.largest < 4001 * 4001 / 8


@torch.no_grad()
def test_a_long_document_is_summarised_whole_in_windows(tmp_path: Path) -> None:
    source, text = write(tmp_path / "source", "T5"), TEXT * 9
    folder = longer(source, tmp_path / "long", left_tokens=9, right_tokens=9)
    summary = longspan.summarize(text, model=folder, decoding=Decoding(beams=1, max_tokens=12))
    ids = torch.tensor([word_tokenizer()(text)["input_ids"]])
    assert summary.tokens == ids.shape[1] > 5 * 41
    assert summary.note is None or "parts" not in summary.note
    peer = theirs(source)
    states = in_windows(peer, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "window(9)")
    expected = peer.generate(**states, num_beams=1, max_new_tokens=12)
    assert words(summary) == words(word_tokenizer().decode(expected[0], skip_special_tokens=True))
    assert len(words(summary)) > 2
    # Beyond the new length it keeps its windows.
    model = ours(folder)
    assert read_further(model, 4096)
    assert model.get_encoder().config.longspan_pattern == "window(9, 9)"


@torch.no_grad()
def test_an_encoder_of_such_a_folder_has_its_windows(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "T5")
    encoder = load_published(longer(source, tmp_path / "long", left_tokens=6, right_tokens=3), "states")[0]
    assert type(encoder) is transformers.T5EncoderModel
    given = inputs(131)
    real = given["attention_mask"].bool()
    states = in_windows(theirs(source), given, "window(6, 3)")["encoder_outputs"][0]
    equal(encoder(**given).last_hidden_state[real], states[real])
    # Saved by transformers it has to be told again, and says so.
    encoder.save_pretrained(tmp_path / "encoder")
    alone = transformers.T5EncoderModel.from_pretrained(tmp_path / "encoder").eval()
    with pytest.raises(InputError, match=r"longspan.use_attention\(model, model.config.longspan_pattern\)"):
        alone(**given)
    longspan.use_attention(alone, alone.config.longspan_pattern)
    equal(alone(**given).last_hidden_state[real], states[real])


@torch.no_grad()
def test_leading_tokens_that_see_everything_are_kept_in_a_folder(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "T5")
    longspan.use_attention(theirs(source), "window(6) | first(2)", max_tokens=400).save_pretrained(tmp_path / "long")
    word_tokenizer().save_pretrained(tmp_path / "long")
    given, written = inputs(131), torch.tensor([[0, 7, 9]] * 2)
    states = in_windows(theirs(source), given, "window(6) | first(2)")
    model = ours(tmp_path / "long")
    equal(model(**given, decoder_input_ids=written).logits, theirs(source)(**states, decoder_input_ids=written).logits)
    with pytest.raises(InputError, match=r"more than windows; call longspan.use_attention"):
        longspan.lengthen(tmp_path / "long", "longformer", 4096)


@torch.no_grad()
def test_longt5_keeps_its_own_windows(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "LongT5", **LOCAL)
    folder = longer(source, tmp_path / "long")
    model, peer, given = ours(folder), theirs(source), inputs(131)
    assert model.config.n_positions == model.get_encoder().config.n_positions == 4096
    written = torch.tensor([[0, 7, 9]] * 2)
    equal(model(**given, decoder_input_ids=written).logits, peer(**given, decoder_input_ids=written).logits)
    assert longspan.summarize(TEXT * 9, model=folder, decoding=Decoding(max_tokens=5)).tokens > 5 * 41
    again: Any = longspan.lengthen(source, "longformer", 99)
    assert "longformer(left_tokens=7, right_tokens=7)" in str(again.report)


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a second level": ("T5", {}, {"attention": "poolingformer"}, "choose attention='longformer'"),
    "a misspelt one": ("T5", {}, {"attention": "longfromer"}, "did you mean 'longformer'"),
    "layers that differ": (
        "T5",
        {},
        {"attention": [{"layers": "0", "mechanism": "longformer"}, {"layers": "1", "mechanism": "full"}]},
        "all layers of T5ForConditionalGeneration share one",
    ),
    "one layer": ("T5", {}, {"layers": "1"}, "all layers of T5ForConditionalGeneration share one"),
    "a list and an option": ("T5", {}, {"attention": ["longformer"] * 2, "left_tokens": 3}, "set it inside the list"),
    "holes": ("T5", {}, {"dilation": 2}, "dilation=2 has no place in T5ForConditionalGeneration"),
    "a window of letters": ("T5", {}, {"left_tokens": "wide"}, "left_tokens is 'wide'"),
    "fewer tokens": ("T5", {}, {"max_tokens": 40}, "max_tokens=40 is less than the 41 tokens"),
    "half a token": ("T5", {}, {"max_tokens": 99.5}, "max_tokens=99.5 is no whole number"),
    "drawn positions": ("T5", {}, {"new_positions": "random"}, "needs a table of absolute positions"),
    "means of blocks": ("LongT5", MEANS, {}, "or give a LongT5 of the type 'local'"),
    "other windows than LongT5's": ("LongT5", LOCAL, {"right_tokens": 9}, "7 tokens to each side and keeps them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    kind, options, arguments, says = REFUSED[case]
    source = write(tmp_path / "source", kind, **options)
    with pytest.raises(InputError, match=says):
        longspan.lengthen(source, **{"attention": "longformer", "max_tokens": 4096, **arguments})


def test_another_head_a_damaged_record_and_a_recipe_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "T5")
    with pytest.raises(InputError, match="no place in Longspan's blocks"):
        published_model(None, Model(source=str(source), max_tokens=300), source)
    said = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for change, says in (
        ({"longspan_pattern": "wndow(3)"}, r"has longspan_pattern='wndow\(3\)': .*names 'wndow'"),
        ({"longspan_pattern": 5}, "longspan_pattern is 5; it must be a text"),
        ({"num_layers": 10**9}, "num_layers=1000000000, but the weights"),
        ({"architectures": ["T5ForSequenceClassification"]}, "is not lengthened; give T5ForConditionalGeneration"),
    ):
        (source / "config.json").write_text(json.dumps(said | change), encoding="utf-8")
        with pytest.raises(InputError, match=says):
            longspan.lengthen(source, "longformer", 300)
    # Old files name a class that transformers no longer has.
    (source / "config.json").write_text(json.dumps(said | {"architectures": ["T5WithLMHeadModel"]}), encoding="utf-8")
    assert type(longspan.lengthen(source, "longformer", 300)) is transformers.T5ForConditionalGeneration
