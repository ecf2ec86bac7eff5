"""Pages of summaries: everything escaped, everything there, and in a browser links that lead to their places."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from counted import lines_run
from longspan.errors import InputError
from longspan_documents.inference.results import ScoredSentence, Summary
from longspan_documents.pictures.pages import check_page, save_page, summary_page
from longspan_documents.text.blocks import Block, Document, Traced, document_from_parts
from longspan_documents.text.reading import document_of, read, sentences_of

HOSTILE = "<script>document.title='owned'</script> </style> &amp; \"quoted\" 'q' <img src=x onerror=alert(1)>"
STEERING = "\u202eabc\u2066 \x1b[31m \x00 \ud83d"
DESKTOP, PHONE = (1280, 860), (390, 844)


class Reader(HTMLParser):
    """The tags of a page with their attributes, and the words between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "title"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def summary_of(document: Document, picked: list[int]) -> Summary:
    """A summary whose scores rise evenly, from 0 to 1."""
    found = sentences_of(document)
    scored = tuple(
        ScoredSentence(sentence.text, sentence.start, sentence.end, index / max(len(found) - 1, 1), sentence.speaker)
        for index, sentence in enumerate(found)
    )
    return Summary(sentences=tuple(scored[index] for index in picked), document=scored, tokens=1234, seconds=0.1)


def report() -> Document:
    paragraphs = [f"Sentence {n} tells of the number {n}. Another one follows it at place {n}." for n in range(60)]
    parts: list[Any] = [("heading", "A report", 1), ("paragraph", "It begins here. It goes on.", 0)]
    parts += [("heading", "Numbers", 2), *(("paragraph", text, 0) for text in paragraphs)]
    parts += [("item", "An item says this.", 1), ("item", "A deeper item says that.", 2)]
    parts += [("code", "if a < b:\n    run(" + "x" * 300 + ")", 0), ("references", "[1] A. Author, " + "w" * 400, 0)]
    return document_from_parts(parts, "report.docx", "A report")


def hostile() -> Document:
    # Whoever reads a document mends half characters; titles and names may still have them.
    words = f"Alpha {HOSTILE} omega. {STEERING[:-1]} comes next."
    block = Block(kind="turn", body=Traced.whole(words), speaker=HOSTILE)
    kinds = ("heading", "code", "caption", "boilerplate")
    rest = tuple(Block(kind=kind, body=Traced(HOSTILE, ((0, len(words)),), len(words))) for kind in kinds)
    return Document(text=words, blocks=(block, *rest), title=HOSTILE, name=STEERING + HOSTILE)


def test_the_whole_document_is_on_the_page() -> None:
    document = report()
    page = Reader(summary_page(document, summary_of(document, [1, 100])))
    assert not page.open
    for block in document.blocks:
        plain = re.sub(r"(?<=\.)\d(?= |$)", "", page.text)  # without the numbers of picked sentences
        assert block.text in plain
    tags = [tag for tag, _ in page.tags]
    assert (tags.count("h1"), tags.count("pre"), tags.count("details")) == (1, 1, 1)
    assert [attributes["role"] for _, attributes in page.tags if attributes.get("role")] == ["list", *["listitem"] * 2]
    assert "2 of 124 sentences" in page.text
    assert "1,234 tokens read" in page.text


def test_every_link_leads_to_one_place() -> None:
    document = report()
    page = Reader(summary_page(document, summary_of(document, [0, 57, 121])))
    places = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [str(attributes["href"]) for tag, attributes in page.tags if tag == "a"]
    assert len(set(places)) == len(places)
    assert all(link.startswith("#") and link[1:] in places for link in links)
    starts = [sentence.start for sentence in summary_of(document, [0, 57, 121]).sentences]
    assert [link for link in links if link.startswith("#at-")][-3:] == [f"#at-{start}" for start in starts]
    assert [link for link in links if link.startswith("#pick-")] == ["#pick-1", "#pick-2", "#pick-3"]


