"""sentence-transformers with Longspan's encoders: vectors are those of `longspan.embed`, and folders go both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import RobertaConfig, RobertaModel

import longspan
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.training.tokenizers import train_tokenizer

library = pytest.importorskip("sentence_transformers", reason="needs the 'sentence-transformers' extra")

from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: E402

from longspan_documents.integrations.sentence_transformers import sentence_transformer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the library's own warnings are its own
TEXTS = ["The tenant pays for repairs.", "It rained all day. Nobody came to the house by the river!" * 9, "x"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([" ".join(TEXTS)] * 3, 300)


@pytest.fixture
def lengthened(tokenizer: Any, tmp_path: Path) -> Path:
    """A random RoBERTa that was made to read 400 tokens, in windows."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    config = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, initializer_range=0.3, **sizes
    )
    model = longspan.lengthen(RobertaModel(config).eval(), "longformer", 400, left_tokens=16, right_tokens=16)
    tokenizer.model_max_length = 400
    model.save_pretrained(tmp_path / "long")
    tokenizer.save_pretrained(tmp_path / "long")
    return tmp_path / "long"


@pytest.fixture
def trained(tokenizer: Any, tmp_path: Path) -> Path:
    """A random model of the kind that distillation trains."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    head = {"head": "sentence_embedding", "dimensions": 10}
    config = LongspanConfig(
        vocab_size=len(tokenizer), position_embedding="sinusoidal", init_std=0.3, head=head, **sizes
    )
    LongspanForSentenceEmbedding(config).save_pretrained(tmp_path / "trained")
    tokenizer.save_pretrained(tmp_path / "trained")
    return tmp_path / "trained"


@pytest.mark.parametrize("kind", ["lengthened", "trained", "bundled"])
def test_vectors_are_those_of_embed_and_folders_go_both_ways(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = None if kind == "bundled" else request.getfixturevalue(kind)
    expected = longspan.embed(TEXTS, source)
    model = sentence_transformer(source, device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    assert model.get_embedding_dimension() == expected.shape[1]
    model.save_pretrained(str(tmp_path / "saved"))
    theirs = {"trust_remote_code": True} if kind != "lengthened" else {}
    for again in (
        library.SentenceTransformer(str(tmp_path / "saved"), device="cpu", **theirs),
        sentence_transformer(tmp_path / "saved", device="cpu"),
    ):
        np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(longspan.embed(TEXTS, tmp_path / "saved"), expected, atol=1e-5)
    assert {file.suffix for file in (tmp_path / "saved").rglob("*.*")} <= {".json", ".safetensors", ".md"}


def test_texts_that_the_bundled_encoder_does_not_know_are_refused() -> None:
    with pytest.raises(InputError, match=r"does not know 100% of the words of '公司的利润'.*encoder='multilingual'"):
        sentence_transformer(device="cpu").encode(["Profits rose.", "公司的利润"])


def test_the_module_among_others_and_with_gradients(lengthened: Path) -> None:
    modules = [Transformer(str(lengthened)), Pooling(24, pooling_mode="cls")]
    model = library.SentenceTransformer(modules=modules, device="cpu")
    mean = sentence_transformer(lengthened, device="cpu")
    assert np.abs(model.encode(TEXTS) - mean.encode(TEXTS)).max() > 0.01
    model.train()
    features = model(model.preprocess(TEXTS[:2]))
    features["sentence_embedding"].square().sum().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "attention.query.weight" in name)


def test_nothing_is_cut_by_what_is_loaded_or_saved(lengthened: Path, tmp_path: Path) -> None:
    sentence_transformer(lengthened, device="cpu").save_pretrained(str(tmp_path / "saved"))
    model = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with pytest.raises(InputError, match=r"are more than max_position_embeddings=400"):
        model.encode(["rain " * 500])
