"""The byte-level BPE that a recipe trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from longspan.checkpoints.loading import load_tokenizer
from longspan.data.labelled import clean
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.tasks.classification.classification import Classification
from longspan.tasks.summaries.base import texts_of
from longspan.training.sections import Tokenizer
from longspan.training.tokenizers import is_prepared, prepared, train_tokenizer, train_words


def test_special_tokens_round_trip_and_every_script(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(texts_of(synthetic_rows(4, seed=0)), 400)
    assert [tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    for text in ("notably bada kilo.", "长文档 مرحبا café"):
        ids = loaded(text)["input_ids"]
        assert ids == tokenizer(text)["input_ids"]
        assert (ids[0], ids[-1]) == (0, 2)
        assert loaded.decode(ids, skip_special_tokens=True) == text


def test_mistakes(tmp_path: Path) -> None:
    for size, limit in ((260, "at least 261"), (5_000_001, "at most 5,000,000")):
        with pytest.raises(InputError, match=f"train is {size}; it must be {limit}"):
            Tokenizer(train=size)
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_words_by_frequency_and_an_end_for_every_line(tmp_path: Path) -> None:
    tokenizer = train_words([" the cat = sat \n\n the cat \n", "the <unk> dog"], 300)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)  # type: ignore[arg-type]
    assert words[:5] == ["<eos>", "<unk>", "<pad>", "the", "cat"]
    assert sorted(words[5:]) == ["=", "dog", "sat"]
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, load_tokenizer(tmp_path)):
        ids = loaded("the cow sat\n\n= <unk>", add_special_tokens=False)["input_ids"]
        assert loaded.convert_ids_to_tokens(ids) == ["the", "<unk>", "sat", "<eos>", "<eos>", "=", "<unk>"]
    assert len(train_words(["a b c d d"], 5)) == 5


@pytest.mark.parametrize("kind", ["roberta", "bert", "ours"])
def test_what_a_task_does_to_texts_is_in_the_tokenizer(kind: str, tmp_path: Path) -> None:
    """transformers' own classes make their normaliser anew when they are loaded; it must be there all the same."""
    tokenizer: Any = train_tokenizer(["so good, yes it is"], 300)
    if kind == "roberta":
        tokenizer.backend_tokenizer.model.save(str(tmp_path))
        tokenizer = RobertaTokenizer.from_pretrained(tmp_path)
    if kind == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "so", "good", "it", "is", "!", "##o"]
        tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    task = Classification(clean=True)
    assert not is_prepared(tokenizer, task.normalizer())
    cleans = prepared(tokenizer, task.normalizer())
    cleans.save_pretrained(tmp_path / "saved")
    text = "Soooo  good!!! See http://a.b/c and www.x.org ! !"
    for loaded in (cleans, load_tokenizer(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert is_prepared(loaded, task.normalizer())
        assert loaded(text)["input_ids"] == tokenizer(clean(text))["input_ids"] != tokenizer(text)["input_ids"]
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        assert (loaded.padding_side, loaded.model_max_length) == (tokenizer.padding_side, tokenizer.model_max_length)
    assert prepared(tokenizer, Classification().normalizer()) is tokenizer
