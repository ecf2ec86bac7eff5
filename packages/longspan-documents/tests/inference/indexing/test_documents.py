"""An index of documents: the states of the model, appended, damaged, interrupted, of another model, asked."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import longspan
from closeness import check_outputs
from longspan import DocumentIndex
from longspan.cli import main
from longspan.errors import InputError
from longspan_documents.inference.indexing import documents as indexing
from longspan_documents.inference.indexing.states import StateReader, open_model
from longspan_documents.inference.readers import best_words
from longspan_documents.text.passages import passages_of
from longspan_documents.text.reading import read

from .conftest import TEXTS, save_model

QUESTION = "who planted the roses"


def with_types(folder: Path, typed: bool, second: int = 1) -> Path:
    """Let the tokenizer of a folder make token types, 0 for the first part of a pair and `second` for the other."""
    if typed:
        path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
        made, config = (json.loads(each.read_text(encoding="utf-8")) for each in (path, settings))
        for part in made["post_processor"]["pair"][3:]:  # behind the question and its separator
            next(iter(part.values()))["type_id"] = second
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        path.write_text(json.dumps(made), encoding="utf-8")
        settings.write_text(json.dumps(config), encoding="utf-8")
    return folder


def files(library: Path, *names: str) -> list[Path]:
    return [library / f"{name}.md" for name in names]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type_vocab_size": 1, "positions_skip_padding": True, "normalization": "pre"},
        {"type_vocab_size": 2},  # whose tokenizer makes no types: separators tell
        {"type_vocab_size": 2, "typed": True},
        {"global_tokens": "question", "attention": {"mechanism": "longformer", "left_tokens": 4, "right_tokens": 4}},
    ],
)
@torch.no_grad()
def test_kept_states_give_what_the_model_makes_of_the_pair(fields: dict, library: Path, tmp_path: Path) -> None:
    typed = fields.get("typed", False)
    fields = {name: value for name, value in fields.items() if name != "typed"}
    model, tokenizer = open_model(with_types(save_model(tmp_path / "reader", **fields), typed))
    document = read(library / "garden.md")
    reader = StateReader(model, tokenizer)
    passages = passages_of(document)
    pieces = [piece for each in reader.pieces(document, passages) for piece in each]
    assert len(passages) == len(pieces) == 2
    read_from_states = reader.read(reader.question(QUESTION), pieces)
    for passage, words in zip(passages, read_from_states, strict=True):
        text = document.text[passage.start : passage.end]
        encoded = tokenizer(QUESTION, text, return_tensors="pt", return_offsets_mapping=True)
        spans, parts = encoded.pop("offset_mapping")[0].tolist(), encoded.sequence_ids(0)
        spans = [
            (start + passage.start, end + passage.start) if part == 1 and end > start else (-1, -1)
            for (start, end), part in zip(spans, parts, strict=True)
        ]
        output = model(encoded["input_ids"], token_type_ids=encoded.get("token_type_ids"))
        assert ("token_type_ids" in encoded) == typed
        expected = best_words(output.start_logits, output.end_logits, spans)
        assert (words is None) == (expected is None)
        if words is not None:
            assert (words.start, words.end) == (expected.start, expected.end)
            assert words.probability == pytest.approx(expected.probability, abs=1e-5)


def test_a_tokenizer_that_tells_no_border_is_refused_in_one_sentence(library: Path, tmp_path: Path) -> None:
    folder = with_types(save_model(tmp_path / "reader", type_vocab_size=2), True, second=0)
    reader, document = StateReader(*open_model(folder)), read(library / "garden.md")
    for ask in (lambda: reader.question(QUESTION), lambda: reader.pieces(document, passages_of(document))):
        with pytest.raises(InputError, match="the tokenizer does not mark where a passage begins"):
            ask()


@torch.no_grad()
def test_stored_states_are_those_of_the_model(model: Path, library: Path, tmp_path: Path) -> None:
    exact = longspan.index([library], tmp_path / "exact", model, dtype="float32")
    short = longspan.index([library], tmp_path / "short", model)
    assert exact.added == indexing.Added(documents=3, known=0, passages=4)
    reader = StateReader(*open_model(model))
    for number, document in enumerate(exact.documents):
        assert document.text == TEXTS[Path(document.name).name]
        passages = passages_of(read(document.name))
        for passage, pieces in zip(passages, reader.pieces(document, passages), strict=True):
            for ours, stored, half in zip(
                pieces, exact._pieces(number, passage.start), short._pieces(number, passage.start), strict=True
            ):
                check_outputs(stored.states, ours.states)
                assert torch.equal(ours.spans, half.spans)
                torch.testing.assert_close(half.states, ours.states, rtol=2**-10, atol=1e-6)
    assert short.bytes < exact.bytes


def test_answers_point_into_the_files(model: Path, library: Path, tmp_path: Path) -> None:
    index = longspan.index([library], tmp_path / "index", model)
    found = index.answer("who planted the roses?")
    plain = longspan.answer(library, "who planted the roses?")
    best = found.passages[0]
    assert best.file == str(library / "garden.md")
    assert best.quote == plain.passages[0].quote
    assert TEXTS["garden.md"][best.quote.start : best.quote.end] == best.quote.text
    if found.short is not None:
        text = TEXTS[Path(index.documents[found.short.document].name).name]
        assert text[found.short.quote.start : found.short.quote.end] == found.short.quote.text


def test_a_long_passage_is_read_in_pieces_that_overlap(model: Path) -> None:
    reader = StateReader(*open_model(model))
    document = read_text("the roses " * 100 + "end")
    passage = passages_of(document)[0]
    (pieces,) = reader.pieces(document, [passage])
    covered = [(place.spans[place.spans[:, 0] >= 0][0, 0], place.spans[:, 1].max()) for place in pieces]
    assert len(pieces) > 1
    assert covered[0][0] == 0
    assert covered[-1][1] == passage.end
    assert all(later[0] < before[1] for before, later in pairwise(covered))
    assert all(len(piece.states) <= 128 for piece in pieces)


def read_text(text: str):
    from longspan_documents.text.reading import document_of

    return document_of(text)


def test_more_documents_are_added_and_none_twice(model: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    longspan.index(files(library, "garden"), folder, model)
    (library / "copy.md").write_text(TEXTS["garden.md"], encoding="utf-8")
    index = longspan.index([library], folder)
    assert (index.added.documents, index.added.known) == (2, 2)
    names = [Path(one.name).name for one in DocumentIndex(folder).documents]
    assert names == ["garden.md", "house.md", "trees.md"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "index.copy.json",
        "index.json",
        "shard-000001.safetensors",
        "shard-000002.safetensors",
    ]
    assert index.answer("how old is the oak?").passages[0].file == str(library / "trees.md")


@pytest.mark.parametrize("place", [0, 300, -1])
def test_one_damaged_byte_leaves_one_shard_out(place: int, model: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    longspan.index(files(library, "garden"), folder, model)
    longspan.index(files(library, "house", "trees"), folder)
    flip(folder / "shard-000001.safetensors", place)
    index = DocumentIndex(folder)
    (note,) = index.notes
    assert "shard-000001.safetensors' is damaged (its checksum differs); it is left out, and with it" in note
    assert "garden.md: index these again" in note
    found = index.answer("who built the house?")
    assert found.passages[0].file == str(library / "house.md")
    assert "shard-000001.safetensors' is damaged" in (found.note or "")
    mended = longspan.index([library], folder)
    assert (mended.added.documents, mended.added.known, mended.notes) == (1, 2, [])
    assert len(DocumentIndex(folder).documents) == 3


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_missing_or_shorter_shard_and_a_damaged_list(model: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    longspan.index(files(library, "garden"), folder, model)
    shard = folder / "shard-000001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-7])
    assert f"({len(whole) - 7:,} bytes instead of {len(whole):,})" in DocumentIndex(folder).notes[0]
    shard.unlink()
    assert "is missing; it is left out" in DocumentIndex(folder).notes[0]
    with pytest.raises(InputError, match="holds no document that can be read"):
        DocumentIndex(folder).answer(QUESTION)
    shard.write_bytes(whole)
    for place in (40, 400):
        flip(folder / "index.json", place)
        assert "index.json' is damaged" in DocumentIndex(folder).notes[0]
        flip(folder / "index.json", place)
    assert not DocumentIndex(folder).notes
    flip(folder / "index.json", 40)
    flip(folder / "index.copy.json", 40)
    with pytest.raises(InputError, match=r"is damaged .*, and so is its copy; make the index again"):
        DocumentIndex(folder)


def test_another_model_is_refused_and_other_upper_layers_are_not(model: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    longspan.index([library], folder, model)
    other = save_model(tmp_path / "other", seed=1)
    for use in (lambda: DocumentIndex(folder, other), lambda: longspan.index([library], folder, other)):
        with pytest.raises(
            InputError, match=r"was built by another model: the weights of '.*other' differ from those of"
        ):
            use()
    tuned, tokenizer = open_model(model)
    torch.nn.init.normal_(tuned.model.encoder.layers[3].feed_forward.up.weight)
    tuned.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    assert DocumentIndex(folder, tmp_path / "tuned").answer(QUESTION)
    plain = json.loads((tmp_path / "tuned" / "tokenizer.json").read_text(encoding="utf-8"))
    plain["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tuned" / "tokenizer.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(InputError, match="the tokenizer of"):
        DocumentIndex(folder, tmp_path / "tuned")


def test_an_interruption_keeps_what_was_finished(
    model: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"

    def interrupted(document):
        if document.name.endswith("trees.md"):
            raise KeyboardInterrupt
        return passages_of(document)

    monkeypatch.setattr("longspan_documents.inference.indexing.documents.passages_of", interrupted)
    assert main(["index", str(library), "--model", str(model), "--output", str(folder)]) == 130
    monkeypatch.undo()
    assert len(DocumentIndex(folder).documents) == 2
    # Killed between a shard and the list: the shard is no part of the index.
    (folder / "shard-000002.safetensors").write_bytes(b"half")
    index = longspan.index([library], folder)
    assert (index.added.documents, index.added.known, index.notes) == (1, 2, [])


def test_what_is_no_index_and_what_cannot_make_one(model: Path, library: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no index\.json; make an index with"):
        DocumentIndex(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not empty and no index"):
        longspan.index([library], library, model)
    with pytest.raises(InputError, match="dtype is 'int8'; choose 'float16'"):
        longspan.index([library], tmp_path / "index", model, dtype="int8")  # type: ignore[arg-type]
    plain = save_model(tmp_path / "plain", stack="sequential")
    with pytest.raises(InputError, match="has no lower layers that read a passage alone; decompose it"):
        longspan.index([library], tmp_path / "index", plain)
    joint = save_model(tmp_path / "joint", stack={"stack": "decomposed", "lower_layers": 2, "positions": "joint"})
    with pytest.raises(InputError, match="has positions='joint'"):
        longspan.index([library], tmp_path / "index", joint)
    with pytest.raises(InputError, match="lower_layers=5 is more than num_hidden_layers=4"):
        longspan.index([library], tmp_path / "index", plain, lower_layers=5)
    assert not (tmp_path / "index").exists()
    index = longspan.index([library], tmp_path / "index", plain, lower_layers=2)
    assert index.answer(QUESTION).passages


def test_the_command_line(model: Path, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "index"
    made = ["index", *map(str, files(library, "garden", "house")), "--output", str(folder), "--model", str(model)]
    assert main(made) == 0
    assert "2 documents added (3 passages); 2 documents in" in capsys.readouterr().out
    assert main([*made[:3], "--output", str(folder)]) == 0
    assert "0 documents added (0 passages), 2 there already" in capsys.readouterr().out
    assert main(["answer", "--index", str(folder), "who planted the roses?"]) == 0
    assert "planted in 1921" in capsys.readouterr().out
    assert main(["answer", "--index", str(folder), "--json", "-q", "who?", "-q", "when was the pond dug?"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["answer", "--index", str(folder), str(library / "garden.md"), "who?"]) == 2
    assert "is given with --index; leave it out" in capsys.readouterr().err
    assert main(["answer", "--index", str(folder)]) == 2
    assert main(["index", "-", "--output", str(folder)]) == 2
