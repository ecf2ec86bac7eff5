"""The page in a browser: documents that attack it, the keyboard alone, a phone, colours, labels, cancelling, marks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # a server and a browser, each a process of its own

LAPTOP, PHONE = (1366, 900), (390, 844)
TEXT = (
    "# Small animals\n\nBees dance to tell where flowers are. Karl von Frisch described the dance in 1923. "
    "It gives the direction and the distance.\n\n## Marmots\n\nMarmots whistle when an eagle comes. "
    "They sleep through the winter in burrows below the snow, and live on the fat of the summer.\n\n"
    "```\nnumber = 5\n```\n\n- Marmots eat grass.\n- Eagles eat marmots.\n"
)
ATTACK = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>'
MARKUP = (
    f"# Title {ATTACK}\n\n{ATTACK} The dean said <b onmouseover=alert(1)>nothing</b> of javascript:alert(1). "
    "\"'><svg onload=window.hacked=3> is what the treasurer paid. A [link](javascript:window.hacked=4) stood there. "
    "{{constructor.constructor('window.hacked=5')()}} closed the meeting. \u202eturned around\u202c was the vote.\n\n"
    f'## "><iframe src=/docs></iframe>\n\nANNA{ATTACK}: We agree.\n\n    {ATTACK}\n\n'
    f"| a | b |\n|---|---|\n| {ATTACK} | &lt;img src=x onerror=window.hacked=13&gt; |\n"
)
PAGE = f"""<html onclick="window.hacked=6"><head><title>A &lt;script&gt;window.hacked=7&lt;/script&gt;</title>
<style>body {{ display: none }}</style><script>window.hacked=8</script><base href="http://evil.example/"></head>
<body onload="window.hacked=9"><p style="position:fixed" id="desk">The bridge opened in 1932, says
&lt;img src=x onerror=window.hacked=10&gt;. It was closed in 1950 for repairs.</p>{ATTACK}
<form action="/documents"><input name=file autofocus onfocus="window.hacked=11"></form></body></html>"""


def wait_for(condition: Callable[[], Any]) -> Any:
    """What is waited for comes; where it does not, the suite's timeout ends the test here."""
    while not (result := condition()):
        time.sleep(0.05)
    return result


@pytest.fixture(scope="module")
def server(served: Any) -> Iterator[Any]:
    with served() as running:
        yield running


