"""What every head must do, over every entry of `HEADS`: whoever adds one has a line to write below, and no test."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import longspan.models
from installed import HAS_DOCUMENTS, HAS_PAPERS
from longspan.errors import InputError
from longspan.models import LongspanConfig, model_with
from longspan.models.heads import HEADS, head_spec

TOKENS, PADDED = 13, 4
IDS = torch.randint(3, 37, (2, TOKENS), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[1, -PADDED:] = 0
PLACES = (torch.arange(TOKENS) // 5).expand(2, TOKENS).masked_fill(MASK == 0, -1)
"""Sentence, or paragraph, of each token: three in the first row, two in the second."""
ONE = torch.tensor([1, 0])
TAUGHT = torch.nn.functional.normalize(torch.randn(2, 3, 384, generator=torch.Generator().manual_seed(0)), dim=-1)
TAUGHT[1, 2] = 0
COUNTS = {
    "natural_questions": "max_paragraphs",
    "sentence_scoring": "max_sentences",
    "sentence_embedding": "max_sentences",
    "coreference": "max_words",
    "candidate_scoring": "max_candidates",
}
"""Static sizes that compiled and exported heads need."""

INPUTS: dict[str, dict[str, Any]] = {
    "natural_questions": {"paragraph_ids": PLACES},
    "sentence_scoring": {"sentence_ids": PLACES},
    "sentence_embedding": {"sentence_ids": PLACES},
    "coreference": {"word_ids": PLACES},
    "candidate_scoring": {"candidate_ids": PLACES},
}
LABELS: dict[str, dict[str, Any]] = {
    "masked_lm": {"labels": IDS.masked_fill(MASK == 0, -100)},
    "replaced_tokens": {"labels": IDS % 2},
    "sequence_classification": {"labels": ONE},
    "token_classification": {"labels": (IDS % 2).masked_fill(MASK == 0, -100)},
    "question_answering": {"start_positions": ONE, "end_positions": ONE + 2},
    "natural_questions": {
        "start_positions": ONE,
        "end_positions": ONE + 2,
        "paragraph_labels": ONE,
        "answer_types": ONE,
    },
    "candidate_scoring": {"labels": ONE},
    "multiple_choice": {"labels": ONE},
    "multi_hop": {
        "relevance_labels": (IDS % 2).float().masked_fill(PLACES != 0, -100),
        "evidence_labels": (IDS % 2).float().masked_fill(PLACES != 1, -100),
        "start_positions": torch.tensor([[1, 6], [2, -100]]),
        "end_positions": torch.tensor([[2, 7], [2, -100]]),
        "answer_types": ONE,
    },
    "sentence_scoring": {"labels": torch.tensor([[0.0, 1, 0.5], [1, 0, -100]])},
    "sentence_embedding": {"labels": TAUGHT},
    "coreference": {"labels": torch.tensor([[[0, 0, 5], [1, 2, 5]], [[0, 1, 2], [-100, -100, -100]]])},
}
# No sentence is global, so nothing would train projections of their own.
SENTENCES = {"mechanism": "longformer", "left_tokens": 1, "separate_global_projections": False}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "masked_lm": [{"activation": "relu"}],
    "sequence_classification": [{"layers": "pooler"}, {"activation": "gelu", "input_dropout": 0.0}],
    "multiple_choice": [{"layers": "pooler"}],
    "natural_questions": [{"null_paragraph": True, "answer_types": 5}],
    "multi_hop": [{"loss_weights": (1.0, 2.0, 0.5, 3.0)}],
    "sentence_scoring": [{"layers": 2, "attention": SENTENCES}],
    "coreference": [
        {"singletons": True, "refinements": 1, "spans_per_word": 2.0, "hidden_layers": 2, "hidden_width": 16}
    ],
}
"""Further options under which the laws hold."""
CASES = [{"head": name, **options} for name in HEADS for options in ({}, *OTHERS.get(name, []))]


def make(spec: dict[str, Any], **changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 37,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 41,
        "attention": {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2},
        "global_tokens": "first",
        "dropout": 0.0,
        "init_std": 0.2,
        "pooler": spec.get("layers") == "pooler",
        "head": spec,
    }
    return model_with(spec["head"])(LongspanConfig(**sizes | changes)).eval()


def of(table: dict[str, dict[str, Any]], spec: dict[str, Any]) -> dict[str, Any]:
    return table.get(spec["head"], {})


@pytest.fixture(params=CASES, ids=lambda spec: "-".join(map(str, [spec["head"], *list(spec)[1:]])))
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def texts(
    spec: dict[str, Any], ids: torch.Tensor = IDS, mask: torch.Tensor = MASK
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and the mask as the head takes them: two texts for each row where it chooses one, `(B, 2, T)`."""
    if spec["head"] != "multiple_choice":
        return ids, mask
    return torch.stack([ids, 39 - ids], 1), mask[:, None].repeat(1, 2, 1)


