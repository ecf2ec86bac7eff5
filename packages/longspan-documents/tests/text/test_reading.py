"""Documents as a person sees them: blocks, sentences, and their places."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import lines_run
from longspan_documents.text.blocks import Document
from longspan_documents.text.markdown import blocks_of_markdown
from longspan_documents.text.markup import blocks_of_pieces, pieces_of, text_of_lines
from longspan_documents.text.plain_text import is_log
from longspan_documents.text.reading import document_of, read, sentences_of, tidied
from longspan_documents.text.web_pages import lines_of_page


def test_sentences_know_their_section_and_place(tmp_path: Path) -> None:
    path = tmp_path / "paper.txt"
    path.write_text("1 Introduction\n\nWords are\nwrapped. Twice.\n\n1.1 Aims\n\n- One aim.\n- Another\n  aim.\n")
    document = read(path)
    sentences = sentences_of(document)
    assert [(block.kind, block.level) for block in document.blocks if block.kind == "heading"] == [
        ("heading", 1),
        ("heading", 2),
    ]
    assert [sentence.text for sentence in sentences] == ["Words are wrapped.", "Twice.", "One aim.", "Another aim."]
    assert [document.blocks[sentence.section or 0].text for sentence in sentences] == [
        *["1 Introduction"] * 2,
        *["1.1 Aims"] * 2,
    ]
    assert [document.line(sentence.start) for sentence in sentences] == [3, 4, 8, 9]
    assert document.text[sentences[0].start : sentences[0].end] == "Words are\nwrapped."


def test_sentences_stay_within_a_turn_and_know_their_speaker() -> None:
    document = document_of("Ann: Mm. Yes\nBob: No. Well\nand more.\nAnn: Why?\nBob: So.\n")
    assert [(sentence.speaker, sentence.text) for sentence in sentences_of(document)] == [
        ("Ann", "Mm."),
        ("Ann", "Yes"),
        ("Bob", "No."),
        ("Bob", "Well and more."),
        ("Ann", "Why?"),
        ("Bob", "So."),
    ]


# fmt: off
FRAGMENTS = [
    "\n", "\n\n", " ", "   ", "\t", "\f", "\r", "\u2028", "# ", "=== ", "\n---\n", "- ", "1. ", "2.1 ", "(a) ", "| ",
    "```", "&amp;", "Ann: ", "Bob: ", "[00:01:02] Ann: ", "<ann> ", "Mr. SMITH. ", "{gap}", "(laughter)",
    "JANE ROE -- Chair\n", "_", "**", "Abstract\n", "References\n", "[1] A. Smith, 2010.\n", "Contents\n", ".... 3\n",
    "Figure 1: ", "CHAPTER II\n", "WALL\n", "*** START OF THE PROJECT GUTENBERG EBOOK ***\n",
    "Copyright 2010 Nobody. All rights reserved.", "We use cookies. ", "The snail is slow. ", "Is it? ", "it was",
    "“Well,", "蜗牛很慢。", "x = 1;\n", "[wall](http://a.b/c)", "<p>", "</p>", "<!-- no -->",
]
# fmt: on
NASTY = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def check_places(document: Document) -> None:
    """Places rise, and the words of every sentence stand in order where it says."""
    last = 0
    for sentence in sentences_of(document):
        assert last <= sentence.start < sentence.end <= len(document.text)
        origin = iter(document.text[sentence.start : sentence.end])
        assert all(character in origin for character in sentence.text if character.isalnum())
        assert sentence.text == " ".join(sentence.text.split())
        last = sentence.end
    starts = [block.body.start for block in document.blocks]
    assert starts == sorted(starts)


@given(st.one_of(NASTY, st.text(max_size=200)))
def test_any_text_is_read_and_places_rise(text: str) -> None:
    check_places(document_of(text))
    check_places(document_of(text, raw=True))


@given(st.text("ab. \n#-:1A\f", max_size=80))
def test_untouched_sentences_are_the_texts_own(text: str) -> None:
    document = document_of(text)
    for sentence in sentences_of(document):
        assert " ".join(text[sentence.start : sentence.end].split()) == sentence.text


@given(st.lists(st.sampled_from([fragment for fragment in FRAGMENTS if ":" not in fragment and "<" not in fragment])))
def test_every_word_is_in_a_block(fragments: list[str]) -> None:
    text = "".join(fragments)
    left = list(text)
    for block in document_of(text).blocks:
        left[block.body.start : block.body.end] = " " * (block.body.end - block.body.start)
    # What stands in no block: names of speakers, marks of items, rules under headings.
    for word in "".join(left).split():
        assert not any(map(str.isalpha, word)) or word in {
            "Mr.",
            "SMITH.",
            "(a)",
            "JANE",
            "ROE",
            "Chair",
            "A.",
            "Abstract",
        }


@settings(max_examples=40)
@given(NASTY)
def test_any_markdown_is_read_and_places_rise(source: str) -> None:
    source = source.replace("\r", "\n")  # as decoding leaves it
    blocks = tidied(blocks_of_markdown(source), guess=False)
    check_places(Document(text=source, blocks=tuple(blocks)))


@settings(max_examples=40)
@given(NASTY)
def test_any_page_is_read_and_places_rise(page: str) -> None:
    lines = lines_of_page(page)
    text = text_of_lines(lines)
    blocks = blocks_of_pieces(pieces_of(lines))
    assert all(text[block.body.start : block.body.end] == block.text for block in blocks)
    check_places(Document(text=text, blocks=tuple(tidied(blocks, guess=False))))


@pytest.mark.slow
def test_the_work_grows_with_the_text() -> None:
    paragraph = "The snail went on for a long while, and nobody saw it on its\nway to the wall. It was slow.\n\n"

    def check(size: int) -> None:
        document = document_of(paragraph * (size // len(paragraph)))
        assert len(sentences_of(document)) == 2 * len(document.blocks)

    assert lines_run(check, 200_000) < 11 * lines_run(check, 20_000)
    check(1_000_000)


MARKDOWN = """\
---
title: Snails
---
# The Snail ![logo](logo.png)

