"""Labels of pairs: what is read of each text, the accuracy, labels that the task does not know."""

from __future__ import annotations

import pytest
import torch

from longspan.data.pairs import PairRow
from longspan.errors import InputError
from longspan.models import LongspanConfig
from longspan.tasks.classification.pairs import PairLabels
from longspan.training.tokenizers import train_tokenizer

ROW = PairRow("a", "one two three four", "six seven eight nine", "yes")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([ROW.first, "no yes"], 280)


def test_texts_are_cut_to_their_limits(tokenizer):
    whole = tokenizer(ROW.first, ROW.second)["input_ids"]
    assert PairLabels().features(ROW, tokenizer) == {"input_ids": whole, "labels": 0}
    cut = PairLabels(max_tokens=12, max_first_tokens=3).features(ROW, tokenizer)["input_ids"]
    assert len(cut) == 12
    assert cut[:4] == whole[:4]
    assert cut[4:6] == [2, 2]


def test_accuracy_and_the_model_of_the_labels(tokenizer):
    task = PairLabels(labels=("no", "yes", "perhaps"))
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    model = task.model_class()(LongspanConfig(vocab_size=len(tokenizer), **sizes, **task.model_fields()))
    assert (model.config.num_labels, model.config.id2label[1]) == (3, "yes")
    torch.nn.init.zeros_(model.classifier.output.weight)
    model.classifier.output.bias.data = torch.tensor([0.0, 1.0, 0.0])
    rows = [ROW, PairRow("b", "one", "two three four", "no"), PairRow("c", "one", "one", "yes")]
    outcome = task.evaluate(model, tokenizer, rows, batch_size=2)
    assert outcome.scores["accuracy"] == pytest.approx(200 / 3)
    assert outcome.lines[1] == {"id": "b", "prediction": "yes", "label": "no"}


def test_what_cannot_be_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"row 'a' has the label 'yes', and task\.labels is"):
        PairLabels(labels=("0", "1")).features(ROW, tokenizer)
    with pytest.raises(InputError, match=r"labels is \['yes', 'yes'\]; give at least two, each once"):
        PairLabels(labels=("yes", "yes"))
    with pytest.raises(InputError, match="max_first_tokens=118 leaves no room in max_tokens=120"):
        PairLabels(max_first_tokens=118)