def test_shades_rise_from_the_lowest_to_the_highest_score() -> None:
    document = document_of("One is here now. Two is here now. Three is here now. Four is here now.")
    page = Reader(summary_page(document, summary_of(document, [])))
    shades = [str(a["class"]) for _, a in page.tags if (a.get("title") or "").startswith("score")]
    # A third, squared, is a ninth of nine shades; two thirds are four ninths.
    assert shades == ["s0", "s1", "s4", "s9"]


@pytest.mark.parametrize("title", ["", HOSTILE, STEERING])
def test_hostile_text_stays_text(title: str) -> None:
    document = hostile()
    source = summary_page(document, summary_of(document, [0, 1]), title)
    source.encode()
    assert not re.search(r"[\x00-\x08\x0e-\x1b\x7f\u202a-\u202e\u2066-\u2069]", source)
    page = Reader(source)
    assert not page.open
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    assert [tag for tag, _ in page.tags].count("style") == 1
    assert page.text.count(HOSTILE) >= 7  # the heading above, who speaks (twice), and five blocks
    assert "default-src 'none'" in source
    assert not re.search(r"https?:|//|@import|url\(", source.replace(HOSTILE, ""))


def test_pages_are_marked_where_they_begin() -> None:
    text = "The first page ends in the middle of a sentence. Then more comes.\n\nLast here."
    blocks = (
        Block(kind="paragraph", body=Traced.whole(text[: text.index("\n")])),
        Block(kind="paragraph", body=Traced.whole(text[text.index("Last") :], text.index("Last"))),
    )
    document = Document(text=text, blocks=blocks, pages=(0, text.index("middle"), text.index("Last")), name="a.pdf")
    page = Reader(summary_page(document, summary_of(document, [0])))
    assert " ".join(page.text.split()).endswith(
        "page 1 The first page ends in the page 2middle of a sentence.1 Then more comes. page 3 Last here. ↑ Summary"
    )


def test_words_that_were_mended_keep_their_places() -> None:
    body = Traced.whole("Archi-\ntecture matters. So it is.").edited([(5, 7, ""), (24, 25, " ")])
    document = Document(text="Archi-\ntecture matters. So it is.", blocks=(Block(kind="paragraph", body=body),))
    summary = summary_of(document, [0])
    assert (summary.document[0].start, summary.document[0].end) == (0, 23)
    assert '"at-0">Architecture matters.<a' in summary_page(document, summary)


@pytest.mark.parametrize("end", ["`<script>` ", "`<script>`", "\n\n\t<b>", "\n\n```<p>\n<script>\n\n-->"])
def test_tags_in_code_of_markdown_keep_the_page(end: str, tmp_path: Path) -> None:
    """They are hidden where words are looked for, so that they have no place in the file."""
    (tmp_path / "a.md").write_text(f"A first sentence stands here. {end}")
    document = read(tmp_path / "a.md")
    assert all(sentence.end <= len(document.text) for sentence in sentences_of(document))
    assert "A first sentence stands here." in summary_page(document, summary_of(document, [0]))


def test_languages_and_directions_are_said() -> None:
    text = "השועל החום המהיר קופץ מעל הכלב העצלן. הוא חוזר הביתה בערב."
    source = summary_page(document_of(text), summary_of(document_of(text), [0]))
    assert '<html lang="en">' in source
    assert re.search(r'<article [^>]*dir="auto" lang="he"', source)


def test_a_written_summary_has_no_places() -> None:
    summary = Summary(sentences=(ScoredSentence("All is well."),), tokens=9, seconds=0.1)
    page = Reader(summary_page(report(), summary))
    assert "All is well." in page.text
    assert not [attributes for tag, attributes in page.tags if tag == "a" and "#at-" in str(attributes["href"])]


def test_a_summary_of_another_document_is_refused() -> None:
    with pytest.raises(InputError, match="not of the document"):
        summary_page(document_of("Short."), summary_of(report(), [0]))


@pytest.mark.slow
def test_pages_grow_linearly() -> None:
    sizes, lines = [], []
    for paragraphs in (2_000, 20_000):  # a megabyte of text
        document = document_of("\n\n".join(["Some words stand here. Others follow them & end."] * paragraphs))
        summary = summary_of(document, [0])
        sizes.append(len(summary_page(document, summary)))
        lines.append(lines_run(summary_page, document, summary))
    assert sizes[1] < 11 * sizes[0]
    assert lines[1] < 11 * lines[0]


