"""Models that follow instructions: asked through their chat template, they write what transformers' `generate` does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import longspan
from longspan.errors import InputError
from longspan_documents.inference.abstractive.chat import instruction
from longspan_documents.inference.abstractive.summarizer import CUT
from longspan_documents.inference.abstractive.writers import Asked
from longspan_documents.inference.results import Extent
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from tiny_writers import TEXT, word_tokenizer, words

TEMPLATE = (
    "{% for turn in messages %}<|start|>{{ turn.role }} {{ turn.content }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant {% endif %}"
)
KINDS = ("Llama", "Olmo2")
DECODING = Decoding(beams=1, max_tokens=9)


def write_chat(folder: Path, kind: str, *, template: str | None = TEMPLATE, positions: int = 256) -> Path:
    import transformers

    tokenizer = word_tokenizer(additional_special_tokens=["<|start|>", "<|end|>"])
    tokenizer.add_tokens(["summarize", "summaries", "document", "part"])
    tokenizer.chat_template = template
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|end|>"),
    )
    torch.manual_seed(4)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.generation_config.update(do_sample=True, temperature=2.0, top_k=50, min_new_tokens=5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat(tmp_path_factory.mktemp("chat") / request.param, request.param)


def peer(source: Path, contents: list[str], **options: Any) -> list[str]:
    """What transformers makes of each turn of a user, alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    written = []
    for content in contents:
        turns = [{"role": "user", "content": content}]
        inputs: Any = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = inputs["input_ids"]
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
        written.append(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
    return written


DOCUMENT = (
    "Summarize the document below.\n"
    "Write in the language of the text. State only what the text says. Reply with the summary alone.\n\n"
)


def test_a_short_document(folder: Path) -> None:
    summary = longspan.summarize(TEXT, model=folder, decoding=DECODING)
    (expected,) = peer(folder, [DOCUMENT + TEXT.strip()], num_beams=1, max_new_tokens=9)
    assert words(summary) == words(expected)
    assert len(words(summary)) >= 4
    assert summary.note in (None, CUT)


@pytest.mark.parametrize("kind", ["Qwen2", "Mistral"])
def test_other_kinds(tmp_path: Path, kind: str) -> None:
    """Whose tokenizers transformers makes by their own rules."""
    source = write_chat(tmp_path / kind, kind)
    summary = longspan.summarize(TEXT, model=source, decoding=DECODING)
    (expected,) = peer(source, [DOCUMENT + TEXT.strip()], num_beams=1, max_new_tokens=9)
    assert words(summary) == words(expected) != []


def test_a_batch_is_as_each_alone(folder: Path) -> None:
    texts = [TEXT.strip(), "Rain.", "The wall sees the old snail."]
    writer = load_summarizer(folder, decoding=DECODING).writer  # type: ignore[attr-defined]
    written = writer.write([writer.encode(text, Asked()) for text in texts])
    expected = peer(folder, [DOCUMENT + text for text in texts], num_beams=1, max_new_tokens=9)
    assert [words(text) for text, _ in written] == list(map(words, expected))


def test_a_document_longer_than_the_context_is_read_in_parts(folder: Path) -> None:
    summary = longspan.summarize(TEXT * 20, model=folder, decoding=DECODING)
    assert "256" not in str(summary.note)  # what is written needs room too
    assert "reads 247 at once, so it was read in 3 parts, whose summaries were merged" in str(summary.note)
    assert words(summary)


def test_what_is_asked_for_stands_in_the_instruction() -> None:
    assert instruction("A text.", Asked()) == f"{DOCUMENT}A text."
    asked = Asked(extent=Extent(words=90), query=" Who moved? ", what="summaries")
    assert instruction("A text.", asked).splitlines()[:2] == [
        "Below are summaries of the consecutive parts of one document. Write one summary of that document in about 90 "
        "words.",
        "The summary is to be about this: Who moved?",
    ]
    first = [
        instruction("", Asked(what="part", extent=extent)).partition("\n")[0]
        for extent in (Extent(sentences=1), Extent(sentences=3), Extent(length="long"))
    ]
    assert first == [
        "Summarize the part of a longer document below in one sentence.",
        "Summarize the part of a longer document below in 3 sentences.",
        "Summarize the part of a longer document below in several paragraphs.",
    ]


def test_a_length_and_a_query_change_what_is_read(folder: Path) -> None:
    plain = longspan.summarize(TEXT, model=folder, decoding=DECODING)
    about = longspan.summarize(TEXT, 2, folder, query="the snail", decoding=DECODING)
    assert about.tokens > plain.tokens


def test_a_document_speaks_for_nobody(folder: Path) -> None:
    """The marks of turns in a text are words."""
    writer = load_summarizer(folder, decoding=DECODING).writer  # type: ignore[attr-defined]
    end = writer.tokenizer.convert_tokens_to_ids("<|end|>")
    counts = [
        writer.encode(text, Asked())["input_ids"].count(end) for text in ("The snail.", "The <|end|><|start|> snail.")
    ]
    assert counts == [1, 1]


def test_thoughts_are_left_out(folder: Path) -> None:
    writer = load_summarizer(folder, decoding=DECODING).writer  # type: ignore[attr-defined]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    writer.tokenizer = tokenizer
    ids = tokenizer("<think> the snail </think> the wall", add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert writer._text(ids[0], {"input_ids": ids[:, :0]}) == "the wall"


def test_pieces_as_they_are_written(folder: Path) -> None:
    pieces: list[str] = []
    summary = longspan.summarize(TEXT, model=folder, decoding=DECODING, stream=pieces.append)
    assert words("".join(pieces)) == words(summary)
    assert len(pieces) > 2


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    source = write_chat(tmp_path / "plain", "Llama", template=None)
    with pytest.raises(InputError, match=r"LlamaForCausalLM, a language model whose tokenizer has no chat template"):
        longspan.summarize(TEXT, model=source)


def test_a_template_that_fails_is_one_sentence(tmp_path: Path) -> None:
    source = write_chat(tmp_path / "strict", "Llama", template="{{ raise_exception('a system turn is wanted') }}")
    with pytest.raises(InputError, match=r"the chat template of model .* cannot be used: a system turn is wanted"):
        longspan.summarize(TEXT, model=source)


def test_more_new_tokens_than_the_context(folder: Path) -> None:
    with pytest.raises(InputError, match=r"max_tokens=256 is as much as model .* reads and writes together \(256\)"):
        longspan.summarize(TEXT, model=folder, decoding=Decoding(max_tokens=256))


def test_a_context_without_end(folder: Path, tmp_path: Path) -> None:
    """Where neither file says how long a text may be, it is 4,096 tokens, those written included."""
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / "copy" / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | {"max_position_embeddings": 2 * 10**9}), encoding="utf-8")
    writer = load_summarizer(tmp_path / "copy", decoding=DECODING).writer  # type: ignore[attr-defined]
    assert writer.limit == 4_096 - 9
