"""Published models that choose one of several texts: taken in from disk, equal, given back, lengthened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import longspan
from longspan.checkpoints import from_transformers, to_transformers

KINDS = ("Bert", "Roberta", "XLMRoberta", "Camembert")
SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "max_position_embeddings": 43, "pad_token_id": 1}


@pytest.fixture(params=KINDS)
def published(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZES)
    model = getattr(transformers, f"{request.param}ForMultipleChoice")(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def choices(tokens: int) -> dict[str, torch.Tensor]:
    """Two questions with three choices each, of unlike lengths."""
    ids = torch.randint(3, 61, (2, 3, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = (torch.arange(tokens) < torch.tensor([[[tokens], [1], [tokens - 3]]]).clamp(min=1)).long().repeat(2, 1, 1)
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask, "labels": torch.tensor([2, 0])}


@torch.no_grad()
def test_it_comes_in_and_goes_back(published: Any, tmp_path: Path) -> None:
    published.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    assert type(ours) is longspan.models.LongspanForMultipleChoice
    back = to_transformers(ours, architecture=published.config.model_type)
    assert type(back) is type(published)
    assert all(torch.equal(weight, back.state_dict()[name]) for name, weight in published.state_dict().items())
    for tokens in (1, 17, 41):
        given = choices(tokens)
        expected = published(**given)
        for model in (ours, back):
            found = model(**given)
            torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_it_is_lengthened(published: Any) -> None:
    model: Any = longspan.lengthen(published, "longformer", 300, left_tokens=43, right_tokens=43)
    assert max(model.report.parity_hidden, model.report.parity_logits) <= 1e-5
    given = choices(17)
    no_globals = {"global_attention_mask": torch.zeros_like(given["input_ids"])}
    expected = published(**given).logits
    torch.testing.assert_close(model(**given, **no_globals).logits, expected, atol=1e-5, rtol=1e-5)
    assert model(**choices(300)).logits.shape == (2, 3)
