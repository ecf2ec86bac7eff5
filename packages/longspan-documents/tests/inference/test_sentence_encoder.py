"""Sentence encoders of others: prompts, pooling, layers and similarity as sentence-transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2Model,
    T5Config,
    T5EncoderModel,
)

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.answer import NOT_ENGLISH, Answerer
from longspan_documents.inference.indexing.documents import index
from longspan_documents.inference.indexing.opening import open_index
from longspan_documents.inference.reranker import load_reranker
from longspan_documents.inference.sentence_encoder import Purpose, load_sentence_encoder
from longspan_documents.text.reading import read

TEXTS = ["The tenant pays for repairs.", "It rained all day. Nobody came to the house by the river!", "x"]
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
QUESTION = "Who pays for repairs?"


def tiny(kind: str, vocabulary: int) -> Any:
    """A random model of a kind, of width 24."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 2, "initializer_range": 0.3}
    if kind == "gpt2":
        return GPT2Model(GPT2Config(vocab_size=vocabulary, n_embd=24, n_head=3, n_layer=2, n_positions=48))
    if kind == "t5":
        return T5EncoderModel(T5Config(vocab_size=vocabulary, d_model=24, d_kv=8, d_ff=32, num_heads=3, num_layers=2))
    config = BertConfig(vocab_size=vocabulary, hidden_size=24, max_position_embeddings=48, pad_token_id=1, **heads)
    config.num_labels = 1
    return BertForSequenceClassification(config) if kind == "reranker" else BertModel(config)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder as sentence-transformers does."""
    tokenizer = train_tokenizer([" ".join([*TEXTS, QUESTION])] * 9, 300)

    def folder(kind: str = "bert", modules: tuple[str, ...] = ("Pooling",), **said: Any) -> Path:
        place = tmp_path / "-".join([kind, *modules, str(len(list(tmp_path.iterdir())))])
        tiny(kind, len(tokenizer)).save_pretrained(place)
        tokenizer.save_pretrained(place)
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        width = 24 * len(said.get("modes", ("mean",)))
        for number, module in enumerate(modules, 1):
            path = f"{number}_{module}"
            listed.append(
                {"idx": number, "name": str(number), "path": path} | {"type": f"sentence_transformers.models.{module}"}
            )
            (place / path).mkdir()
            config: dict[str, Any] = {}
            if module == "Pooling":
                config = {"word_embedding_dimension": 24, "include_prompt": said.get("include_prompt", True)}
                config |= {"pooling_mode": list(said.get("modes", ("mean",)))}
            elif module == "Dense":
                layer = torch.nn.Linear(width, 16)
                name = "torch.nn.modules.activation.Tanh"
                config = {"in_features": width, "out_features": 16, "bias": True, "activation_function": name}
                weights = {"linear.weight": layer.weight.detach(), "linear.bias": layer.bias.detach()}
                save_file(weights, place / path / "model.safetensors")
            elif module == "LayerNorm":
                config = {"dimension": 16}
                save_file(
                    {"norm.weight": torch.rand(16), "norm.bias": torch.rand(16)}, place / path / "model.safetensors"
                )
            if config:
                (place / path / "config.json").write_text(json.dumps(config))
        if modules:
            (place / "modules.json").write_text(json.dumps(listed))
            (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
        (place / "config_sentence_transformers.json").write_text(json.dumps(said.get("about", {})))
        return place

    return folder


def states_of(folder: Path, text: str, kind: type = BertModel) -> torch.Tensor:
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return kind.from_pretrained(folder).eval()(ids).last_hidden_state[0]


def pooled(states: torch.Tensor, mode: str) -> torch.Tensor:
    places = torch.arange(1.0, len(states) + 1)[:, None]
    return {
        "cls": states[0],
        "max": states.amax(0),
        "mean": states.mean(0),
        "mean_sqrt_len_tokens": states.sum(0) / len(states) ** 0.5,
        "weightedmean": (states * places).sum(0) / places.sum(),
        "lasttoken": states[-1],
    }[mode]


@pytest.mark.parametrize("kind", ["bert", "t5", "gpt2"])
def test_every_pooling_alone_and_together_in_any_batch(kind: str, make: Callable[..., Path]) -> None:
    model = {"bert": BertModel, "t5": T5EncoderModel, "gpt2": GPT2Model}[kind]
    folder = make(kind, modes=MODES)
    states = [states_of(folder, text, model) for text in TEXTS]
    expected = torch.stack([torch.cat([pooled(one, mode) for mode in MODES]) for one in states]).numpy()
    found = load_sentence_encoder(folder)
    np.testing.assert_allclose(found.vectors(TEXTS), expected, atol=2e-5)
    assert not found.vectors(["", " \n"]).any()
    assert found.dimensions == 24 * len(MODES)


def test_layers_behind_the_pooling_and_the_prompts(make: Callable[..., Path]) -> None:
    prompts = {"query": "who pays: ", "passage": "the house: "}
    folder = make("bert", ("Pooling", "Dense", "LayerNorm", "Normalize"), about={"prompts": prompts})
    found = load_sentence_encoder(folder)
    dense, norm = (load_file(folder / name / "model.safetensors") for name in ("2_Dense", "3_LayerNorm"))
    purposes: list[tuple[Purpose | None, str]] = [(None, ""), ("question", "who pays: "), ("passage", "the house: ")]
    for purpose, prompt in purposes:
        mean = states_of(folder, prompt + TEXTS[0]).mean(0)
        vector = torch.tanh(dense["linear.weight"] @ mean + dense["linear.bias"])
        vector = torch.nn.functional.layer_norm(vector, (16,), norm["norm.weight"], norm["norm.bias"])
        expected = torch.nn.functional.normalize(vector, dim=0).numpy()
        np.testing.assert_allclose(found.vectors([TEXTS[0]], purpose)[0], expected, atol=1e-5)
    apart = make("bert", about={"prompts": prompts}, include_prompt=False)
    tokenizer = AutoTokenizer.from_pretrained(apart)
    prompt = len(tokenizer("who pays: ")["input_ids"]) - (tokenizer("a")["input_ids"][-1] in tokenizer.all_special_ids)
    expected = states_of(apart, f"who pays: {TEXTS[0]}")[prompt:].mean(0).numpy()
    np.testing.assert_allclose(load_sentence_encoder(apart).vectors([TEXTS[0]], "question")[0], expected, atol=1e-5)


def test_as_sentence_transformers_itself(make: Callable[..., Path]) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    prompts = {"query": "who pays: ", "document": "the house: "}
    texts = [TEXTS[0], TEXTS[1][:20], TEXTS[2]]  # all of them short: theirs cuts
    for kind, similarity in (("bert", "cosine"), ("t5", "dot"), ("gpt2", "euclidean"), ("bert", "manhattan")):
        about = {"prompts": prompts, "similarity_fn_name": similarity}
        folder = make(kind, ("Pooling", "Dense"), modes=("weightedmean", "lasttoken"), about=about)
        ours, model = load_sentence_encoder(folder), theirs.SentenceTransformer(str(folder), device="cpu")
        assert ours.max_tokens == model.max_seq_length
        asked, told = model.encode_query([QUESTION]), model.encode_document(texts)
        np.testing.assert_allclose(ours.vectors([QUESTION], "question"), asked, atol=1e-5)
        np.testing.assert_allclose(ours.vectors(texts, "passage"), told, atol=1e-5)
        near, same = ours.similarities(QUESTION, told), model.similarity(asked, told)[0].numpy()
        assert np.corrcoef(near, same)[0, 1] > 0.9999


def test_a_question_is_read_once_for_all_that_it_is_compared_with(make: Callable[..., Path]) -> None:
    encoder = load_sentence_encoder(make("bert"))
    passages = encoder.vectors(TEXTS, "passage")
    rows: list[int] = []
    encoder.model.register_forward_hook(lambda *call: rows.append(len(call[2].last_hidden_state)))
    both = encoder.similarities(QUESTION, passages)
    np.testing.assert_allclose(encoder.similarities(QUESTION, passages[1:]), both[1:], atol=1e-5)
    assert rows == [1]
    other = encoder.similarities(TEXTS[0], passages)
    assert rows == [1, 1]
    assert other.argmax() == 0
    assert not np.allclose(other, both)


def test_longer_texts_go_through_in_chunks_and_that_is_said(make: Callable[..., Path]) -> None:
    folder = make("bert")
    found, tokenizer = load_sentence_encoder(folder), AutoTokenizer.from_pretrained(folder)
    long = " ".join(TEXTS[:2] * 4)
    assert found.note is None
    vector = found.vectors([long])[0]
    inside = tokenizer(long, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    room = 32 - tokenizer.num_special_tokens_to_add()
    pieces = [long[inside[at][0] : inside[min(at + room, len(inside)) - 1][1]] for at in range(0, len(inside), room)]
    assert len(pieces) > 2
    parts = [states_of(folder, piece) for piece in pieces]
    expected = torch.stack([part.mean(0) * len(part) for part in parts]).sum(0) / sum(map(len, parts))
    np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    assert found.note is not None
    assert found.note.startswith("1 text longer than the 32 tokens that the encoder")


def test_answers_embeddings_and_summaries_by_it(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = make("bert", about={"prompts": {"query": "who: "}}), tmp_path / "a.md"
    file.write_text("# House\n\n" + "\n\n# More\n\n".join(TEXTS))
    answerer = Answerer([read(file)], encoder=folder)
    found = answerer.answer(QUESTION)
    assert found.passages[0].text == TEXTS[0]
    assert str(found.passages[0].sentence) == TEXTS[0]
    np.testing.assert_allclose(
        longspan.embed(TEXTS, encoder=folder), load_sentence_encoder(folder).embed(TEXTS), atol=1e-6
    )
    document = longspan.embed_document(file, encoder=folder)
    np.testing.assert_allclose(
        document.vectors[0], longspan.embed(TEXTS[0], encoder=folder, purpose="passage"), atol=1e-6
    )
    for command in (
        ["answer", str(file), QUESTION],
        ["embed", str(file)],
        ["summarize", str(file), "-n", "2", "--query", QUESTION],
    ):
        assert main([*command, "--encoder", str(folder)]) == 0
    assert main(["answer", str(file), QUESTION, "--model", str(folder)]) == 2
    assert main(["summarize", str(file), "--model", str(folder)]) == 2
    assert main(["summarize", str(file), "--encoder", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("is a sentence encoder: use --encoder") == 2
    assert "give a query" in said
    with pytest.raises(InputError, match="give one of them"):
        longspan.embed(TEXTS, folder, encoder=folder)
    with pytest.raises(InputError, match="leave it out"):
        longspan.embed(TEXTS, purpose="question")


def test_a_cross_encoder_orders_the_best_passages(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = make("reranker", ())
    reranker, tokenizer = load_reranker(folder), AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = [float(model(**tokenizer(QUESTION, text, return_tensors="pt")).logits) for text in TEXTS]
    np.testing.assert_allclose(reranker.scores(QUESTION, TEXTS), expected, atol=1e-5)
    assert np.isfinite(reranker.scores(QUESTION, [" ".join(TEXTS) * 5])).all()  # in chunks
    text = "# A\n\n" + "\n\n# B\n\n".join(TEXTS)
    found = longspan.answer(text, QUESTION, reranker=folder)
    assert [one.text for one in found.passages] == [TEXTS[place] for place in np.argsort(expected)[::-1]]
    file = tmp_path / "a.md"
    file.write_text(text)
    assert main(["answer", str(file), QUESTION, "--reranker", str(folder)]) == 0
    with pytest.raises(InputError, match="ask a shorter question"):
        reranker.scores(QUESTION * 20, TEXTS)
    with pytest.raises(InputError, match=r"BertModel and is no model with labels: classifier"):
        load_reranker(make("bert", ()))
    with pytest.raises(InputError, match="is a sentence encoder: use --encoder"):
        load_reranker(make("bert"))


def test_a_cross_encoder_orders_what_an_index_finds(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("reranker", ())
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertForSequenceClassification.from_pretrained(folder)
    texts = [*TEXTS[:2], "The roof was mended by the owner.", "Rent is due on the first.", "The river is deep."]
    with torch.no_grad():
        scores = [float(model.eval()(**tokenizer(QUESTION, text, return_tensors="pt")).logits) for text in texts]
    (tmp_path / "a.md").write_text("\n\n".join(f"# {number}\n\n{text}" for number, text in enumerate(texts)))
    index(tmp_path / "a.md", tmp_path / "index")
    plain, again = (open_index(tmp_path / "index", reranker=reranker) for reranker in (None, folder))
    before, found = (one.answer(QUESTION, top=5) for one in (plain, again))
    # All of the twenty first are read again, though fewer are shown.
    for top in (1, 5):
        best = [texts[place] for place in np.argsort(scores)[::-1][:top]]
        assert [one.text for one in again.answer(QUESTION, top=top).passages] == best
    chances = {one.text: one.probability for one in before.passages}
    assert {one.text: one.probability for one in found.passages} == chances
    assert (before.probability, before.answered) == (found.probability, found.answered)
    capsys.readouterr()
    assert main(["answer", "--index", str(tmp_path / "index"), QUESTION, "--reranker", str(folder), "--top", "1"]) == 0
    assert f"**{texts[int(np.argmax(scores))]}**" in capsys.readouterr().out


def test_what_is_not_known_is_refused(make: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="with the module 'LSTM'"):
        load_sentence_encoder(make("bert", ("Pooling", "LSTM")))
    with pytest.raises(InputError, match="pools by 'median'"):
        load_sentence_encoder(make("bert", modes=("median",)))
    with pytest.raises(InputError, match="compares vectors by 'maxsim'"):
        load_sentence_encoder(make("bert", about={"similarity_fn_name": "maxsim"}))
    with pytest.raises(InputError, match="has no prompt named 'query'"):
        load_sentence_encoder(make("bert", about={"default_prompt_name": "query"}))
    folder = make("bert", ("Pooling", "Dense"))
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no 2_Dense/model.safetensors; .*pickles are not read"):
        load_sentence_encoder(folder)


def test_with_an_encoder_other_languages_are_not_left_to_words(make: Callable[..., Path]) -> None:
    text, encoder = "今天天气很好。图书馆的屋顶漏水。市议会决定修理屋顶。", make()
    summary = longspan.summarize(text, sentences=1, query="谁决定修理？", encoder=encoder)
    assert "words alone" not in (summary.note or "")
    found = longspan.answer(text, "谁决定修理？", encoder=encoder)
    assert (found.note or "").startswith(NOT_ENGLISH)
    assert (found.sure, found.probability) == ("unsure", None)
