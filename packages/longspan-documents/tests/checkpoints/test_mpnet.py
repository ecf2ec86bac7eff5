"""MPNet from folders, lengthened, against its own classes told by a mask of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import longspan
from longspan import InputError
from longspan.checkpoints.sources import load_any
from longspan.cli import main
from longspan.patterns import parse
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.embed import embed

SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
LONGEST = 41
TEXT = "The tenant pays for repairs. It rained all day. Nobody came to the house by the river!"


@cache
def tokenizer() -> Any:
    """Whose padding is 1, as MPNet's."""
    return train_tokenizer([TEXT] * 9, 300)


def write(folder: Path, kind: str) -> Path:
    """A random checkpoint as it is published, in which tokens, places and distances count."""
    torch.manual_seed(0)
    config = transformers.MPNetConfig(vocab_size=len(tokenizer()), max_position_embeddings=LONGEST + 2, **SIZES)
    model = getattr(transformers, f"MPNet{kind}")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def theirs(folder: Path, kind: str) -> Any:
    return getattr(transformers, f"MPNet{kind}").from_pretrained(folder, attn_implementation="eager").eval()


def inputs(tokens: int) -> tuple[Tensor, Tensor]:
    """Ids with padding, whose id is 1, behind the second row."""
    ids = torch.randint(3, 45, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens - 5)]])).long()
    return ids.masked_fill(mask == 0, 1), mask


def pairs(mask: Tensor, pattern: str) -> Tensor:
    """What is added to every score so that pairs outside of the pattern, and padding, see nothing, `(B, 1, T, T)`."""
    index = torch.arange(mask.shape[1])
    visible = parse(pattern).visible(index[:, None], index[None]) & mask[:, None, None].bool()
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)


