"""The head's own learning rate: which weights have it, how it follows the schedule, and where it means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from installed import needs_papers
from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForTokenClassification, LongspanModel
from longspan.training.recipe_file import load_recipe
from longspan.training.trainer import with_head_rate

SIZES = {"vocab_size": 37, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def test_weights_above_the_encoder_get_groups_of_their_own() -> None:
    model = LongspanForTokenClassification(LongspanConfig(**SIZES))
    names = {id(weight): name for name, weight in model.named_parameters()}
    plain = [weight for weight in model.parameters() if weight.ndim == 1]
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    with_head_rate(optimizer, model, 5e-2)
    found = {
        names[id(weight)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    assert found == {
        name: (1e-3 if name.startswith("model.") else 5e-2, 0.1 if weight.ndim > 1 else 0.0)
        for name, weight in model.named_parameters()
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 5e-4, 2.5e-2, 2.5e-2])


def test_a_model_without_a_head_has_no_use_for_it() -> None:
    model = LongspanModel(LongspanConfig(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(InputError, match=r"head_learning_rate is 0\.05, but in a LongspanModel no layers above"):
        with_head_rate(optimizer, model, 0.05)


@needs_papers
def test_the_published_settings() -> None:
    recipe = load_recipe("longformer-coref")
    assert recipe.published is not None
    assert recipe.published.scores == {"conll": 78.6}
    assert (recipe.optimisation.learning_rate, recipe.optimisation.head_learning_rate) == (1e-5, 1e-4)
    fields = recipe.task.model_fields()
    assert fields["global_tokens"] == "none"
    wanted = {"segment_tokens": 4096, "crossing": False, "antecedents": 50, "span_width": 30, "spans_per_word": 0.4}
    assert wanted.items() <= fields["head"].items()


@needs_papers
@pytest.mark.slow
@pytest.mark.parametrize("name", ["coref-small", "longformer-coref"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--smoke", "--output", str(tmp_path / "run")]) == 0
    assert "conll" in capsys.readouterr().out
    text = tmp_path / "story.txt"
    text.write_text("Ada met Carl. She saw him.\n", encoding="utf-8")
    assert main(["coref", str(text), "--model", str(tmp_path / "run"), "--format", "json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["sentences"] == [["Ada", "met", "Carl", "."], ["She", "saw", "him", "."]]
