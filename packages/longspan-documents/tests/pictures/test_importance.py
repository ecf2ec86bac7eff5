"""`longspan importance`: a document shaded by what a summary names or a tagger says, on a page and in a terminal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import longspan
from longspan.cli import main
from longspan.models import LongspanConfig
from longspan.tasks.summaries.importance import Importance, lemmatizer, load_tagger
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.cli.importance import starred
from longspan_documents.inference.importance import Weighed, WeighedWord, importance
from longspan_documents.pictures.shaded import importance_page

TEXT = "Two studies of <b>mice</b>.\n\nEach \u202emouse was studied & fed."


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "paper.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "abstract.txt").write_text("We study a mouse.", encoding="utf-8")
    return str(tmp_path / "paper.txt"), str(tmp_path / "abstract.txt")


def test_words_that_the_reference_names_are_marked(files, tmp_path, capsys):
    paper, abstract = files
    assert main(["importance", paper, "--reference", abstract]) == 0
    out, error = capsys.readouterr()
    assert re.findall(r"\*\*(\w+)\*\*", out) == ["studies", "mice", "mouse", "studied"]
    assert "4 important]" in error
    assert main(["importance", paper, "--reference", abstract, "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<span class="s9" title="1.00">([^<]*)</span>', page) == ["studies", "mice", "mouse", "studied"]
    assert "<b>" not in page
    assert "\u202e" not in page


def test_a_word_is_as_important_as_its_most_important_token(files, tmp_path, capsys):
    tokenizer = train_tokenizer([TEXT], 270)
    task = Importance()
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    fields = sizes | task.model_fields() | {"init_std": 0.5, "max_position_embeddings": 90, "attention": "full"}
    task.model_class()(LongspanConfig(vocab_size=len(tokenizer), **fields)).save_pretrained(tmp_path / "tagger")
    tokenizer.save_pretrained(tmp_path / "tagger")
    capsys.readouterr()
    assert main(["importance", files[0], "--model", str(tmp_path / "tagger"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tagger, whole = load_tagger(str(tmp_path / "tagger")), importance(Path(files[0]), model=str(tmp_path / "tagger"))
    encoded = tokenizer(whole.text, return_offsets_mapping=True, return_tensors="pt")
    with torch.no_grad():
        chances = tagger.model(encoded["input_ids"]).logits[0, :, 0].sigmoid().tolist()
    for word in found:
        inside = [
            chance
            for chance, (start, end) in zip(chances, encoded["offset_mapping"][0].tolist(), strict=True)
            if start < word["end"] and end > word["start"] and end > start
        ]
        assert word["importance"] == pytest.approx(max(inside), abs=1e-4)
        assert whole.text[word["start"] : word["end"]] == word["word"]


def test_shades_are_explained():
    words = tuple(WeighedWord(start=at, end=at + 3, importance=p) for at, p in ((0, 0.0), (4, 0.51), (8, 1.0)))
    page = importance_page(Weighed(text="one two six", words=words, by="tagger"), "a <title>")
    assert "a &lt;title&gt;" in page
    marks = re.findall(r'<span class="s(\d)" title="([^"]+)">([^<]*)</span>', page)
    assert marks == [("0", "0.00", "one"), ("5", "0.51", "two"), ("9", "1.00", "six")]
    assert "2 important" in page


def test_mistakes_are_one_sentence(files, tmp_path, capsys):
    paper, abstract = files
    (tmp_path / "blank.txt").write_text("... !\n", encoding="utf-8")
    for options, message in (
        (["--reference", abstract, "--model", "x"], "both are given"),
        (["--reference", str(tmp_path / "blank.txt")], "the reference holds no words"),
        (["--reference", abstract, "--html", "page.txt"], "is no name of a page"),
        (["--model", str(tmp_path / "none")], "does not exist"),
    ):
        assert main(["importance", paper, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_without_either_words_are_marked_that_the_bundled_summary_names(capsys, tmp_path):
    story = (
        "Mice were fed with seed. " + "It rained on that day. " * 9 + "Each mouse that ate the seeds grew quickly. " * 4
    )
    found, summary = importance(story), longspan.summarize(story)
    assert (found.by, found.note) == ("summary", summary.note)
    assert found.words == importance(story, reference=summary.text).words
    assert 0 < found.important < len(found.words)
    assert "the bundled model's summary names" in importance_page(found).replace("&#x27;", "'").replace("&#39;", "'")
    assert importance("...").words == ()
    (tmp_path / "words.txt").write_text("The of and to.", encoding="utf-8")
    assert main(["importance", str(tmp_path / "words.txt")]) == 0
    assert capsys.readouterr() == ("The of and to.\n", "[4 words, 0 important]\n")


@pytest.mark.parametrize(
    ("term", "no_color", "shaded"), [("xterm", "", True), ("dumb", "", False), ("xterm", "1", False)]
)
def test_a_terminal_without_colours_gets_stars(term, no_color, shaded, files, monkeypatch, capsys):
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["importance", files[0], "--reference", files[1]]) == 0
    out = capsys.readouterr().out
    assert ("\x1b[" in out) == shaded
    assert ("**mice**" in out) != shaded


def test_what_lemmas_need_is_named_before_anything_is_summarised(monkeypatch, files, capsys):
    lemmatizer.cache_clear()
    monkeypatch.setitem(sys.modules, "simplemma", None)
    monkeypatch.setattr("longspan_documents.inference.summarize.summarize", None)
    assert main(["importance", files[0]]) == 2
    error = capsys.readouterr().err
    assert "pip install 'longspan[lemmas]'" in error
    assert error.count("\n") == 1
    lemmatizer.cache_clear()


def test_stars_stand_around_a_whole_number():
    text = "It costs $0.31 a day, or $0.40."
    words = [("costs", 0.9), ("0", 0.9), ("31", 0.8), ("40", 0.7)]
    places = [(text.index(word), worth) for word, worth in words]
    weighed = Weighed(
        text=text,
        words=tuple(
            WeighedWord(start=place, end=place + len(word), importance=worth)
            for (word, _), (place, worth) in zip(words, places, strict=True)
        ),
        by="summary",
    )
    assert starred(weighed) == "It **costs** $**0.31** a day, or $0.**40**."