@pytest.mark.parametrize("name", ["page.txt", "page", "missing/page.html", "."])
def test_bad_places_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"^html .*; (let|choose)"):
        check_page(tmp_path / name)


# In a browser ---------------------------------------------------------------------------------------------------------


def shown(browser: Any, document: Document, file: Path, size: tuple[int, int], scheme: str = "light") -> None:
    save_page(summary_page(document, summary_of(document, [1, len(sentences_of(document)) // 2])), file)
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(file.as_uri())


def wait_for(condition: Callable[[], Any]) -> None:
    """What is waited for comes; where it does not, the suite's timeout ends the test here."""
    while not condition():
        time.sleep(0.05)


def in_view(browser: Any, selector: str) -> bool:
    script = """const box = document.querySelector(arguments[0]).getBoundingClientRect();
        return box.width > 0 && box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth"""
    return browser.execute_script(script, selector)


def at_rest(browser: Any) -> bool:
    """Whether the page does not move from one picture to the next, ten times in turn."""
    script = """const done = arguments[0], first = scrollY; let left = 10;
        const look = () => scrollY !== first ? done(false) : left-- ? requestAnimationFrame(look) : done(true);
        requestAnimationFrame(look)"""
    return browser.execute_async_script(script)


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_summary_leads_to_its_places_and_back(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    document = report()
    shown(browser, document, tmp_path / "page.html", size)
    widths = browser.execute_script("return [innerWidth, document.scrollingElement.scrollWidth - innerWidth]")
    assert widths[0] == size[0]  # a phone zooms out of a page that is too wide
    assert widths[1] <= 0
    assert in_view(browser, "#pick-1")
    target = browser.find_element("css selector", "#pick-2 a").get_attribute("href").partition("#")[2]
    assert not in_view(browser, f"#{target}")
    browser.find_element("css selector", "#pick-2 a").send_keys("\ue007")  # the enter key
    wait_for(lambda: in_view(browser, f"#{target}"))
    flash = f"return getComputedStyle(document.getElementById('{target}')).animationName"
    assert browser.execute_script(flash) == "flash"
    assert in_view(browser, "#pick-2") == (size == DESKTOP)  # at the side, or above
    wait_for(lambda: at_rest(browser))
    browser.execute_script(f"document.querySelector('#{target} .number').focus({{preventScroll: true}})")
    browser.switch_to.active_element.send_keys("\ue007")
    wait_for(lambda: in_view(browser, "#pick-2"))
    assert not browser.get_log("browser")


@pytest.mark.slow
def test_hostile_text_runs_and_loads_nothing(browser: Any, tmp_path: Path) -> None:
    shown(browser, hostile(), tmp_path / "page.html", PHONE)
    assert browser.title.endswith(": summary")
    assert HOSTILE.split()[0] in browser.find_element("css selector", "#document").text
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return innerWidth") == PHONE[0]
    assert not browser.get_log("browser")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_every_shade(browser: Any, tmp_path: Path, scheme: str) -> None:
    shown(browser, report(), tmp_path / "page.html", DESKTOP, scheme)
    script = "return [getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]].join()"

    def colour(selector: str, which: str) -> list[float]:
        return [float(part) for part in re.findall(r"[\d.]+", browser.execute_script(script, selector, which))]

    paper, ink, shade = colour("body", "backgroundColor"), colour("body", "color"), colour(".s9", "backgroundColor")
    behind = [shade[3] * over + (1 - shade[3]) * under for over, under in zip(shade, paper, strict=False)]
    assert contrast(ink, behind[:3]) >= 7  # WCAG 2.2, level AAA
    assert contrast(colour(".number", "color"), colour(".number", "backgroundColor")) >= 4.5


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2.2's contrast ratio of two colours, each of three parts from 0 to 255."""

    def luminance(colour: list[float]) -> float:
        parts = [part / 255 for part in colour[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
