"""The site as a reader meets it: opened from disk in a real browser, on a laptop and on a phone, without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan import attention, models, patterns
from longspan.cli import COMMANDS
from longspan.imports import added
from longspan.models.heads import HEADS
from longspan.tasks import TASKS

ROOT = Path(__file__).parents[1]
LAPTOP, PHONE = (1366, 900), (390, 844)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "mkdocs.yml").is_file(), reason="runs in a checkout, not from an installed package"),
]

# What a browser fetches by itself; a plain link that a reader may follow is none of these.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|embed|audio|video|object)\b[^>]*?\b(?:src|srcset|data)\s*=\s*["']?\s*(?P<tag>[^"'\s>]+)
      | <link\b[^>]*?\bhref\s*=\s*["']?\s*(?P<link>[^"'\s>]+)
      | url\(\s*["']?(?P<url>[^"')]+)
      | @import\s+["'](?P<style>[^"']+)""",
    re.VERBOSE | re.IGNORECASE,
)


def build(folder: Path) -> Path:
    pytest.importorskip("material", reason="the site is built with the 'docs' extra")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site") / "built")


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def resize(browser: Any, size: tuple[int, int]) -> None:
    """Set the page's own size exactly; a window's would include its frame, and is never narrower than 500."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def wait_for(condition: Callable[[], Any]) -> Any:
    """What is waited for comes; where it does not, the suite's timeout ends the test here."""
    while not (result := condition()):
        time.sleep(0.05)
    return result


def color_scheme(browser: Any) -> tuple[str, str]:
    """The scheme that the page claims, and the colour that is seen."""
    return browser.execute_script(
        "return [document.body.dataset.mdColorScheme, getComputedStyle(document.body).backgroundColor]"
    )


@pytest.fixture(scope="module")
def seen(site: Path, pages: list[Path], browser: Any) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """What a laptop and a phone show of each page, which is opened once, and what the browser says of them all."""
    shown: dict[str, list[tuple[str, dict[str, Any]]]] = {"laptop": [], "phone": []}
    for page in pages:
        resize(browser, LAPTOP)
        browser.get(page.as_uri())
        for name, size in {"laptop": LAPTOP, "phone": PHONE}.items():
            resize(browser, size)
            found = browser.execute_script("""
                const page = document.scrollingElement;
                page.scrollLeft = 1000;
                return {
                    width: innerWidth,
                    moved: page.scrollLeft,
                    beyond: page.scrollWidth - page.clientWidth,
                    code: [...document.querySelectorAll("pre > code")]
                        .filter((code) => code.scrollWidth > code.clientWidth)
                        .map((code) => code.innerText.slice(0, 80)),
                    external: performance.getEntriesByType("resource").map((entry) => entry.name)
                        .filter((name) => !name.startsWith("file:") && !name.startsWith("data:")),
                    broken: [...document.images].filter((image) => image.complete && !image.naturalWidth)
                        .map((image) => image.src),
                    coarse: [...document.querySelectorAll("article img")]
                        .filter((image) => image.naturalWidth < 2 * image.clientWidth && !image.src.endsWith(".svg"))
                        .map((image) => image.src.split("/").pop()),
                }""")
            found["wider"] = found.pop("width") - size[0]  # a phone zooms out of a page that is too wide
            shown[name].append((str(page.relative_to(site)), found))
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors
    return shown


def test_no_page_scrolls_sideways(seen: dict[str, list[tuple[str, dict[str, Any]]]]) -> None:
    """A narrow screen scrolls code within its own box."""
    others = {"laptop": {"coarse"}, "phone": {"coarse", "code"}}
    wrong = [
        (name, page, key, value)
        for name, shown in seen.items()
        for page, found in shown
        for key, value in found.items()
        if value and key not in others[name]
    ]
    assert not wrong