[![Build](https://ci.example/b.svg)](https://ci.example) [![Docs](https://d.example/d.svg)](https://d.example)

- [Wall](#wall)
- [Way](#way)
- [Speed](#speed)

<span id="wall"></span>
## The `wall`

The **snail** [looked up](https://walls.example/up "the wall") at the
wall &amp; went on.[^1] <!-- hidden --> It was *slow*.

> A quoted line.

| snail | speed |
|-------|-------|
| one   | 3     |

```python
x = "code"
```

3. Third item,
   wrapped.

[way]: https://way.example

[^1]: A note.
"""


def test_a_readme_is_its_words_with_places_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(MARKDOWN)
    document = read(path)
    assert document.text == MARKDOWN
    assert document.title == "The Snail logo"
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("boilerplate", "---\ntitle: Snails\n---"),
        ("heading", "The Snail logo"),
        ("boilerplate", "Build Docs"),
        ("boilerplate", "Wall"),
        ("boilerplate", "Way"),
        ("boilerplate", "Speed"),
        ("heading", "The wall"),
        ("paragraph", "The snail looked up at the wall & went on. It was slow."),
        ("paragraph", "A quoted line."),
        ("table", "| snail | speed |\n| one | 3 |"),
        ("code", 'x = "code"'),
        ("item", "Third item, wrapped."),
        ("paragraph", "A note."),
    ]
    places = [MARKDOWN[sentence.start : sentence.end] for sentence in sentences_of(document)]
    assert places[0].startswith("The **snail** [looked up]")
    assert places[0].endswith("went on.")
    assert places[1:] == ["It was *slow*.", "A quoted line.", "Third item,\n   wrapped.", "A note."]
    assert [document.line(sentence.start) for sentence in sentences_of(document)] == [15, 16, 18, 28, 33]


PAGE = """<!doctype html><html><head><title>T</title></head><body><nav><a href=/>Home</a></nav>
<main><h1>The Snail</h1><p>It <a href=x>looked</a> up.<br>It went on.</p><h3>Way</h3>
<ul><li>A first item.<ul><li>An inner item.</li></ul></li><li><p>A second.</p><p>With more.</p></li></ul>
<figure><img src=s.png alt="A snail"><figcaption>The snail on its wall.</figcaption></figure>
<blockquote><p>It was slow.</p></blockquote><pre>x = 1\ny = 2</pre>
<table><caption>Speeds</caption><tr><th>snail</th><th>speed</th></tr><tr><td>one</td><td>3</td></tr></table>
<ul><li><a href=a>One</a></li><li><a href=b>Two</a></li><li><a href=c>Three</a></li></ul></main></body></html>"""


def test_a_page_has_the_blocks_of_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "snail.html"
    path.write_text(PAGE)
    document = read(path)
    assert [(block.kind, block.level, block.text) for block in document.blocks] == [
        ("heading", 1, "The Snail"),
        ("paragraph", 0, "It looked up."),
        ("paragraph", 0, "It went on."),
        ("heading", 3, "Way"),
        ("item", 1, "A first item."),
        ("item", 2, "An inner item."),
        ("item", 1, "A second. With more."),
        ("boilerplate", 0, "A snail"),
        ("caption", 0, "The snail on its wall."),
        ("paragraph", 0, "It was slow."),
        ("code", 0, "x = 1\ny = 2"),
        ("caption", 0, "Speeds"),
        ("table", 0, "| snail | speed |\n| one | 3 |"),
        ("boilerplate", 0, "One"),
        ("boilerplate", 0, "Two"),
        ("boilerplate", 0, "Three"),
    ]
    for sentence in sentences_of(document):
        assert document.text[sentence.start : sentence.end].split() in (
            sentence.text.split(),
            ["A", "second.", "With", "more."],
        )


def test_raw_leaves_nothing_out_and_guesses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "snail.md"
    path.write_text(MARKDOWN)
    kinds = {block.kind for block in read(path, raw=True).blocks}
    assert kinds == {"paragraph"}
    text = "Abstract\n\nAnn: Yes.\nBob: No.\n\nCopyright 2010 Nobody.\n"
    assert [block.text for block in document_of(text, raw=True).blocks] == [
        "Abstract",
        "Ann: Yes.\nBob: No.",
        "Copyright 2010 Nobody.",
    ]


LOG = "".join(
    f"2024-03-01 10:{minute:02d}:07,123 INFO worker[{minute}]: job {minute} done. Waiting for the next one.\n"
    for minute in range(40)
)


def test_a_log_is_read_by_line() -> None:
    text = f"{LOG}2024-03-01 10:41:00,000 ERROR worker[3]: job failed. Trying again.\n\nTraceback follows. See below.\n"
    assert is_log(text)
    sentences = sentences_of(document_of(text))
    assert [sentence.text for sentence in sentences] == [line for line in text.split("\n") if line]
    assert all(text[sentence.start : sentence.end] == sentence.text for sentence in sentences)


@pytest.mark.parametrize(
    "line",
    [
        "Mar  1 10:00:0{0} host sshd[99{0}]: Accepted key for user {0}",
        '10.0.0.{0} - - [01/Mar/2024:10:00:00 +0000] "GET /a HTTP/1.1" 200 12',
        "[   1{0}.123456] usb 1-{0}: new device found",
        "2024-03-01 10:00:0{0} status installed snail:amd64 1.{0}",
        "update-walls 2024-03-01 10:00:0{0}: run with --install /usr/bin/snail{0}",
        "WARNING root: snail {0} is slow",
    ],
)
def test_forms_of_logs(line: str) -> None:
    assert is_log("\n".join(line.format(number) for number in range(9)))


def test_a_few_lines_are_a_log_only_where_all_begin_with_a_time() -> None:
    lines = [f"2026-01-02 03:04:0{number} status installed snail:amd64 1.{number}" for number in range(4)]
    assert is_log("\n".join(lines))
    assert not is_log("\n".join(lines[:3]))
    assert not is_log("\n".join([*lines, "The snail was installed."]))


@pytest.mark.parametrize(
    "line",
    [
        "[2024-03-01, 10:00:0{0}] Ann: I saw the snail number {0}.",
        "2024-03-01 10:00:0{0} <ann> I saw the snail number {0}.",
        "{0}. The snail went to the wall on 2024-03-01 10:00:00.",
        "In 2024 the snail number {0} went to the wall.",
    ],
)
def test_what_is_no_log(line: str) -> None:
    assert not is_log("\n".join(line.format(number) for number in range(9)))
