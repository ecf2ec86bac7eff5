"""Chunks with a summary token for each segment: what belongs to what, what is hidden whole, and the contrast's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.tasks.language_modelling.segments import Segments
from longspan.training.tokenizers import train_tokenizer

ETC: Any = {"mechanism": "etc", "radius_tokens": 3, "clamp_tokens": 2, "hard_global_to_long": True}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([row.source for row in synthetic_rows(3, seed=3, sentences=20)], 300)


def model_of(tokenizer: Any, task: MaskedLM, attention: Any = ETC, **options: Any) -> LongspanForMaskedLM:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    fields = sizes | task.model_fields() | {"position_embedding": "none", "dropout": 0.0, "attention_dropout": 0.0}
    return LongspanForMaskedLM(
        LongspanConfig(vocab_size=len(tokenizer), attention=attention, **fields | options)
    ).double()


def chunks(task: MaskedLM, tokenizer: Any, folder: Path, *, training: bool = True) -> Any:
    rows = task.read("synthetic", "train", 3)
    return task.dataset(rows, tokenizer, folder=folder, training=training, seed=1)


def test_segments_end_with_sentences_or_are_equal():
    ends = np.zeros(10, dtype=bool)
    ends[[7, 8]] = True
    content = np.array([1, 2, 7, 3, 8, 8, 4, 7, 5, 6])
    sentences = Segments(count=4, ends=ends, size=3, summary_id=0)
    assert sentences.owners(content).tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3]  # the last takes the rest
    blocks = Segments(count=4, ends=None, size=3, summary_id=0, hidden_share=0.5)
    assert blocks.owners(content).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert len(blocks.hidden(4, key=5)) == 2
    assert len(blocks.hidden(2, key=5)) == 1
    assert not len(blocks.hidden(1, key=5))
    assert {tuple(blocks.hidden(4, key=key)) for key in range(40)} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


def test_summary_tokens_stand_in_front_and_words_belong_to_them(tokenizer: Any, tmp_path: Path):
    task = MaskedLM(max_tokens=61, summary_tokens=6, contrast_weight=0.5, hidden_segments=0.4)
    data = chunks(task, tokenizer, tmp_path)
    batch = task.collator(tokenizer)([data[0], data[len(data) - 1], data[1]])
    count, longest = batch["global_attention_mask"].sum(1).tolist(), batch["input_ids"].shape[1]
    assert longest <= 61
    assert (batch["input_ids"][batch["global_attention_mask"]] == tokenizer.bos_token_id).all()
    for row in range(3):
        own = batch["belongs_to"][row]
        assert sorted({*own.tolist()} - {-1}) == list(range(count[row]))
        hidden = [place for place in batch["contrast_places"][row].tolist() if place >= 0]
        assert len(hidden) == max(1, round(0.4 * count[row]))
        for number, place in enumerate(hidden):
            words = own == place
            assert (batch["input_ids"][row][words] == tokenizer.mask_token_id).all()
            assert (batch["labels"][row][words] == -100).all()
            alone = batch["contrast_ids"][row, number][batch["contrast_mask"][row, number]]
            assert len(alone) == 1 + words.sum()
            assert tokenizer.mask_token_id not in alone.tolist()
        assert (batch["labels"][row][own < 0] == -100).all()
    ended = [tokenizer.decode([token]) for token in batch["contrast_ids"][0, 0][batch["contrast_mask"][0, 0]]][-1]
    assert ended.rstrip().endswith((".", "!", "?")) or batch["contrast_places"][0, 0] == count[0] - 1
    held_out = task.collator(tokenizer)([chunks(task, tokenizer, tmp_path / "b", training=False)[0]])
    assert "contrast_ids" not in held_out
    assert held_out["belongs_to"].max() > 0
    assert batch["input_ids"].equal(task.collator(tokenizer)([data[0], data[len(data) - 1], data[1]])["input_ids"])


def test_the_contrast_by_hand(tokenizer: Any, tmp_path: Path):
    """Each hidden segment's summary against those of all hidden segments, every one encoded in a row of its own."""
    task = MaskedLM(max_tokens=61, summary_tokens=6, segments="blocks", contrast_weight=0.7, hidden_segments=0.4)
    data, model = chunks(task, tokenizer, tmp_path), model_of(tokenizer, task)
    batch = task.collator(tokenizer)([data[0], data[1]])
    plain = {name: value for name, value in batch.items() if not name.startswith("contrast")}
    with torch.no_grad():
        masked = model.eval()(**plain)
        states = model.model(**{name: value for name, value in plain.items() if name != "labels"}).last_hidden_state
        seen, known = [], []
        for row in range(2):
            for number, place in enumerate(batch["contrast_places"][row].tolist()):
                if place < 0:
                    continue
                ids = batch["contrast_ids"][row, number][batch["contrast_mask"][row, number]][None]
                first = torch.arange(ids.shape[1])[None] == 0
                alone = model.model(ids, global_attention_mask=first, belongs_to=-first.long()).last_hidden_state
                seen.append(alone[0, 0])
                known.append(model.contrast.weight @ states[row, place])
        scores = torch.stack(known) @ torch.stack(seen).T
        expected = masked.loss + 0.7 * -scores.log_softmax(1).diagonal().mean()
    assert len(seen) > 2
    loss = model.train()(**batch).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(model(**batch, num_items_in_batch=2 * (batch["labels"] >= 0).sum()).loss, expected / 2)


def test_a_batch_without_hidden_segments_has_a_gradient_for_the_layer(tokenizer: Any, tmp_path: Path):
    task = MaskedLM(max_tokens=61, summary_tokens=2, contrast_weight=0.7)
    data, model = chunks(task, tokenizer, tmp_path), model_of(tokenizer, task)
    features = data[0] | {"segments": [], "segment_places": []}
    batch = task.collator(tokenizer)([features])
    assert "contrast_ids" not in batch
    model.train()(**batch).loss.backward()
    assert model.contrast.weight.grad is not None
    assert not model.contrast.weight.grad.any()


def test_what_does_not_go_together_is_refused(tokenizer: Any, tmp_path: Path):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"summary_tokens": 4, "global_tokens": "first"}, "both choose the global tokens"),
        ({"summary_tokens": 1, "contrast_weight": 0.2}, "leaves nothing to compare"),
        ({"hidden_segments": 1.0}, "hidden_segments"),
    ]
    for options, wrong in cases:
        with pytest.raises(InputError, match=wrong):
            MaskedLM(**options)
    task = MaskedLM(max_tokens=61, summary_tokens=4)
    with pytest.raises(InputError, match="'longformer' in layer 1 does not"):
        task.check_model(model_of(tokenizer, task, [ETC, "longformer"]).config)
    with pytest.raises(InputError, match="summary_tokens=60"):
        chunks(MaskedLM(max_tokens=61, summary_tokens=60), tokenizer, tmp_path)
    model, ids = model_of(tokenizer, task), torch.zeros(1, 1, 3, dtype=torch.int64)
    with pytest.raises(InputError, match="contrast_weight=0"):
        model(input_ids=ids[0], contrast_ids=ids)