def test_a_picture_has_enough_dots_for_a_phone(seen: dict[str, list[tuple[str, dict[str, Any]]]]) -> None:
    """Phones have two or three dots for each of the 390 pixels of their width, less the margins."""
    assert not [(page, found["coarse"]) for page, found in seen["phone"] if found["coarse"]]


def test_a_switch_makes_pages_dark_and_keeps_them_so(site: Path, browser: Any) -> None:
    resize(browser, LAPTOP)
    browser.get((site / "index.html").as_uri())
    seen = [color_scheme(browser)]
    for _ in range(2):
        browser.find_element("css selector", "label[for^=__palette]:not([hidden])").click()
        wait_for(lambda: color_scheme(browser)[1] != seen[-1][1])
        seen.append(color_scheme(browser))
    assert {scheme for scheme, _ in seen} == {"default", "slate"}
    assert seen[0] == seen[2]
    browser.find_element("css selector", "label[for^=__palette]:not([hidden])").click()
    wait_for(lambda: color_scheme(browser) == seen[1])
    browser.get((site / "log.html").as_uri())
    assert color_scheme(browser) == seen[1]


@pytest.mark.parametrize(
    ("page", "word", "found_in"),
    [("index.html", "poolingformer", "poolingformer.html"), ("guides/install.html", "tydi", "train.html")],
)
def test_search_works_from_disk(site: Path, browser: Any, page: str, word: str, found_in: str) -> None:
    resize(browser, LAPTOP)
    browser.get((site / page).as_uri())
    browser.find_element("css selector", ".md-search__input").send_keys(word)

    def links() -> list[str]:
        script = 'return [...document.querySelectorAll(".md-search-result__link")].map((link) => link.href)'
        return browser.execute_script(script)

    wait_for(lambda: any(found_in in link for link in links()))
    assert all(link.startswith(site.as_uri()) for link in links())


def test_a_button_copies_code(site: Path, browser: Any) -> None:
    resize(browser, LAPTOP)
    browser.get((site / "guides" / "install.html").as_uri())
    buttons = ".highlight button[data-clipboard-target]"
    button = wait_for(lambda: browser.find_elements("css selector", buttons))[0]
    code = browser.find_element("css selector", button.get_attribute("data-clipboard-target")).text
    button.click()
    dialog = browser.find_element("css selector", ".md-dialog")
    wait_for(lambda: "Copied" in dialog.get_attribute("textContent"))
    field = browser.find_element("css selector", ".md-search__input")
    field.send_keys("\ue009v")  # control and v
    assert field.get_attribute("value").split() == code.split()


def test_equations_are_drawn(site: Path, browser: Any) -> None:
    resize(browser, LAPTOP)
    browser.get((site / "mechanisms" / "poolingformer.html").as_uri())
    sizes = browser.execute_script("""
        return [...document.querySelectorAll("math")].map((math) => {
            const box = math.getBoundingClientRect();
            return [box.width, box.height];
        })""")
    assert len(sizes) >= 10
    assert all(width > 0 and height > 0 for width, height in sizes)
    # A browser that knows MathML sets a fraction's parts above each other.
    above, below = browser.execute_script("""
        const parts = document.querySelector("mfrac").children;
        return [parts[0].getBoundingClientRect().bottom, parts[1].getBoundingClientRect().top]""")
    assert above <= below + 1
    fonts = browser.execute_script(
        "return document.fonts.ready.then((all) => [...all].map((font) => [font.family, font.status]))"
    )
    assert fonts == [["Noto Sans Math Subset", "loaded"]]


def test_a_keyboard_scrolls_a_wide_table(site: Path, browser: Any) -> None:
    resize(browser, PHONE)
    browser.get((site / "guides" / "install.html").as_uri())
    scroll = "const box = arguments[0]; return [box.scrollLeft, box.scrollWidth - box.clientWidth]"
    boxes = browser.find_elements("css selector", ".table[tabindex='0']")
    wide = next(box for box in boxes if browser.execute_script(scroll, box)[1] > 0)
    assert (wide.aria_role, wide.accessible_name) == ("region", "Table 1: Packages and extras")
    wide.send_keys("\ue014\ue014\ue014")  # the right arrow
    wait_for(lambda: browser.execute_script(scroll, wide)[0] > 0)
    assert browser.execute_script("return document.scrollingElement.scrollLeft") == 0


