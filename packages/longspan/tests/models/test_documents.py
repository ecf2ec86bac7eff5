"""Several documents in one row of a model: the padded batch, in states, logits, losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

from longspan.errors import InputError
from longspan.models import (
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForQuestionAnswering,
    LongspanForReplacedTokens,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.transformers_names import enable_checkpointing
from tiny_models import POOLING, WINDOW

LENGTHS = [23, 7, 1, 53, 22]


def flattened(ids: Tensor, mask: Tensor, **options: Any) -> dict[str, Any]:
    """The rows of a padded batch in one, as transformers packs them."""
    rows = [{"input_ids": row[real.bool()].tolist()} for row, real in zip(ids, mask, strict=True)]
    return DataCollatorWithFlattening(return_tensors="pt", **options)(rows)


def numbers() -> Tensor:
    return torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))[None]


def close(packed: Any, padded: Any) -> None:
    torch.testing.assert_close(packed, padded, rtol=1e-10, atol=1e-10)


CASES: list[dict[str, Any]] = [
    {},
    {"attention": POOLING, "position_offset": 2, "pad_token_id": 1, "positions_skip_padding": True},
    {"attention": [WINDOW, {"mechanism": "full"}], "global_tokens": "first", "pooler": True},
    {"attention": {"mechanism": "bigbird", "block_tokens": 4}, "global_tokens": "question", "sep_token_id": 2},
    {
        "attention": {"mechanism": "fusion", "relative_span": 8, "left_tokens": 3, "right_tokens": 3},
        "position_embedding": "none",
    },
    {"attention": {"mechanism": "linear"}, "position_embedding": "sinusoidal", "normalization": "pre"},
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_states_of_packed_documents_are_those_of_padded_ones(case: int, make_config: Any, make_batch: Any) -> None:
    """In every way in which transformers tells documents; with a row of two documents and padding, too."""
    model = LongspanModel(make_config(**CASES[case])).eval().double()
    ids, mask = make_batch(*LENGTHS)
    if CASES[case].get("global_tokens") == "question":
        ids[:, 0] = 2
    padded = model(input_ids=ids, attention_mask=mask)
    wanted = padded.last_hidden_state[mask.bool()][None]
    told = flattened(ids, mask, return_seq_idx=True, return_flash_attn_kwargs=True)
    told.pop("labels")
    positions, seq_idx = {"position_ids": told.pop("position_ids")}, {"seq_idx": told.pop("seq_idx")}
    packed = told.pop("input_ids")
    for given in (positions, seq_idx, told, positions | seq_idx | told):
        output = model(input_ids=packed, **given)
        close(output.last_hidden_state, wanted)
        if padded.pooler_output is not None:
            close(output.pooler_output, padded.pooler_output)

    rows, documents = torch.full((2, 60), 1), torch.full((2, 60), -1)
    for row, places in ((0, [3, 2]), (1, [0, 1, 4])):
        start = 4 * row  # padding in front, too
        for number in places:
            end = start + LENGTHS[number]
            rows[row, start:end], documents[row, start:end] = ids[number, : LENGTHS[number]], number
            start = end
    states = model(input_ids=rows, seq_idx=documents, attention_mask=(documents >= 0).long()).last_hidden_state
    for number, length in enumerate(LENGTHS):
        close(states[documents == number], padded.last_hidden_state[number, :length])


HEADS = [LongspanForMaskedLM, LongspanForTokenClassification, LongspanForReplacedTokens]


@pytest.mark.parametrize("kind", HEADS)
def test_heads_of_single_tokens_learn_the_same(kind: Any, make_config: Any, make_batch: Any) -> None:
    """Loss and gradients of every weight, with labels at some of the real tokens."""
    model = kind(make_config(dropout=0.0, num_labels=2)).double().train()
    ids, mask = make_batch(*LENGTHS)
    labels = torch.where((torch.rand(ids.shape) < 0.4) & mask.bool(), torch.randint(0, 2, ids.shape), -100)
    losses, gradients = [], []
    for batch in (
        {"input_ids": ids, "attention_mask": mask, "labels": labels},
        {"input_ids": ids[mask.bool()][None], "seq_idx": numbers(), "labels": labels[mask.bool()][None]},
    ):
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.detach())
        gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    tolerance = 1e-6 if kind is LongspanForReplacedTokens else 1e-10  # whose loss is in float32
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_language_models_learn_the_same(checkpointing: bool, make_config: Any, make_batch: Any) -> None:
    """A batch of transformers' collator as it is: no token is guessed from, nor sees, another document."""
    attention = [WINDOW | {"right_tokens": 0}, {"mechanism": "linear"}]
    model = LongspanForCausalLM(make_config(attention=attention, dropout=0.0)).double().train()
    if checkpointing:
        enable_checkpointing(model)
    ids, mask = make_batch(*LENGTHS)
    padded = model(input_ids=ids, attention_mask=mask, labels=torch.where(mask.bool(), ids, -100))
    padded.loss.backward()
    expected = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    batch = flattened(ids, mask)
    for labels in (batch["labels"], batch["input_ids"]):  # with and without a mark between documents
        model.zero_grad()
        packed = model(**batch | {"labels": labels})
        packed.loss.backward()
        close(packed.loss, padded.loss)
        close(packed.logits, padded.logits[mask.bool()][None])
        close([weight.grad for weight in model.parameters() if weight.grad is not None], expected)
    model.eval()
    close(model(**batch).logits, packed.logits)  # nor is a cache made


