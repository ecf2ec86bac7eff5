"""Batches of transformers' collators, with a global mask."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, PreTrainedTokenizerFast

import longspan
from longspan import DataCollatorWithGlobalAttention, InputError, LongspanConfig, LongspanModel

SEP = 3


def tokenizer(side="right"):
    vocabulary = {"<pad>": 0, "<s>": 1, "a": 2, "<sep>": SEP, "b": 4}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", padding_side=side)


def row(ids, **others):
    return {"input_ids": ids, "attention_mask": [1] * len(ids), **others}


@pytest.mark.parametrize(("side", "padded"), [("right", [1, 0, 1, 0, 0]), ("left", [0, 0, 1, 0, 1])])
def test_a_mask_is_padded_where_its_row_is(side, padded):
    collator = DataCollatorWithGlobalAttention(DataCollatorWithPadding(tokenizer(side)))
    rows = [
        row([1, 2, 2], global_attention_mask=[1, 0, 1]),
        row([1, 2, 4, 2, 4], global_attention_mask=[0, 1, 0, 0, 1]),
    ]
    batch = collator(rows)
    assert batch["global_attention_mask"].tolist() == [padded, [0, 1, 0, 0, 1]]
    assert batch["attention_mask"].sum().item() == 8
    assert "global_attention_mask" in rows[0]


def test_tokens_are_marked_by_their_ids_and_padding_never():
    collator = DataCollatorWithGlobalAttention(DataCollatorWithPadding(tokenizer()), global_token_ids=[SEP, 0])
    batch = collator([row([1, SEP, 2, SEP]), row([1, SEP]), row([1, 2, 2], global_attention_mask=[0, 0, 1])])
    assert batch["global_attention_mask"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_labels_of_sequence_to_sequence_stay_as_the_collator_makes_them():
    inner = DataCollatorForSeq2Seq(tokenizer())
    rows = [row([1, 2, SEP], labels=[4]), row([1], labels=[4, 4])]
    batch = DataCollatorWithGlobalAttention(inner, [SEP])([dict(one) for one in rows])
    assert torch.equal(batch["labels"], inner([dict(one) for one in rows])["labels"])
    assert batch["global_attention_mask"].tolist() == [[0, 0, 1], [0, 0, 0]]


def test_what_does_not_fit_is_one_sentence():
    collator = DataCollatorWithGlobalAttention(DataCollatorWithPadding(tokenizer()))
    with pytest.raises(InputError, match="row 1 has no global_attention_mask; give it one, or name global_token_ids"):
        collator([row([1], global_attention_mask=[1]), row([1])])
    with pytest.raises(InputError, match="global_attention_mask of row 0 has 2 values for 1 input_ids; give one each"):
        collator([row([1], global_attention_mask=[1, 0])])
    with pytest.raises(InputError, match="makes no tensor 'attention_mask'; use one that does"):
        DataCollatorWithGlobalAttention(lambda rows: {"input_ids": torch.ones(1, 1)}, [SEP])([row([1])])


def test_a_model_marks_the_same_tokens_by_its_configuration():
    torch.manual_seed(2)
    sizes = {"vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    near = {"mechanism": "longformer", "left_tokens": 2, "right_tokens": 2}
    model = LongspanModel(LongspanConfig(num_hidden_layers=2, attention=near, global_tokens=[SEP, 7], **sizes)).eval()
    ids = torch.tensor([[5, SEP, 9, 11, 7, 12, 13, 14, 15], [5, 6, 9, 11, SEP, 12, 13, SEP, 1]])
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    marked = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0]])
    with torch.no_grad():
        found = model(ids, mask).last_hidden_state
        wanted = model(ids, mask, global_attention_mask=marked).last_hidden_state
        plain = model(ids, mask, global_attention_mask=torch.zeros_like(ids)).last_hidden_state
    assert torch.equal(found, wanted)
    assert not torch.allclose(found[mask.bool()], plain[mask.bool()])


@pytest.mark.parametrize("ids", [[], [41]])
def test_ids_that_no_vocabulary_has_are_refused(ids):
    with pytest.raises(InputError, match=r"global_tokens=\[.*\] must name one or more token ids below vocab_size=41"):
        LongspanConfig(vocab_size=41, global_tokens=ids)


def test_the_configuration_is_saved_with_its_ids(tmp_path):
    LongspanConfig(vocab_size=41, global_tokens=[SEP]).save_pretrained(tmp_path)
    assert longspan.LongspanConfig.from_pretrained(tmp_path).global_tokens == [SEP]