def result(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    output = model(ids, mask)
    return output["logits"] if "logits" in output else output["last_hidden_state"]


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_a_folder_becomes_a_longer_one(kind: str, tmp_path: Path) -> None:
    source, name = write(tmp_path / "source", kind), "start_logits" if kind.endswith("Answering") else None
    kinds: dict[str, Any] = {"long": {}, "narrow": {"left_tokens": 6, "right_tokens": 3}}
    for folder, options in kinds.items():
        longspan.lengthen(source, max_tokens=300, **options).save_pretrained(tmp_path / folder)

    def compare(one: Any, other: Any, ids: Tensor, mask: Tensor, other_mask: Tensor | None = None) -> None:
        left, right = one(ids, mask), other(ids, mask if other_mask is None else other_mask)
        key = name or ("logits" if "logits" in left else "last_hidden_state")
        real = mask.bool() if left[key].shape[:2] == mask.shape else slice(None)
        torch.testing.assert_close(left[key][real], right[key][real], atol=1e-5, rtol=1e-5)

    peer = theirs(source, kind)
    for tokens in (1, 17, LONGEST):  # as long as it could read
        compare(load_any(tmp_path / "long", in_place=True), peer, *inputs(tokens))
    ids, mask = inputs(289)
    for folder, pattern in (("long", f"window({LONGEST})"), ("narrow", "window(6, 3)")):
        ours, full = load_any(tmp_path / folder, in_place=True), theirs(tmp_path / folder, kind)
        assert type(ours) is type(full)
        # transformers reads the folder as the model that it is, with a longer table and full attention.
        table = full.base_model.embeddings.position_embeddings.weight
        old = peer.base_model.embeddings.position_embeddings.weight
        assert torch.equal(table[: LONGEST + 2], old)
        assert torch.equal(table[LONGEST + 2 : 2 * LONGEST + 2], old[2:])
        compare(ours, full, ids, mask, pairs(mask, pattern))


def test_the_report_and_what_the_folder_says(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "ForMaskedLM")
    model: Any = longspan.lengthen(source, max_tokens=300)
    report = model.report
    assert (report.tokens_before, report.tokens_after, report.parity_tokens) == (LONGEST, 300, LONGEST)
    assert max(report.parity_hidden, report.parity_logits) <= 1e-5
    assert report.parameters["tiled"] == 302 * 24
    assert sum(report.parameters.values()) == sum(each.numel() for each in model.parameters())
    assert "41 → 300 tokens (position rows repeated 7.317 times; 2 reserved rows kept)" in str(report)
    model.save_pretrained(tmp_path / "long")
    said = json.loads((tmp_path / "long" / "config.json").read_text(encoding="utf-8"))
    assert (said["max_position_embeddings"], said["longspan_pattern"]) == (302, f"window({LONGEST}, {LONGEST})")
    assert "attn_implementation" not in said
    again: Any = longspan.lengthen(tmp_path / "long", max_tokens=400)
    assert (again.config.max_position_embeddings, again.config.longspan_pattern) == (402, said["longspan_pattern"])
    drawn: Any = longspan.lengthen(source, max_tokens=300, new_positions="random")
    assert drawn.report.parameters["drawn"] == 302 * 24


def test_a_source_in_memory_stays_as_it_is(tmp_path: Path) -> None:
    source, (ids, mask) = theirs(write(tmp_path / "source", "Model"), "Model"), inputs(30)
    before = source.config.to_dict(), source.config._attn_implementation, result(source, ids, mask)
    longspan.lengthen(source, max_tokens=300, left_tokens=5, right_tokens=5)
    assert (source.config.to_dict(), source.config._attn_implementation) == before[:2]
    assert torch.equal(result(source, ids, mask), before[2])


def test_any_pattern_and_gradients(tmp_path: Path) -> None:
    """`use_attention` in a model that trains, against their own under a mask of pairs."""
    source = write(tmp_path / "source", "ForMaskedLM")
    ours, peer = theirs(source, "ForMaskedLM"), theirs(source, "ForMaskedLM")
    ids, mask = inputs(LONGEST)
    pattern = "window(4) | first(2)"
    assert longspan.use_attention(ours, pattern) is ours
    for model, given in ((ours, mask), (peer, pairs(mask, pattern))):
        model(ids, given).logits[mask.bool()].square().sum().backward()
    for (name, one), (_, other) in zip(ours.named_parameters(), peer.named_parameters(), strict=True):
        if other.grad is not None:
            scale = max(1.0, float(other.grad.abs().max()))  # that of what all keys share is 0 but for rounding
            torch.testing.assert_close(one.grad / scale, other.grad / scale, atol=2e-5, rtol=1e-4, msg=name)
    with pytest.raises(InputError, match="output_attentions=True is not offered"):
        ours(ids, mask, output_attentions=True)
    with pytest.raises(InputError, match=r"needs rotary positions.*longspan.lengthen"):
        longspan.use_attention(peer, pattern, max_tokens=300)


def test_a_long_text_takes_linear_memory(memory: Callable[..., Any], tmp_path: Path) -> None:
    model = longspan.lengthen(write(tmp_path / "source", "Model"), max_tokens=4001)
    with torch.no_grad(), memory() as made:
        model(torch.full((1, 4001), 7))
    assert made.largest < 4001 * 4001 / 8


def test_an_encoder_of_sentences_is_lengthened_with_its_pooling(tmp_path: Path) -> None:
    """As sentence-transformers publishes it: the body's weights, and the name of the model that it was trained from."""
    source, folder = write(tmp_path / "source", "Model"), tmp_path / "long"
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["MPNetForMaskedLM"]}))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (source / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30}))
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (source / "modules.json").write_text(json.dumps([*modules, {"path": "2_Normalize", "type": "x.Normalize"}]))
    assert main(["lengthen", str(source), "--max-tokens", "300", "--output", str(folder)]) == 0
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 300
    short, long = TEXT[:28], " ".join([TEXT] * 6)
    np.testing.assert_allclose(embed([short], encoder=folder), embed([short], encoder=source), atol=1e-6)
    tokens = tokenizer()(long, return_tensors="pt")
    assert 2 * LONGEST < tokens["input_ids"].shape[1] <= 300
    with torch.no_grad():
        mask = tokens["attention_mask"]
        full = theirs(folder, "Model")
        states = full(tokens["input_ids"], pairs(mask, f"window({LONGEST})")).last_hidden_state[0]
    mean = states.mean(0).numpy()
    np.testing.assert_allclose(embed([long], encoder=folder)[0], mean / np.linalg.norm(mean), atol=1e-5)
