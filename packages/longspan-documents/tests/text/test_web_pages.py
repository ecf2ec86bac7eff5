"""Saved web pages: the article stays whole, what surrounds it goes."""

from __future__ import annotations

import pytest

from longspan_documents.text.markup import text_of_lines
from longspan_documents.text.web_pages import lines_of_page


def text_from_html(page: str) -> str:
    return text_of_lines(lines_of_page(page))


PARAGRAPHS = [
    "Marmots live in the mountains and sleep through the winter in deep burrows that they dig over many years.",
    "A whistle warns the whole colony of danger, and the young hide within seconds while the old watch the sky.",
    "Eagles are their main enemies, although foxes take some of the young when they first leave the burrow.",
    "Climate change makes the snow melt earlier every year, which changes what the animals find to eat.",
]


def news(paragraphs: int, tag: str) -> str:
    body = "".join(f"<p>In {1990 + number}: {PARAGRAPHS[number % 4]}</p>" for number in range(paragraphs))
    return f"""<!doctype html><html><head><title>The Daily Marmot</title><style>p {{}}</style></head><body>
<div id="cookie-banner"><p>We use cookies to improve your experience on our site.</p><button>Yes</button></div>
<header><ul class="menu"><li><a href=/>Home</a></li><li><a href=/s>Sport</a></li></ul></header>
<{tag}><h1>Marmots in the snow</h1><h2>Winter</h2>{body}<ul><li>Weight: 6 kg</li><li>Age: 15 years</li></ul>
<pre>def weigh():\n    return 6</pre>
<table><tr><th>Year</th><th>Colonies</th></tr><tr><td>2001</td><td>14</td></tr></table></{tag.split()[0]}>
<div class="sidebar related"><h3>Related stories</h3><ul><li><a href=1>Ten hikes to take</a></li></ul></div>
<section id="comments"><h3>3 comments</h3><p>Great article, I saw one near my tent and it stole my cheese!</p></section>
<footer>© The Daily Marmot. All rights reserved.</footer></body></html>"""


@pytest.mark.parametrize("tag", ["article", "main", "div", "div class=story", "section class=has-sidebar"])
@pytest.mark.parametrize("paragraphs", [1, 2, 4, 12, 40])
def test_an_article_among_menus_banners_and_comments(paragraphs: int, tag: str) -> None:
    blocks = text_from_html(news(paragraphs, tag)).split("\n\n")
    assert blocks[:2] == ["Marmots in the snow", "Winter"]
    assert blocks[2 : 2 + paragraphs] == [f"In {1990 + n}: {PARAGRAPHS[n % 4]}" for n in range(paragraphs)]
    assert blocks[2 + paragraphs :] == [
        "- Weight: 6 kg\n- Age: 15 years",
        "def weigh():\n    return 6",
        "| Year | Colonies |\n| 2001 | 14 |",
    ]


@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("<p>One</p>", ["One"]),
        ("One", ["One"]),
        ("<body><div>One<div>Two</div>Three", ["One", "Two", "Three"]),
        ("<ul><li>a<ol start=3><li>b<li>c</ol><li><p>d</p><p>e</p></ul>", ["- a\n  3. b\n  4. c\n- d\n  e"]),
        ("<table><tr><td><p>a</p></td><td></td></tr></table>", ["| a |  |"]),
        ("<table><tr><td><p>a</p><p>b</p></td></tr></table>", ["a", "b"]),
        ("<table><tr><td>a <b>c</b></td></tr></table>", ["a c"]),
        ("<dl><dt>term<dd>meaning</dl>", ["term", "meaning"]),
        ("<p>a<img src=x alt='a cat'>b", ["a a cat b"]),
        ("<p hidden>no</p><p>yes", ["yes"]),
        ("<p>x &#xD83D; &#0; y&nbsp;z", ["x \ufffd \ufffd y z"]),
        ("<textarea>no</textarea><p>yes", ["yes"]),
        ("<p>first<br>second", ["first\nsecond"]),
        ("<?php echo 1 ?><p>a<!-- b --><![CDATA[c]]>", ["a"]),
        ("<p>\ue000a\ue001b\ue003", ["a b"]),
        ("", []),
        ("<!-- only -->", []),
    ],
)
def test_small_pages(page: str, blocks: list[str]) -> None:
    text = text_from_html(page)
    assert (text.split("\n\n") if text else []) == blocks


@pytest.mark.slow
def test_nothing_is_lost_below_thousands_of_open_tags() -> None:
    for tag in ("div", "b", "font", "ul><li", "blockquote"):
        text = text_from_html("<html>" + "".join(f"<{tag}>word{number} " for number in range(9000)))
        assert text.split()[-1] == "word8999", tag
        assert sum(word.startswith("word") for word in text.split()) == 9000, tag


def test_marks_of_links_to_headings_and_messages_of_errors_are_left_out() -> None:
    page = (
        '<h1>Marmots<a class="headerlink" href="#marmots">¶</a></h1><h2>Winter <a href="#winter">#</a></h2>'
        f'<p>{PARAGRAPHS[0]} <strong class="error">Expression error: Unexpected &lt; operator.</strong></p>'
        f"<p>{PARAGRAPHS[1]}</p>"
    )
    assert text_from_html(f"<html><body>{page}</body></html>").split("\n\n") == ["Marmots", "Winter", *PARAGRAPHS[:2]]


def test_raised_and_lowered_letters() -> None:
    page = (
        "<p>It cost $320<sup><a href=#a>1</a></sup> in all.<sup>[2]</sup> "
        "H<sub>2</sub>O fills 10<sup>6</sup> litres.</p>"
        "<table><tr><td><sup>14</sup>C</td><td>3 km<sup>2</sup></td></tr></table><pre>x<sup>1</sup></pre>"
    )
    assert text_from_html(page).split("\n\n") == [
        "It cost $320 in all. H₂O fills 10^6 litres.",
        "| 14C | 3 km^2 |",
        "x1",
    ]
