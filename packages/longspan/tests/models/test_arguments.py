"""`forward` takes what transformers' own classes take: PEFT and pipelines pass all of it."""

from __future__ import annotations

import inspect
from typing import Any

import peft
import pytest
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

import longspan
from longspan import InputError, LongspanConfig

# PEFT still asks transformers by a name that is about to go.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "attention": {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3},
}
IDS = torch.tensor([[5, 9, 11, 4, 8, 2], [6, 7, 3, 2, 1, 1]])
MASK = (IDS != 1).long()
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "SEQ_CLS": ("LongspanForSequenceClassification", {"labels": torch.tensor([0, 1])}),
    "TOKEN_CLS": ("LongspanForTokenClassification", {"labels": torch.ones_like(IDS)}),
    "QUESTION_ANS": (
        "LongspanForQuestionAnswering",
        {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 2])},
    ),
    "FEATURE_EXTRACTION": ("LongspanModel", {}),
    "SEQ_2_SEQ_LM": ("LongspanForConditionalGeneration", {"labels": torch.tensor([[5, 6, 2], [7, 2, -100]])}),
}


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    layers = {"decoder_layers": 1} if name.endswith("Generation") else {}
    chosen: dict[str, Any] = {**SIZES, **layers, **options}
    return getattr(longspan, name)(LongspanConfig(**chosen)).eval()


def wrapped(task: str) -> Any:
    settings = peft.LoraConfig(task_type=task, r=2, target_modules=["query", "value"], lora_dropout=0.0)
    return peft.get_peft_model(make(TASKS[task][0]), settings)


