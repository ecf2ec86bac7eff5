"""`longspan coref`: a document with its clusters in brackets, colours, CoNLL and JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from longspan.cli import main
from longspan.models import LongspanConfig, LongspanForCoreference, LongspanModel
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.coreference.conll import conll_text, read_conll
from longspan_papers.coreference.resolving import Resolved, Resolver
from longspan_papers.coreference.rows import CoreferenceRow, synthetic_documents
from longspan_papers.coreference.task import Coreference

TEXT = "Ada met Carl. She didn't see him.\n\nCarl's dog barked.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that was never trained, with its tokenizer."""
    place = tmp_path_factory.mktemp("coref")
    tokenizer = train_tokenizer(Coreference().corpus(synthetic_documents(2, seed=0)), 300)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    head = {"head": "coreference", "hidden_width": 8, "span_width": 3, "singletons": True}
    LongspanForCoreference(LongspanConfig(vocab_size=len(tokenizer), init_std=0.3, head=head, **sizes)).save_pretrained(
        place
    )
    tokenizer.save_pretrained(place)
    return place


def test_it_prints_writes_and_reads_its_own_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story, written, as_json = tmp_path / "story.txt", tmp_path / "out.conll", tmp_path / "out.json"
    story.write_text(TEXT, encoding="utf-8")
    asked = ["coref", str(story), "--model", str(folder)]
    assert main(asked) == 0
    shown, note = capsys.readouterr()
    assert "[15 words, " in note
    (tmp_path / "one.txt").write_text("Hello", encoding="utf-8")
    assert main(["coref", str(tmp_path / "one.txt"), "--model", str(folder)]) == 0
    assert "[1 word, " in capsys.readouterr().err
    # Nobody who asks for clusters has them.
    (tmp_path / "words.jsonl").write_text('{"sentences": [["Ada", "left", "."]]}\n', encoding="utf-8")
    assert main(["coref", str(tmp_path / "words.jsonl"), "--model", str(folder)]) == 0
    assert "[3 words, " in capsys.readouterr().err
    assert main([*asked, "--output", str(written)]) == 0
    (row,) = read_conll(written)
    assert row.sentences[:2] == (("Ada", "met", "Carl", "."), ("She", "did", "n't", "see", "him", "."))
    assert main([*asked, "--output", str(as_json)]) == 0
    (record,) = json.loads(as_json.read_text(encoding="utf-8"))
    assert [[tuple(mention) for mention in cluster] for cluster in record["clusters"]] == [*map(list, row.clusters)]
    for cluster in record["mentions"]:
        assert all(TEXT[mention["start"] : mention["end"]] == mention["text"] for mention in cluster)
    assert sum(map(len, record["mentions"])) == shown.count("[") == shown.count("]") > 0
    # The files of words have the same clusters, and can be asked for as JSON on the screen.
    capsys.readouterr()
    for file in (written, as_json):
        assert main(["coref", str(file), "--model", str(folder), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["clusters"] == record["clusters"]


def test_brackets_hold_what_the_clusters_hold() -> None:
    row = CoreferenceRow(
        id="a",
        sentences=(("the", "old", "man", "and", "she"),),
        clusters=(((0, 2), (4, 4)), ((0, 4), (1, 1)), ((2, 3),)),
    )
    text = "the old man and she"
    places = ((0, 3), (4, 7), (8, 11), (12, 15), (16, 19))
    pieces = list(Resolved(text=text, row=row, places=places).pieces())
    # Clusters are numbered by their first mentions; the shorter of two that begin together comes first.
    assert "".join(piece for piece, _ in pieces) == "[[the [old]1 [man]0 and]2 [she]0]1"
    assert ("and", None) not in pieces
    assert (" and", 2) in pieces


def test_words_without_characters_have_brackets_too() -> None:
    row = CoreferenceRow(id="a", sentences=(("x", "", "y"),), clusters=(((0, 1),), ((1, 1),), ((1, 2), (2, 2))))
    pieces = Resolved(text="x  y", row=row, places=((0, 1), (2, 2), (3, 4))).pieces()
    assert "".join(piece for piece, _ in pieces) == "[x ]0[[]1 [y]2]2"


def test_a_crowd_of_documents_and_speakers(folder: Path) -> None:
    seen: list[CoreferenceRow] = []

    class Task:
        def predict(self, model, tokenizer, rows):
            seen.extend(rows)
            return [() for _ in rows]

    resolver = Resolver(None, None, Task())
    found = resolver.resolve("Ann: I saw Bob.\nBob: You did.\n" * 3)
    assert found.clusters == []
    assert seen[0].speakers is not None
    assert {name for names in seen[0].speakers for name in names} == {"Ann", "Bob"}


def test_what_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = tmp_path / "story.txt"
    story.write_text(TEXT, encoding="utf-8")
    other, broken, empty = tmp_path / "other", tmp_path / "broken.conll", tmp_path / "empty.conll"
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    LongspanModel(LongspanConfig(vocab_size=300, **sizes)).save_pretrained(other)
    for file in folder.glob("tokenizer*"):
        (other / file.name).write_bytes(file.read_bytes())
    row = CoreferenceRow(id="a", sentences=(("a", "b"),), clusters=(((0, 1),),))
    broken.write_text(conll_text([row]).replace("0)", "-"), encoding="utf-8")
    empty.write_text("\n", encoding="utf-8")
    for arguments, sentence in [
        (
            [str(story), "--model", str(other)],
            "is a LongspanModel, which finds no coreference; it is an encoder: give it",
        ),
        (
            [str(story), "--model", str(folder), "--output", str(tmp_path / "a.pdf")],
            "does not name a format; end it in",
        ),
        ([str(broken), "--model", str(folder)], "the mention of cluster 0 opened in line 2 is not closed"),
        ([str(empty), "--model", str(folder)], "holds no documents"),
    ]:
        assert main(["coref", *arguments]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert "on_error" not in said, "there is no such option"
