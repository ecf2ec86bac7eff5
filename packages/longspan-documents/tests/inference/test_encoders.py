"""The bundled encoder without transformers: the same numbers as with it, and one sentence where a file is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from longspan.errors import InputError
from longspan.models import LongspanForSentenceEmbedding
from longspan.models.heads.sentence_network import EmbeddingNetwork
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.encoders import BUNDLED, SCALE, BundledTokenizer, open_bundled

TEXTS = (
    "",
    "Plain words, 3.14 and 1,000,000 numbers.",
    "  leading and trailing space  ",
    "A tag </s> that is text, <mask> too, <pad><unk> and <dig>.",
    "Ünïcödé, ﬁligree, 中文字符, עברית, ไทย, 👩‍👩‍👧 and a\u00a0no-break\tspace\r\nwith lines\n",
    "x" * 3000,
)


def test_the_tokenizer_is_the_one_that_transformers_loads() -> None:
    ours, theirs = BundledTokenizer(BUNDLED), AutoTokenizer.from_pretrained(BUNDLED)
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    for kind in ("pad", "bos", "eos", "unk", "cls", "sep"):
        assert getattr(ours, f"{kind}_token_id") == getattr(theirs, f"{kind}_token_id")
    for options in ({}, {"add_special_tokens": False}, {"split_special_tokens": True, "add_special_tokens": False}):
        found = ours(list(TEXTS), return_offsets_mapping=True, **options)
        expected = theirs(list(TEXTS), return_offsets_mapping=True, verbose=False, **options)
        assert found["input_ids"] == expected["input_ids"]
        assert found["offset_mapping"] == expected["offset_mapping"]
        assert ours(TEXTS[3], **options)["input_ids"] == expected["input_ids"][3]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled encoder with its 8 bits multiplied out, as `from_pretrained` takes it."""
    folder = tmp_path_factory.mktemp("encoder")
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    stored = load_file(folder / "model.safetensors")
    tables = [name.removesuffix(SCALE) for name in stored if name.endswith(SCALE)]
    assert [stored[name].dtype for name in tables] == [torch.int8]
    plain = {name: weight.float() for name, weight in stored.items() if not name.endswith(SCALE)}
    plain |= {name: plain[name] * stored[name + SCALE].float() for name in tables}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_sentences_have_the_same_vectors_as_with_transformers(unpacked: Path) -> None:
    light, full = load_encoder(), load_encoder(unpacked)
    assert isinstance(light.model, EmbeddingNetwork)
    assert isinstance(full.model, LongspanForSentenceEmbedding)
    sentences = " ".join(topics.values())[:40_000].split(". ")
    # Not to the bit: the same weights may lie in memory otherwise, which changes the order of sums in products.
    assert light.embed_document(sentences) == pytest.approx(full.embed_document(sentences), abs=1e-6)
    assert light.embed(TEXTS) == pytest.approx(full.embed(TEXTS), abs=1e-6)
    with torch.inference_mode():  # what training computes, where the document fits into one piece
        encoded = light.tokenizer(sentences[:20], add_special_tokens=False)["input_ids"]
        ids = torch.tensor([[token for one in encoded for token in one]])
        places = torch.arange(len(encoded)).repeat_interleave(torch.tensor([len(one) for one in encoded]))
        expected = full.model(input_ids=ids, sentence_ids=places[None]).embeddings[0]
    assert torch.allclose(light.model.embed_document(ids[0], places), expected, atol=1e-5)


def test_loading_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    model, _ = open_bundled(BUNDLED, EmbeddingNetwork)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta or tensor.requires_grad for tensor in model.parameters())


def _config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
        (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")

    return change


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "weights cut short": lambda folder: os_truncate(folder / "model.safetensors", 1000),
    "weights empty": lambda folder: os_truncate(folder / "model.safetensors", 0),
    "a weight less": _weights(lambda weights: weights.pop("projection.weight")),
    "a weight more": _weights(lambda weights: weights.update(more=torch.zeros(1))),
    "a weight of another shape": _weights(lambda weights: weights.update({"weight.bias": torch.zeros(2)})),
    "a weight that is no number": _weights(lambda weights: weights["weight.bias"].fill_(float("nan"))),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "config no JSON": _text("config.json", "{"),
    "config a list": _text("config.json", "[1, 2]"),
    "another width": _config(hidden_size=191),
    "heads that do not divide": _config(num_attention_heads=5),
    "a negative size": _config(num_hidden_layers=-1),
    "an unknown mechanism": _config(attention={"mechanism": "nothing"}),
    "a text for a size": _config(vocab_size="many"),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "tokenizer no JSON": _text("tokenizer.json", "nothing"),
    "tokenizer of another kind": _text("tokenizer.json", "{}"),
    "no names of tokens": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "names of tokens a list": _text("tokenizer_config.json", "[]"),
}


def os_truncate(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "bundled"
    shutil.copytree(BUNDLED, folder)
    DAMAGES[name](folder)
    with pytest.raises(InputError, match="install the package again") as error:
        open_bundled(folder, EmbeddingNetwork)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