class Page:
    """The page of a server in a browser."""

    def __init__(self, browser: Any, server: Any, size: tuple[int, int] = LAPTOP, scheme: str = "light") -> None:
        self.browser, self.server = browser, server
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(server.address)
        browser.execute_script("localStorage.clear(); sessionStorage.clear()")
        browser.get(server.address)
        browser.get_log("browser")

    def js(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def one(self, selector: str) -> Any:
        return wait_for(lambda: self.browser.find_elements("css selector", selector))[0]

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def is_idle(self) -> bool:
        return self.js(
            "return document.getElementById('progress').hidden && document.querySelector('.picks li') !== null"
        )

    def open(self, *files: Path) -> None:
        """Choose files, and wait for the summary of the first."""
        before = self.js("return document.querySelectorAll('#documents li').length")
        self.one("#files").send_keys("\n".join(map(str, files)))
        wait_for(lambda: self.js("return document.querySelectorAll('#documents li').length") == before + len(files))
        wait_for(self.is_idle)

    def ask(self, question: str) -> None:
        self.js("document.getElementById('tab-ask').click()")
        self.one("#question").clear()
        self.one("#question").send_keys(question + "\n")
        wait_for(lambda: self.text("#answers h3") == question)

    def press(self, *keys: str) -> None:
        """Type where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def focus(self) -> str:
        """What has the focus: its id, else its words."""
        return self.js("const one = document.activeElement; return one.id || one.innerText.trim()")

    def wrong(self) -> list[str]:
        """What the browser complains of: mistakes of scripts, and what the page's policy had to stop."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_document_that_attacks_the_page_stays_text(browser: Any, server: Any, tmp_path: Path) -> None:
    name = "'\"><img src=x onerror=window.hacked=12>" + "n" * 150
    files = [tmp_path / f"{name}.md", tmp_path / "page.html", tmp_path / "a&b<i>.txt"]
    for file, text in zip(files, (MARKUP, PAGE, MARKUP), strict=True):
        file.write_text(text, encoding="utf-8")
    page = Page(browser, server)
    tags = """return ["script", "img", "svg", "iframe", "style", "base", "form"]
        .map((tag) => document.querySelectorAll(tag).length)"""
    before = page.js(tags)
    page.open(*files)
    for number in range(len(files)):
        page.js("document.querySelectorAll('.choose')[arguments[0]].click()", number)
        wait_for(
            lambda number=number: page.js(
                "return document.querySelectorAll('.choose')[arguments[0]].ariaCurrent", number
            )
        )
        wait_for(page.is_idle)
        shown = page.text("#reader")
        assert "onerror" in shown
        if files[number].suffix == ".md":
            cells = page.js("return [...document.querySelectorAll('#reader td')].map((cell) => cell.textContent)")
            assert cells == ["a", "b", "", "<img src=x onerror=window.hacked=13>"]
        page.ask(f"who paid? {ATTACK}")
        assert page.js("return document.querySelectorAll('#answers li').length")
        assert "\u202e" not in page.js("return document.body.textContent")
        assert page.js(tags) == before
        assert page.js("return window.hacked") is None
        attributes = page.js("return [...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())")
        assert not [one for one in attributes if one.startswith("on") or one == "srcdoc"]
    listed = page.js("return document.getElementById('documents').textContent")
    assert files[0].name.partition('"')[2] in listed  # browsers send a quotation mark in a name as %22
    loaded = page.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(address.startswith(server.address) for address in loaded)
    assert page.js("return document.scrollingElement.scrollWidth <= innerWidth")
    assert not page.wrong()


def test_everything_can_be_done_from_the_keyboard(browser: Any, server: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Page(browser, server)
    page.press(Keys.TAB)
    assert page.focus() == "Skip to the document"
    order = []
    while (focus := page.focus()) != "Paste a text":
        page.press(Keys.TAB)
        order.append(focus)
        assert len(order) < 20
    assert order == ["Skip to the document", "Longspan", "API", "theme", "Choose files", "Choose a folder"]
    page.press(Keys.ENTER)
    wait_for(lambda: page.focus() == "pasted")
    page.js("document.getElementById('pasted').value = arguments[0]", TEXT)
    page.press(Keys.TAB, Keys.ENTER)
    wait_for(page.is_idle)
    assert page.js("return document.activeElement.matches('.choose[aria-current]')"), (
        "the focus is lost with the button"
    )
    page.press(Keys.ENTER)  # reads it again; the list is made anew
    wait_for(page.is_idle)
    assert page.js("return document.activeElement.matches('.choose[aria-current]')")

    page.js("document.getElementById('length').focus()")
    picked = len(page.browser.find_elements("css selector", "#picked li"))
    page.press(Keys.ARROW_RIGHT)
    wait_for(lambda: len(page.browser.find_elements("css selector", "#picked li")) == picked + 1)
    page.press(Keys.TAB, Keys.TAB)
    page.press(Keys.ENTER)  # the first sentence of the summary
    first = page.text("#picked li span")
    assert page.js("return document.activeElement.matches('.sentence.here.picked')")
    assert page.focus() == first
    page.press("/")
    assert page.focus() == "question"
    page.press("who described the dance?", Keys.ENTER)
    wait_for(lambda: page.text("#answers h3") == "who described the dance?")
    page.press(Keys.TAB)
    page.press(Keys.TAB)
    assert page.js("return document.activeElement.matches('#answers .jump')"), page.focus()
    page.press(Keys.ENTER)
    assert page.js("return document.activeElement.matches('.sentence.here.marked')")
    assert page.focus() == "Karl von Frisch described the dance in 1923."
    assert not page.wrong()


def test_the_tabs_go_with_arrows(browser: Any, server: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    (tmp_path / "notes.md").write_text(TEXT)
    page = Page(browser, server)
    page.open(tmp_path / "notes.md")
    page.js("document.getElementById('tab-summary').focus()")
    for key, tab, panel in (
        (Keys.ARROW_RIGHT, "tab-ask", "panel-ask"),
        (Keys.ARROW_LEFT, "tab-summary", "panel-summary"),
    ):
        page.press(key)
        assert page.focus() == tab
        assert page.js("return document.getElementById(arguments[0]).checkVisibility()", panel)


def test_a_phone_shows_one_thing_at_a_time(browser: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(TEXT + "\n" + "w" * 400 + "\n")
    page = Page(browser, server, PHONE)
    sideways = "return [innerWidth, document.scrollingElement.scrollWidth]"
    assert page.js(sideways) == [PHONE[0]] * 2
    page.open(tmp_path / "notes.md")
    visible = "return ['.side', '.reader'].map((one) => document.querySelector(one).checkVisibility())"
    assert page.js(visible) == [True, False]
    assert page.js(sideways) == [PHONE[0]] * 2
    page.one("#picked .jump").click()
    assert page.js(visible) == [False, True]
    assert page.js("return document.querySelector('.here').getBoundingClientRect().top") < PHONE[1]
    assert page.js(sideways) == [PHONE[0]] * 2
    page.one(".views [data-view=side]").click()
    assert page.js(visible) == [True, False]
    low = page.js("return [...document.querySelectorAll('.views button, .tabs button')].map((one) => one.offsetHeight)")
    assert min(low) >= 24  # as large as WCAG 2.2 asks of what fingers hit (2.5.8)


CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (part) => part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
const below = (one) => {
  const colour = one ? rgba(getComputedStyle(one).backgroundColor) : [255, 255, 255, 255];
  return colour[3] === 255 ? colour : below(one.parentElement);
};
const low = [];
for (const one of document.body.querySelectorAll("*")) {
  if (!one.checkVisibility() || ![...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(rgba(getComputedStyle(one).color)), light(below(one))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) low.push(`${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return low;
"""
"""Texts whose colour differs from what is below them by less than WCAG asks of small letters (1.4.3: 4.5)."""


def test_letters_can_be_read_in_light_and_dark(browser: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(TEXT)
    seen = {}
    for scheme in ("light", "dark"):
        page = Page(browser, server, scheme=scheme)
        seen[scheme] = page.js("return getComputedStyle(document.body).backgroundColor")
        assert not page.js(CONTRASTS)
        page.open(tmp_path / "notes.md")
        assert not page.js(CONTRASTS)
        for question in ("who described the dance?", "what does a zeppelin cost?"):
            page.ask(question)
            assert not page.js(CONTRASTS)
    assert seen["light"] != seen["dark"]
    page.one("#theme").click()  # of a dark system: as the system, light, dark
    assert page.js("return getComputedStyle(document.body).backgroundColor") == seen["light"]
    page.browser.refresh()
    assert page.js("return getComputedStyle(document.body).backgroundColor") == seen["light"]


def test_screen_readers_hear_names_and_roles(browser: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(TEXT)
    page = Page(browser, server)

    def heard() -> set[tuple[str, str]]:
        nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        shown = [node for node in nodes if not node["ignored"]]
        said = {(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in shown}
        nameless = {"button", "link", "textbox", "slider", "tab", "radio", "dialog", "progressbar", "region", "image"}
        assert not [role for role, name in said if role in nameless and not name]
        return said

    browser.execute_cdp_cmd("Accessibility.enable", {})
    assert {
        ("heading", "Read long documents in less time"),
        ("button", "Choose files"),
        ("button", "Theme: Auto"),
        ("link", "Skip to the document"),
        ("link", "Longspan"),
    } <= heard()
    page.open(tmp_path / "notes.md")
    assert {
        ("complementary", "Documents, summary and questions"),
        ("article", "Document notes.md"),
        ("heading", "Small animals"),
        ("tablist", "What to see"),
        ("tab", "Summary"),
        ("tab", "Ask"),
        ("tabpanel", "Summary"),
        ("slider", "Length"),
        ("textbox", "About"),
        ("button", "Remove notes.md"),
        ("heading", "Marmots"),
        ("region", "code"),
    } <= heard()
    page.ask("who described the dance?")
    said = heard()
    assert {("tabpanel", "Ask"), ("textbox", "Question"), ("heading", "who described the dance?")} <= said
    assert any(role == "button" and "Karl von Frisch described the dance in 1923." in name for role, name in said)
    assert any(role == "status" for role, _ in said)
    browser.execute_cdp_cmd("Accessibility.disable", {})
    assert page.js("return document.documentElement.lang") == "en"


def test_nothing_jumps_and_folds_hold_words(browser: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Bees\n\nBees dance to tell where flowers are. They live in hives.\n")
    page = Page(browser, server)
    titles = """return [...document.querySelectorAll('h1')]
        .filter((one) => one.checkVisibility()).map((one) => one.innerText)"""
    assert page.js(titles) == ["Read long documents in less time"]
    page.open(tmp_path / "notes.md")
    assert page.js(titles) == ["Bees"]
    top = "return document.getElementById('panel-summary').getBoundingClientRect().top"
    at_rest = page.js(top)
    page.js("document.getElementById('progress').hidden = false")
    assert page.js(top) == at_rest  # the bar's room is its own
    page.js("document.getElementById('progress').hidden = true")
    assert not page.js("return document.getElementById('cancel').checkVisibility({visibilityProperty: true})")
    shown = """const block = (kind, text) => ({kind, level: 0, speaker: null, start: 0, page: 1, runs: [[text, null]]});
        return import('/static/document.js').then(({show}) => {
            show({name: 'x', blocks: [block('boilerplate', ''), block('paragraph', 'Bees dance.'),
                block('boilerplate', 'Contents'), block('boilerplate', ' '), block('boilerplate', 'Hives 2'),
                block('note', 'Seen.')]});
            return [...document.querySelectorAll('#reader details')].map((one) => one.textContent);
        })"""
    assert page.js(shown) == ["Boilerplate ContentsContentsHives 2", "Note Seen.Seen."]
    counts = "return import('/static/calls.js').then(({counted}) => [1, 2000].map((one) => counted(one, 'page')))"
    assert page.js(counts) == ["1 page", "2,000 pages"]
    theme = page.one("#theme")
    for name in ("Light", "Dark", "Auto"):
        theme.click()
        assert (theme.get_attribute("aria-label"), name in theme.text) == (f"Theme: {name}", True)


def test_a_long_job_can_be_cancelled(browser: Any, server: Any, tmp_path: Path) -> None:
    words = [
        f"Marmot number {number} whistles at eagle {number + 1} above snow {number + 2}." for number in range(20_000)
    ]
    (tmp_path / "long.txt").write_text("\n\n".join(words))
    (tmp_path / "notes.md").write_text(TEXT)
    page = Page(browser, server)  # of one worker: what comes next waits until the long job is gone
    page.one("#files").send_keys(str(tmp_path / "long.txt"))
    wait_for(lambda: page.text("#doing").startswith("Reading every sentence"))
    page.one("#cancel").click()
    wait_for(lambda: page.js("return document.getElementById('progress').hidden"))
    assert page.js("return document.getElementById('error').hidden"), page.text("#error")
    assert not page.browser.find_elements("css selector", "#picked li")
    page.one("#files").send_keys(str(tmp_path / "notes.md"))
    wait_for(page.is_idle)
    assert "Marmots" in page.text("#reader")
    assert not page.wrong()


def test_marks_say_how_sure_an_answer_is(browser: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(TEXT)
    page = Page(browser, server)
    page.open(tmp_path / "notes.md")
    identity = page.js("return JSON.parse(sessionStorage.getItem('longspan-documents'))[0].id")
    words = set()
    for question in ("who described the dance of bees?", "what do eagles eat?", "what does a zeppelin cost?"):
        page.ask(question)
        (expected,) = server.request("POST", "/answer", {"documents": [identity], "question": question}).json
        words.add(expected["sure"])
        assert page.text(".verdict .sure") == expected["sure"]
        assert (
            page.js("return document.querySelector('.verdict .sure').title")
            == f"{round(100 * expected['probability'])} %"
        )
        told = [f"{round(100 * passage['probability'])} %" for passage in expected["passages"]]
        assert page.js("return [...document.querySelectorAll('.passages .sure')].map((one) => one.innerText)") == told
        lit = page.js("return [...document.querySelectorAll('.sentence.passage')].map((one) => one.textContent)")
        for passage in expected["passages"]:
            assert any(text in passage["text"] for text in lit)
        marked = page.js("return [...document.querySelectorAll('.sentence.marked')].map((one) => one.textContent)")
        assert sorted(marked) == sorted(passage["sentence"]["text"] for passage in expected["passages"])
        assert page.js("return document.querySelectorAll('#map i.marked').length") == len(marked)
    assert len(words) > 1, words
