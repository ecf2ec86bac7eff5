"""Every model says what it is and which command takes it."""

from __future__ import annotations

import pytest

import longspan.models
from longspan.cli import COMMANDS
from longspan.inference.model_use import USES, architecture_of, continues_texts, other_use, use_of


@pytest.mark.parametrize(
    ("name", "labels", "says"),
    [
        ("RobertaForSequenceClassification", 3, "a classifier: give it to `longspan classify --model`"),
        ("BertForSequenceClassification", 1, "a cross-encoder: give it to `longspan answer --reranker`"),
        ("DebertaForQuestionAnswering", 2, "a model of questions: give it to `longspan answer --model`"),
        ("T5EncoderModel", None, "an encoder: give it to `longspan answer --encoder`"),
        ("ModernBertForMaskedLM", None, "an encoder: give it to"),
        ("MarianMTModel", None, "a model that writes: give it to `longspan summarize --model`"),
        ("GPT2LMHeadModel", None, "a language model: give it to `longspan generate` if it was trained here"),
    ],
)
def test_what_a_model_is(name: str, labels: int | None, says: str) -> None:
    assert f"model 'x' is a {name}, which sings; it is {says}" in str(other_use("x", name, "which sings", labels))


def test_a_class_that_nobody_knows() -> None:
    assert use_of("SwinForImageClassification") is None
    assert str(other_use("x", "SwinForImageClassification", "which cannot write")).endswith(
        "cannot write; give another"
    )


def test_every_class_of_ours_is_known_and_every_command_is_there() -> None:
    names = [name for name in longspan.models.__all__ if name.startswith("LongspanFor") or name == "LongspanModel"]
    assert [name for name in names if use_of(name) is None] == []
    assert {use.command for use in USES.values()} - {""} <= set(COMMANDS)


def test_language_models_are_told_by_their_class() -> None:
    assert continues_texts("llama", "LlamaForCausalLM")
    assert continues_texts("gpt2", "GPT2LMHeadModel")
    assert continues_texts("gemma3", "Gemma3ForConditionalGeneration")  # reads pictures too
    assert not continues_texts("t5", "T5ForConditionalGeneration")
    assert architecture_of({}) == architecture_of({"architectures": None}) == ""