def test_the_search_is_a_dialog_with_a_name(site: Path, browser: Any) -> None:
    resize(browser, LAPTOP)
    browser.get((site / "index.html").as_uri())
    search = browser.find_element("css selector", ".md-search")
    assert (search.aria_role, search.accessible_name) == ("dialog", "Search")


def test_every_page_shows_the_version(pages: list[Path]) -> None:
    for page in pages:
        assert f"Longspan {longspan.__version__}</title>" in page.read_text(encoding="utf-8"), page


def test_every_table_has_a_name(pages: list[Path]) -> None:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        names = re.findall(
            r'<div class="table" role="region" aria-label="(Table \d+: [^"<>]+)" tabindex="0"><table>', text
        )
        assert len(names) == text.count("<table"), page
        assert len(set(names)) == len(names)


def test_nothing_comes_from_elsewhere(site: Path, pages: list[Path]) -> None:
    for path in [*pages, *site.rglob("*.css"), *site.rglob("*.svg")]:
        for match in _FETCHED.finditer(path.read_text(encoding="utf-8")):
            address = next(filter(None, match.groups()))
            assert not re.match(r"(https?:)?//", address), f"{path.relative_to(site)} loads {address}"


def test_no_equation_is_left_as_source(pages: list[Path]) -> None:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert 'class="arithmatex"' not in text, page
        assert not re.search(r"<m\w+>\\", text), f"{page} has LaTeX that was not understood"


def test_reference_has_every_public_name(site: Path) -> None:
    found = {
        name
        for page in (site / "reference").glob("*.html")
        for name in re.findall(r'\bid="(longspan[\w.]*)"', page.read_text(encoding="utf-8"))
    }
    own_page = {"__version__", "patterns", *models.__all__}
    public = {f"longspan.{name}" for name in dir(longspan) if name not in own_page}
    for module in (patterns, attention, models):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    ours = {entry.name for entry in added("heads")}
    public |= {f"{head.model_class().__module__}.{head.model}" for name, head in HEADS.items() if name in ours}
    public |= {f"{head.__module__}.{head.__name__}" for name, head in HEADS.items() if name in ours}
    public |= {entry.value.replace(":", ".") for entry in added("outputs")}
    public |= {f"{task.__module__}.{task.__qualname__}" for task in TASKS.values()}
    public |= {"longspan.training.optimisation.Optimisation", "longspan.checkpoints.train_new_positions_only"}
    assert public <= found, sorted(public - found)


def test_reference_has_plain_types(site: Path) -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")}
    assert not [name for name, page in pages.items() if "Annotated" in page]
    shown = re.sub(r"<[^>]+>", "", pages["attention"])
    assert re.search(r"left_tokens:\s*int = ", shown)


def test_reference_has_every_command(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f'id="longspan-{name}"' in page
    assert "--sentences" in page


def test_the_rooms_are_drawn_for_the_site_alone(site: Path) -> None:
    """A picture that every change of the code changes would make each build change the checkout."""
    assert (site / "img" / "rooms.png").read_bytes().startswith(b"\x89PNG")
    assert "img/rooms.png" in (site / "architecture.html").read_text(encoding="utf-8")
    assert not (ROOT / "docs" / "img" / "rooms.png").exists()


def test_equal_sources_give_equal_bytes(site: Path, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    again = contents(build(tmp_path / "again"))
    assert contents(site) == again
    assert not [name for name in again if name.endswith((".py", ".pyc"))]  # what draws the pages is no page