def tensors(output: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def test_a_spec_is_plain_data_and_back(spec: dict[str, Any]) -> None:
    data = head_spec(spec).to_dict()
    assert data == json.loads(json.dumps(data))
    assert head_spec(data) == head_spec(spec)
    assert {"head", *(field.name for field in fields(HEADS[spec["head"]]))} == set(data)


def test_labels_add_a_loss_and_change_nothing_else(spec: dict[str, Any]) -> None:
    model, given = make(spec), of(INPUTS, spec)
    with torch.no_grad():
        plain = tensors(model(*texts(spec), **given))
        labelled = tensors(model(*texts(spec), **given, **of(LABELS, spec)))
        parts = model(*texts(spec), return_dict=False, **given)
    assert "loss" not in plain
    loss = labelled.pop("loss")
    assert loss.shape == ()
    assert loss.isfinite()
    assert plain.keys() == labelled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(labelled[name], value)
    assert len(parts) == len(plain)


def test_the_gradient_of_the_loss_reaches_every_parameter(spec: dict[str, Any]) -> None:
    model = make(spec).train()
    model(*texts(spec), **of(INPUTS, spec), **of(LABELS, spec)).loss.backward()
    # What global tokens alone read is reached through them; every head here has one.
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_a_padded_row_is_as_it_is_alone(spec: dict[str, Any]) -> None:
    model, given = make(spec), of(INPUTS, spec)
    real = TOKENS - PADDED
    with torch.no_grad():
        padded = tensors(model(*texts(spec), **given))
        ids, mask = texts(spec, IDS[1:, :real], MASK[1:, :real])
        alone = tensors(model(ids, mask, **{name: value[1:, :real] for name, value in given.items()}))
    for name, value in alone.items():
        row = padded[name][1]
        shared = row[tuple(slice(size) for size in value.shape[1:])]
        torch.testing.assert_close(shared, value[0], atol=1e-5, rtol=1e-5)


def test_a_row_that_is_padded_on_the_left_is_as_it_is_alone(spec: dict[str, Any]) -> None:
    model, given = make(spec), of(INPUTS, spec)
    real = TOKENS - PADDED
    with torch.no_grad():
        rolled = {name: value.roll(PADDED, 1) for name, value in given.items()}
        padded = tensors(model(*texts(spec, IDS.roll(PADDED, 1), MASK.flip(1)), **rolled))
        ids, mask = texts(spec, IDS[1:, :real], MASK[1:, :real])
        alone = tensors(model(ids, mask, **{name: value[1:, :real] for name, value in given.items()}))
    for name, value in alone.items():
        row = padded[name][1]
        if value.shape[1:2] == (real,) and row.shape[0] == TOKENS:  # one for each token
            row = row.roll(-PADDED, 0)
        shared = row[tuple(slice(size) for size in value.shape[1:])]
        torch.testing.assert_close(shared, value[0], atol=1e-5, rtol=1e-5)


def test_saved_and_loaded_it_is_the_same(spec: dict[str, Any], tmp_path) -> None:
    model, given = make(spec), of(INPUTS, spec)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config.head == head_spec(spec).to_dict()
    with torch.no_grad():
        wanted, found = (tensors(each(*texts(spec), **given)) for each in (model, loaded))
    weights = loaded.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    # Weights that lie elsewhere in memory may be multiplied by another kernel, which rounds differently.
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.slow
def test_it_exports_with_dynamic_rows_and_lengths(spec: dict[str, Any]) -> None:
    model, given = make(spec, num_hidden_layers=1), dict(of(INPUTS, spec))
    static = {COUNTS[spec["head"]]: 3} if spec["head"] in COUNTS else {}
    rows, tokens = torch.export.Dim("rows", min=1, max=9), torch.export.Dim("tokens", min=8, max=41)
    ids, mask = texts(spec)
    inputs = {"input_ids": ids, "attention_mask": mask, **given}
    shapes = {name: {0: rows, value.dim() - 1: tokens} for name, value in inputs.items()} | dict.fromkeys(static)
    program = torch.export.export(model, (), {**inputs, **static}, dynamic_shapes=shapes, strict=False).module()
    shorter = {name: torch.cat([value, value[:1]])[..., :10] for name, value in inputs.items()}
    with torch.no_grad():
        for batch in (inputs, shorter):
            for name, value in tensors(model(**batch, **static)).items():
                torch.testing.assert_close(program(**batch, **static)[name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_it_compiles_as_one_graph(spec: dict[str, Any]) -> None:
    model = make(spec, num_hidden_layers=1)
    static = {COUNTS[spec["head"]]: 3} if spec["head"] in COUNTS else {}
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    given = of(INPUTS, spec) | of(LABELS, spec) | static
    with torch.no_grad():
        wanted, found = tensors(model(*texts(spec), **given)), tensors(compiled(*texts(spec), **given))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_trainer_finds_labels_and_inputs_by_their_names(name: str, tmp_path) -> None:
    model = make({"head": name})
    known = inspect.signature(type(model).forward).parameters
    assert {"input_ids", "attention_mask", *of(INPUTS, {"head": name}), *LABELS[name]} <= set(known)
    arguments = TrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True, save_strategy="no")
    ids, mask = texts({"head": name})
    columns = {"input_ids": ids, "attention_mask": mask, **of(INPUTS, {"head": name}), **LABELS[name]}
    rows = [{**{key: value[row] for key, value in columns.items()}, "unused": 7} for row in range(2)]
    trainer = Trainer(model, arguments, train_dataset=rows)  # pyright: ignore[reportArgumentType]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert trainer.train().training_loss > 0
    assert set(trainer.label_names) == {key for key in LABELS[name] if "label" in key or name == "question_answering"}
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", HEADS)
def test_what_it_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown key 'head\.windw'; (did you mean|choose one of)"):
        LongspanConfig(head={"head": name, "windw": 3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'lables'"):
        make({"head": name})(IDS, MASK, lables=ONE)


@pytest.mark.parametrize("name", HEADS)
def test_another_head_takes_its_own_defaults_and_leaves_the_configuration_alone(name: str) -> None:
    config = LongspanConfig(
        vocab_size=37, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8
    )
    model = model_with(name)(config)
    assert config.head is None
    assert model.config.head == HEADS[name]().to_dict()
    assert model.model.config is model.config
    other = next(other for other in HEADS if other != name)
    assert model_with(other)(model.config).config.head["head"] == other
    assert model.config.head["head"] == name


def test_every_head_has_its_inputs_here_and_its_class_in_the_open() -> None:
    assert HEADS.keys() <= LABELS.keys()
    assert HEADS.keys() == LABELS.keys() or not (HAS_DOCUMENTS and HAS_PAPERS)
    for spec in HEADS.values():
        assert getattr(longspan.models, spec.model) is spec.model_class()
