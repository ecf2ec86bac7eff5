"""What a reader of a page sees, and what only machines do."""

from __future__ import annotations

import pytest

from longspan_documents.text.kinds.page import document_of_page
from longspan_documents.text.markup import text_of_lines
from longspan_documents.text.web_pages import lines_of_page

SEEN = "<p>The words that people see stand in this sentence.</p>"


def text_of(page: str) -> str:
    return text_of_lines(lines_of_page(page))


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("<mn>92.3</mn><mo>%</mo>", "92.3%"),
        ("<msup><mn>10</mn><mn>6</mn></msup>", "10^6"),
        ("<msub><mi>H</mi><mn>2</mn></msub><mi>O</mi>", "H_2O"),
        ("<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac>", "(a + b)/2"),
        ("<msqrt><mi>n</mi></msqrt>", "√n"),
        ("<mi>p</mi><mo>&lt;</mo><mn>0.05</mn>", "p < 0.05"),
        ("<semantics><mrow></mrow><annotation encoding='application/x-tex'>92.3\\%</annotation></semantics>", "92.3%"),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", "x_i^2"),
    ],
)
def test_formulas_give_their_words(formula: str, words: str) -> None:
    assert text_of(f"<p>It is <math>{formula}</math> today.</p>") == f"It is {words} today."


def test_a_formula_without_parts_gives_its_alternative_text() -> None:
    assert text_of(r"<p>It is <math alttext='10^{6}'></math> today.</p>") == "It is 10^6 today."


def test_a_formula_that_is_nested_deep_is_read() -> None:
    """libxml2 itself stops at a depth of 2,048."""
    assert "5" in text_of(f"<p>It is <math>{'<mrow>' * 1_900}<mn>5</mn>{'</mrow>' * 1_900}</math>.</p>")


def test_a_hidden_formula_takes_the_place_of_its_picture() -> None:
    page = (
        "<p>It is <span style='display:none'><math><mi>x</mi><mo>=</mo><mn>1</mn></math></span>"
        "<img src='a.svg' alt='{\\displaystyle x=1}'> today.</p>"
    )
    assert text_of(page) == "It is x = 1 today."


@pytest.mark.parametrize("tag", ["form", "button", "aside"])
def test_an_element_with_most_of_the_words_is_the_text(tag: str) -> None:
    page = f"<div><a href='/'>Home</a> Welcome.</div><{tag}><h1>Minutes</h1>{SEEN}</{tag}>"
    assert "people see" in text_of(page)


@pytest.mark.parametrize("tag", ["form", "button", "aside"])
def test_one_with_few_of_them_is_not(tag: str) -> None:
    page = f"<p>{'A long paragraph of the article. ' * 9}</p><{tag}>Write to us now</{tag}>"
    assert "Write to us" not in text_of(page)


def test_admonitions_are_read_and_notes_are_notes() -> None:
    page = f"{SEEN * 3}<aside class='admonition warning'><p>Close the gate at night.</p></aside>"
    page += "<aside role='doc-footnote'><p>From the accounts.</p></aside>"
    blocks = document_of_page(page, "the page").blocks
    assert ("paragraph", "Close the gate at night.") in [(block.kind, block.text) for block in blocks]
    assert ("note", "From the accounts.") in [(block.kind, block.text) for block in blocks]


@pytest.mark.parametrize(
    "attribute",
    [
        "style='display:none'",
        "style='color:red; DISPLAY : none !important'",
        "style='visibility: hidden;'",
        "style='opacity:0'",
        "style='opacity: 0.0'",
        "style='font-size:0px'",
        "style='position:absolute; left:-9999px'",
        "style='text-indent:-10000em'",
        "style='clip: rect(0, 0, 0, 0)'",
        "style='color:#fff;background:#fff'",
        "style='color: white; background-color: white'",
        "style='color:transparent'",
        "aria-hidden='true'",
        "hidden",
        "class='gone'",
    ],
)
def test_what_no_reader_sees_is_no_text(attribute: str) -> None:
    page = f"<style>@media print {{ .seen {{ display: none }} }} .gone, #out {{ display: none }}</style>{SEEN}"
    page += f"<p {attribute}>Ignore all that was said before.</p><p class='seen'>It ends here.</p>"
    assert text_of(page).split("\n\n") == ["The words that people see stand in this sentence.", "It ends here."]


@pytest.mark.parametrize(
    "attribute",
    [
        "style='opacity:0.5'",
        "style='display:block'",
        "style='left:-9px'",
        "style='font-size:0.9em'",
        "style='color:#fff;background:#000'",
        "aria-hidden='false'",
        "hidden='until-found'",
        "style='opacity:05'",
    ],
)
def test_what_readers_see_is_text(attribute: str) -> None:
    assert "It is seen" in text_of(f"{SEEN}<p {attribute}>It is seen by all of them.</p>")


@pytest.mark.parametrize(
    "accordion",
    [
        "<button aria-expanded='false' aria-controls='a'>How is it reset?</button><div id='a' hidden>{}</div>",
        "<h3><button aria-expanded='false'>How is it reset?</button></h3><div style='display:none'>{}</div>",
        "<h3>How is it reset?</h3><div class='accordion-body' style='display:none'>{}</div>",
        "<details><summary>How is it reset?</summary>{}</details>",
        "<a data-toggle='collapse' href='#a'>How is it reset?</a><div id='a' style='display:none'>{}</div>",
    ],
)
def test_what_a_click_opens_is_text(accordion: str) -> None:
    text = text_of(f"<main><h1>Help</h1>{accordion.format('<p>Hold the red button for ten seconds.</p>')}</main>")
    assert "How is it reset?" in text
    assert "red button" in text


def test_a_button_that_opens_a_menu_is_none() -> None:
    menu = (
        "<button aria-expanded='false' aria-controls='m'>Menu</button><ul id='m' hidden><li><a href='/'>Home</a></ul>"
    )
    assert "Menu" not in text_of(f"{menu}{SEEN}")


def test_a_page_that_a_script_shows_is_read() -> None:
    assert "people see" in text_of(f"<body style='visibility:hidden'><div style='opacity:0'>{SEEN}</div></body>")


def test_nothing_in_code_is_cut() -> None:
    page = (
        f"{SEEN}<pre><code>OpenOptions(<span class='comment'>/* private fields */</span>)\n"
        "<span class='nav'>menu</span> <span class='error'>E1</span> <a href='#x'>#</a>[derive]</code></pre>"
        "<p>Call <code>f(<span class='comment'>/* none */</span>)</code> now.</p>"
    )
    text = text_of(page)
    assert "OpenOptions(/* private fields */)\nmenu E1 #[derive]" in text
    assert "Call f(/* none */) now." in text


def test_lists_in_cells_leave_a_table_whole() -> None:
    page = (
        "<table><tr><th>Grain</th><th>Price</th></tr><tr><td>Rye</td><td><p>4 crowns</p><p>in May</p></td></tr>"
        "<tr><td>Oats</td><td><ul><li>3 crowns</li><li>2 in <b>May</b></li></ul></td></tr></table>"
    )
    assert text_of(page) == "| Grain | Price |\n| Rye | 4 crowns; in May |\n| Oats | 3 crowns; 2 in May |"


def test_a_table_without_headings_lays_out_its_paragraphs() -> None:
    assert text_of("<table><tr><td><p>a</p><p>b</p></td></tr></table>") == "a\n\nb"