def result(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(input_ids=IDS, attention_mask=MASK, **inputs)
    return next(found[key] for key in ("logits", "start_logits", "last_hidden_state") if key in found)


@pytest.mark.parametrize("task", TASKS)
def test_lora_trains_saves_loads_and_merges(task: str, tmp_path) -> None:
    name, labels = TASKS[task]
    model = wrapped(task).train()
    before = result(model.eval(), **labels)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        output = model.train()(input_ids=IDS, attention_mask=MASK, **labels)
        loss = output.loss if labels else output.last_hidden_state[..., 0].sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    trained = result(model.eval(), **labels)
    assert (trained - before).abs().max() > 1e-5
    # Else peft 0.18 warns that it cannot compare the vocabulary with that of a model without a name.
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    loaded = peft.PeftModel.from_pretrained(make(name), tmp_path).eval()
    torch.testing.assert_close(result(loaded, **labels), trained)
    merged = loaded.merge_and_unload()
    assert type(merged).__name__ == name
    torch.testing.assert_close(result(merged, **labels), trained, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = type(merged).from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(result(again, **labels), trained, atol=1e-5, rtol=1e-5)


def test_generation_under_peft() -> None:
    model = wrapped("SEQ_2_SEQ_LM").eval()
    plain = make("LongspanForConditionalGeneration")
    options = {"max_new_tokens": 5, "num_beams": 2, "do_sample": False}
    want = plain.generate(input_ids=IDS, attention_mask=MASK, **options)
    assert torch.equal(model.generate(input_ids=IDS, attention_mask=MASK, **options), want)


@pytest.mark.parametrize("name", [name for name, _ in TASKS.values()])
def test_what_asks_for_nothing_changes_nothing(name: str) -> None:
    model, labels = make(name), next(labels for other, labels in TASKS.values() if other == name)
    others = {"head_mask": None, "use_cache": False, "cache_position": None, "cache": None}
    plain = result(model, **labels)
    given = result(model, **labels, **others, output_attentions=False, output_hidden_states=False, return_dict=True)
    assert torch.equal(plain, given)
    with torch.no_grad():
        parts = model(input_ids=IDS, attention_mask=MASK, return_dict=False, **labels)
    assert isinstance(parts, tuple)
    assert any(torch.is_tensor(part) and part.shape == plain.shape and part.equal(plain) for part in parts)
    model.config.return_dict = False
    assert isinstance(model(input_ids=IDS, attention_mask=MASK, **labels), tuple)


@pytest.mark.parametrize("name", [name for name, _ in TASKS.values()])
def test_what_cannot_be_honoured_is_refused(name: str) -> None:
    model, labels = make(name), next(labels for other, labels in TASKS.values() if other == name)
    with pytest.raises(InputError, match="head_mask"):
        model(input_ids=IDS, attention_mask=MASK, **labels, head_mask=torch.ones(2, 2))
    weights = {"output_attentions": True}
    if name.endswith("Generation"):
        with pytest.raises(InputError, match="output_attentions"):
            model(input_ids=IDS, attention_mask=MASK, **labels, **weights)
    else:
        assert model(input_ids=IDS, attention_mask=MASK, **labels, **weights).attentions[1].shape == (2, 2, 6, 7)
    with pytest.raises(TypeError, match="atention_mask"):
        model(input_ids=IDS, atention_mask=MASK, **labels)
    assert "others" in inspect.signature(type(model).forward).parameters
    assert not type(model).accepts_loss_kwargs or "num_items_in_batch" in inspect.signature(model.forward).parameters


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel"])
def test_position_ids_are_those_of_transformers(name: str) -> None:
    config = getattr(transformers, name).config_class(
        vocab_size=37, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    theirs = getattr(transformers, name)(config).eval()
    ours = longspan.from_transformers(theirs)
    places = torch.tensor([[7, 2, 30, 39, 5, 6], [4, 4, 9, 8, 0, 1]])
    want, got = result(theirs, position_ids=places), result(ours, position_ids=places)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(result(ours), got)
    with pytest.raises(InputError, match="position_ids goes from 0 to 40 but the table has rows 0 to 39"):
        ours(input_ids=IDS, position_ids=torch.tensor([[0, 1, 2, 3, 4, 40]]))
    with pytest.raises(InputError, match=r"position_ids has shape \(1, 3\)"):
        ours(input_ids=IDS, position_ids=torch.tensor([[0, 1, 2]]))


def test_decoder_embeddings_and_encoder_outputs_instead_of_ids() -> None:
    model = make("LongspanForConditionalGeneration")
    start = torch.tensor([[2, 5, 6], [2, 7, 8]])
    want = result(model, decoder_input_ids=start)
    assert torch.equal(want, result(model, decoder_inputs_embeds=model.decoder.embeddings.token(start)))
    encoded = model.get_encoder()(IDS, MASK)
    for form in (encoded, BaseModelOutput(last_hidden_state=encoded[0]), (encoded[0],)):
        with torch.no_grad():
            found = model(attention_mask=MASK, encoder_outputs=form, decoder_input_ids=start, use_cache=False)
        torch.testing.assert_close(found.logits, want)
    with pytest.raises(InputError, match="exactly one of input_ids and inputs_embeds"):
        model(IDS, decoder_input_ids=start, decoder_inputs_embeds=model.decoder.embeddings.token(start))


@pytest.mark.parametrize("name", [name for name, _ in TASKS.values()])
@pytest.mark.parametrize("mask", ["attention_mask", "global_attention_mask"])
def test_a_mask_holds_zero_and_one_only(name: str, mask: str) -> None:
    model = make(name)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "global_attention_mask": torch.zeros_like(IDS)}
    if name.endswith("Generation"):
        inputs["decoder_input_ids"] = IDS[:, :2]
    for value, dtype in ((2, torch.int64), (-1, torch.int64), (0.5, torch.float32), (-1e9, torch.float32)):
        wrong = inputs[mask].clone().to(dtype)
        wrong[1, 0] = value
        with pytest.raises(InputError, match=f"^{mask} holds .* mark global tokens in a global_attention_mask"):
            model(**inputs | {mask: wrong})
    for dtype in (torch.bool, torch.int32, torch.float16):
        model(**inputs | {mask: inputs[mask].to(dtype)})


def test_masks_of_the_decoder_and_of_states_that_were_encoded_before() -> None:
    model = make("LongspanForConditionalGeneration")
    encoded, start = model.get_encoder()(IDS, MASK), IDS[:, :3]
    with pytest.raises(InputError, match=r"^attention_mask holds 2"):
        model(attention_mask=MASK * 2, encoder_outputs=encoded, decoder_input_ids=start)
    with pytest.raises(InputError, match="decoder_attention_mask holds 2"):
        model(IDS, MASK, decoder_input_ids=start, decoder_attention_mask=torch.full_like(start, 2))
    with pytest.raises(InputError, match=r"^attention_mask holds 2"):
        model.generate(input_ids=IDS, attention_mask=MASK * 2, max_new_tokens=2)


CLUSTERS = {"cutoffs": (10, 20), "embedding_size": 16, "embedding_divisor": 2, "attention": {"mechanism": "full"}}


@pytest.mark.parametrize("wrong", [37, -1])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("LongspanModel", {}),
        ("LongspanForMaskedLM", {}),
        ("LongspanForCausalLM", {}),
        ("LongspanForCausalLM", CLUSTERS),
        ("LongspanForPrefixLM", {"attention": {"mechanism": "full"}}),
        ("LongspanForConditionalGeneration", {"decoder_layers": 1}),
    ],
)
def test_a_token_beyond_the_vocabulary_is_refused(name: str, fields: dict[str, Any], wrong: int) -> None:
    model = getattr(longspan, name)(LongspanConfig(**SIZES | fields)).eval()
    ids = IDS.masked_fill(IDS == 11, wrong)
    message = f"input_ids holds {wrong}, but vocab_size=37 of this model, whose ids go from 0 to 36; give"
    with pytest.raises(InputError, match=message):
        model(ids)
    if hasattr(model, "generate") and model.can_generate():
        with pytest.raises(InputError, match=message):
            model.generate(ids, max_new_tokens=2, min_new_tokens=2)


def test_a_token_beyond_the_vocabulary_of_a_decoder_is_refused() -> None:
    model = longspan.LongspanForConditionalGeneration(LongspanConfig(**SIZES, decoder_layers=1)).eval()
    beyond = IDS.masked_fill(IDS == 11, 99)
    for given in ({"decoder_input_ids": beyond}, {"labels": beyond}):
        with pytest.raises(InputError, match=r"decoder_input_ids \(or labels, .*\) holds 99, but vocab_size=37"):
            model(IDS, **given)


def test_types_and_labels_beyond_their_tables_are_refused() -> None:
    config = LongspanConfig(**SIZES, type_vocab_size=2)
    with pytest.raises(InputError, match=r"token_type_ids holds 2, but type_vocab_size=2 .* from 0 to 1"):
        longspan.LongspanModel(config)(IDS, token_type_ids=2 * MASK)
    with pytest.raises(InputError, match="labels holds 40, but the model has 37 classes"):
        longspan.LongspanForMaskedLM(config)(IDS, labels=IDS.masked_fill(IDS == 4, 40).masked_fill(IDS == 5, -100))
    with pytest.raises(InputError, match="labels holds 2, but the model has 2 classes; give numbers from 0 to"):
        longspan.LongspanForSequenceClassification(config)(IDS, labels=torch.tensor([2, 1]))