def test_a_row_may_be_longer_than_the_positions_a_document_may_not(make_config: Any) -> None:
    model = LongspanModel(make_config(max_position_embeddings=60)).eval()
    ids = torch.randint(3, 50, (1, sum(LENGTHS)))
    assert model(input_ids=ids, seq_idx=numbers()).last_hidden_state.shape[1] == sum(LENGTHS)
    with pytest.raises(InputError, match="106 tokens are more than max_position_embeddings=60"):
        model(input_ids=ids, seq_idx=torch.zeros_like(ids))


def wrong(seq_idx: Tensor | None = None, **others: Any) -> dict[str, Any]:
    return {"input_ids": torch.full((1, 6), 5), "seq_idx": seq_idx} | others


BAD: list[tuple[dict[str, Any], str]] = [
    (wrong(torch.tensor([[0, 0, 1, 0, 0, 2]])), "seq_idx holds 0 twice in row 0, not contiguously"),
    (wrong(torch.tensor([[0, 0, 1, 1, 2, 2]]), attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0]])), "place 5 of row 0"),
    (
        wrong(torch.tensor([[0, 0, 1, 1, 1, -1]]), attention_mask=torch.ones(1, 6)),
        "which is real in the mask; number it",
    ),
    (wrong(torch.zeros(1, 5, dtype=torch.int64)), r"seq_idx is torch.int64 of shape \(1, 5\)"),
    (wrong(torch.zeros(1, 6)), "seq_idx is torch.float32"),
    (wrong(cu_seq_lens_q=torch.tensor([0, 3, 5])), r"cu_seq_lens_q holds \[0, 3, 5\]"),
    (wrong(cu_seq_lens_q=torch.tensor([0, 4, 3, 6])), "rising from 0 to 6"),
    (wrong(torch.tensor([[0, 0, 1, 1, 1, 1]]), cu_seq_lens_q=torch.tensor([0, 3, 6])), "begin in different places"),
    (wrong(torch.tensor([[0, 0, 1, 1, 1, 1]]), position_ids=torch.arange(6)[None]), "position_ids do not count"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_does_not_fit_is_one_sentence(case: int, make_config: Any) -> None:
    given, sentence = BAD[case]
    with pytest.raises(InputError, match=sentence):
        LongspanModel(make_config())(**given)


def test_models_that_read_whole_rows_refuse(make_config: Callable[..., Any]) -> None:
    packed = {"input_ids": torch.full((1, 6), 5), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    for kind in (LongspanForSequenceClassification, LongspanForQuestionAnswering):
        with pytest.raises(InputError, match=f"{kind.__name__} has one output per row"):
            kind(make_config())(**packed)
    told = {"input_ids": packed["input_ids"], "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1]])}
    with pytest.raises(InputError, match="stack 'universal' does not support"):
        LongspanModel(make_config(stack={"stack": "universal"}))(**told)
    with pytest.raises(InputError, match="num_memory_tokens=2 come before each row"):
        LongspanModel(make_config(num_memory_tokens=2))(**told)
    with pytest.raises(InputError, match="this model reads one document in a row"):
        LongspanForConditionalGeneration(make_config(decoder_layers=1, decoder_attention_heads=3))(**told)
    causal = LongspanForCausalLM(make_config(attention={"mechanism": "full"}))
    with pytest.raises(InputError, match="which no step can continue"):
        causal(**told, use_cache=True)


def test_positions_that_somebody_chose_are_no_documents(make_config: Any) -> None:
    """Rows of the table in another order, and positions beside a mask, stay what they were."""
    model, ids = LongspanModel(make_config()).eval(), torch.randint(3, 50, (1, 6))
    whole = model(input_ids=ids, position_ids=torch.tensor([[4, 2, 7, 5, 5, 1]])).last_hidden_state
    again = model(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), attention_mask=torch.ones(1, 6))
    assert not torch.allclose(whole, again.last_hidden_state)
    alone = model(input_ids=ids[:, :3], position_ids=torch.tensor([[0, 1, 2]])).last_hidden_state
    assert not torch.allclose(alone, again.last_hidden_state[:, :3])


@pytest.mark.slow
def test_a_compiled_graph_says_that_it_reads_no_documents_apart(make_config: Any) -> None:
    """Positions tell when it runs, and numbers of documents when it is made."""
    model, ids = LongspanModel(make_config(num_hidden_layers=1)).eval().double(), torch.randint(3, 50, (1, 6))
    torch.compiler.reset()  # lengths that other tests have varied
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    sentence = "packed rows are not supported in a compiled graph"
    try:
        with torch.no_grad():
            one = torch.arange(6)[None]
            close(compiled(input_ids=ids, position_ids=one)[0], model(input_ids=ids, position_ids=one)[0])
            with pytest.raises(RuntimeError, match=f"position_ids begin again: {sentence}"):
                compiled(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
            with pytest.raises(torch._dynamo.exc.Unsupported, match=sentence):
                compiled(input_ids=ids, seq_idx=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    finally:
        torch.compiler.reset()
