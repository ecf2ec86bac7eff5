"""Preparation of a page's tree: formulas become words, hidden elements are removed, and elements that are text despite
their tags (`form`, `button`, `aside`) are kept.

The tree is modified in place, before the article is extracted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

EMPTY = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object", "title", "select", "textarea"})
"""Elements whose text is not read in place."""
SHORTEST_CELL = 300
"""In characters; a cell of a table with headings is one line up to this length, whatever lists and paragraphs it
contains."""
FEWEST = 5
"""Minimum words outside links of an element that a button opens; with fewer, it is a menu."""
MOST = 0.9
"""Share of a page's words in an element that is hidden until a script shows the page."""

_WORD = re.compile(r"\w+")
_STYLE_HIDDEN = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0*\.?0+%?"
    r"|font-size\s*:\s*0+(?:\.0+)?[a-z%]*|(?:left|top|text-indent|margin-left)\s*:\s*-\d{3,}(?:\.\d+)?(?:px|em|rem|%)?"
    r"|clip\s*:\s*rect\(\s*[01](?:px)?[\s,]+[01](?:px)?[\s,]+[01](?:px)?[\s,]+[01](?:px)?\s*\))\s*(?:!important\s*)?"
    r"(?=;|$)",
    re.IGNORECASE,
)
_COLOURS = re.compile(r"(?:^|;)\s*(color|background(?:-color)?)\s*:\s*([^;!]+?)\s*(?:!important\s*)?(?=;|$)", re.I)
_RULE = re.compile(r"([^{}]{1,2000})\{([^{}]*)\}")
_SIMPLE = re.compile(r"([.#])([A-Za-z_][\w-]{0,80})")
_BLOCK_OF_RULES = re.compile(r"@(?!font-face)[^{};]{1,200}\{(?:[^{}]|\{[^{}]*\})*\}|/\*.*?\*/", re.DOTALL)
_OPENED = re.compile(
    r"(?:^|[-_\s])(?:accordions?|collaps\w*|expand\w*|toggle\w*|faq|answers?|tab-?pan\w*|tab-content|details|spoiler)"
    r"(?:$|[-_\s])",
    re.IGNORECASE,
)
_ADMONITION = re.compile(
    r"(?:^|[-_\s:])(?:admonition|note|tip|hint|warning|caution|danger|important|attention|info|callout|alert|remark"
    r"|example|definition|theorem|pull-?quote|doc-tip|doc-example|doc-notice|sidenote|marginnote)(?:$|[-_\s])",
    re.IGNORECASE,
)
_NOTE = re.compile(r"(?:^|[-_\s])(?:doc-)?(?:foot|end|rear)notes?(?:$|[-_\s])", re.IGNORECASE)
_TYPES = ("{http://www.idpf.org/2007/ops}type", "epub:type", "type")
_OPENING = ("aria-expanded", "aria-controls", "data-toggle", "data-bs-toggle")
_BLOCKS = frozenset({"ul", "ol", "dl", "li", "dt", "dd", "p", "div", "menu"})


def keep_what_is_read(root: Any) -> None:
    """Modifies a tree so that it contains the visible text."""
    _mark_formulas(root)
    _show_what_opens(root)
    _drop_hidden(root)
    _keep_words_of_forms(root)
    _join_cells(root)


def count(root: Any, worth: Callable[[Any, str], int], empty: Callable[[Any], bool]) -> dict[Any, int]:
    """Sums for each element `worth` over its texts that are not blank; `empty` elements have 0."""
    counts: dict[Any, int] = {}
    for element in reversed(list(root.iter())):
        total = 0
        if isinstance(element.tag, str) and not empty(element):
            text = element.text
            total = worth(element, text) if text and not text.isspace() else 0
            for child in element:
                text = child.tail
                total += counts[child] + (worth(element, text) if text and not text.isspace() else 0)
        counts[element] = total
    return counts


def _words(root: Any, empty: frozenset[str] = EMPTY) -> dict[Any, int]:
    """Counts for each element its words outside links."""
    return count(
        root,
        lambda element, text: 0 if element.tag == "a" else len(_WORD.findall(text)),
        lambda element: element.tag in empty or element.tag == "head",
    )


def _named(element: Any) -> str:
    return " ".join(filter(None, (element.get(name) for name in ("id", "class", "role", *_TYPES))))


def _drop(element: Any) -> None:
    """Removes an element from its tree, keeping the text after it."""
    element.clear(keep_tail=True)
    element.tag = "script"


# Hidden elements


def _drop_hidden(root: Any) -> None:
    """Removes invisible elements inside visible ones; elements opened by a click are kept."""
    names = _hidden_names(root)
    hidden = [element for element in root.iter() if isinstance(element.tag, str) and _is_hidden(element, names)]
    if not hidden:
        return
    words = _words(root)
    controlled = {name for element in root.iter() if isinstance(element.tag, str) for name in _controls(element)}
    for element in hidden:
        if element.tag in {"html", "body"} or _is_opened(element, controlled) or words[element] > MOST * words[root]:
            continue
        if element.tag == "span" and element.get("data-formula"):
            continue
        if any(element_inside.get("data-formula") for element_inside in element.iter("span")) and not _visible_twin(
            element
        ):
            continue
        _drop(element)


def _hidden_names(root: Any) -> set[str]:
    """Returns the classes (prefixed ".") and ids ("#") that the page's style sheets hide everywhere."""
    names: set[str] = set()
    for sheet in root.iter("style"):
        for selectors, rules in _RULE.findall(_BLOCK_OF_RULES.sub(" ", sheet.text or "")):
            if _STYLE_HIDDEN.search(rules):
                names.update(one.strip() for one in selectors.split(",") if _SIMPLE.fullmatch(one.strip()))
    return names


def _is_hidden(element: Any, names: set[str]) -> bool:
    attributes = element.attrib
    if not attributes:
        return False
    hidden = attributes.get("hidden")
    if hidden is not None and hidden.lower() != "until-found":
        return True
    if (attributes.get("aria-hidden") or "").lower() == "true" and not _in_code(element):
        return True
    style = attributes.get("style")
    if style and (_STYLE_HIDDEN.search(style) or _is_invisible_ink(style)):
        return True
    if not names:
        return False
    own = {f".{name}" for name in (attributes.get("class") or "").split()} | {f"#{attributes.get('id')}"}
    return not names.isdisjoint(own)


def _is_invisible_ink(style: str) -> bool:
    """Whether text has the colour of its background in one declaration."""
    colours = {name.lower()[:5]: "".join(value.lower().split()) for name, value in _COLOURS.findall(style)}
    return colours.get("color") == "transparent" or ("backg" in colours and colours.get("color") == colours["backg"])


def _in_code(element: Any) -> bool:
    return any(above.tag in {"pre", "code"} for above in element.iterancestors())


def _controls(element: Any) -> Iterator[str]:
    """Yields the ids of elements that an element opens."""
    for name in ("aria-controls", "data-target", "data-bs-target"):
        for one in (element.get(name) or "").split():
            yield one.removeprefix("#")
    if (element.get("href") or "").startswith("#") and any(element.get(name) is not None for name in _OPENING):
        yield element.get("href")[1:]


def _is_opened(element: Any, controlled: set[str]) -> bool:
    """Whether a click shows an element: an answer of an accordion, a tab."""
    if element.get("id") in controlled or element.get("role") == "tabpanel" or _OPENED.search(element.get("class", "")):
        return True
    before = element.getprevious()
    return before is not None and any(
        one.tag in {"button", "summary"} or one.get("aria-expanded") is not None for one in before.iter()
    )


# Buttons, forms and asides


def _show_what_opens(root: Any) -> None:
    """Makes the button or link that opens an answer a heading, unless it is inside one."""
    words: dict[Any, int] = {}
    ids: dict[str, Any] = {}
    for button in list(root.iter("button", "a")):
        if not any(button.get(name) is not None for name in _OPENING):
            continue
        if not words:
            words = _words(root, EMPTY | {"nav"})
            ids = {
                element.get("id"): element
                for element in root.iter()
                if isinstance(element.tag, str) and element.get("id")
            }
        outer = button.getparent()
        heading = outer if outer is not None and re.fullmatch("h[1-6]", str(outer.tag)) else None
        behind = (button if heading is None else heading).getnext()
        opened = next((ids[name] for name in _controls(button) if name in ids), behind)
        if opened is not None and words.get(opened, 0) >= FEWEST:
            button.tag = "h3" if heading is None else "span"


def _keep_words_of_forms(root: Any) -> None:
    """Keeps forms, buttons and asides with at least half of the page's words, and admonitions, as text, and notes of
    books as notes."""
    waiting = [element for tag in ("form", "button", "aside") for element in root.iter(tag)]
    most = max((len(_WORD.findall("".join(element.itertext()))) for element in waiting), default=0)
    # On a page with small buttons only, not every word is counted.
    words = _words(root) if waiting and not _has_more_words(root, 2 * most) else {}
    for element in waiting:
        named = _named(element)
        if element.tag == "aside" and _NOTE.search(named):
            element.tag = "note"
        elif (element.tag == "aside" and _ADMONITION.search(named)) or (
            words and 2 * words[element] >= max(words[root], 1)
        ):
            element.tag = "div"


def _has_more_words(root: Any, number: int) -> bool:
    """Whether an element has more than `number` words, counted as in `_words`."""
    waiting, found = [root], 0
    while waiting and found <= number:
        element = waiting.pop()
        if not isinstance(element.tag, str) or element.tag in EMPTY or element.tag == "head":
            continue
        texts = [element.text, *(child.tail for child in element)]
        if element.tag != "a":
            found += sum(len(_WORD.findall(text)) for text in texts if text)
        waiting.extend(element)
    return found > number


def _join_cells(root: Any) -> None:
    """Joins lists and paragraphs in short cells of a table with headings into one line."""
    for table in root.iter("table"):
        if table.get("role") in {"presentation", "none"} or next(table.iter("th"), None) is None:
            continue
        for cell in [element for tag in ("td", "th") for element in table.iter(tag)]:
            inside = [element for element in cell.iter() if element is not cell and isinstance(element.tag, str)]
            blocks = [element for element in inside if element.tag in _BLOCKS]
            if not blocks or any(element.tag in {"table", "pre"} for element in inside):
                continue
            if len("".join(cell.itertext())) > SHORTEST_CELL:
                continue
            for one in blocks:
                if one.tag in {"li", "p", "dd"} and one.getnext() is not None:
                    one.tail = f"; {(one.tail or '').strip()}"
                elif one.tag == "dt":
                    one.tail = f": {(one.tail or '').strip()}"
                elif (one.tail or "").strip() or one.getnext() is not None:
                    one.tail = f" {one.tail or ''}"
                one.tag = "span"


# Formulas


def _mark_formulas(root: Any) -> None:
    """Replaces each formula by a `span` with its words."""
    for formula in list(root.iter("math")):
        words = words_of_formula(formula)
        formula.clear(keep_tail=True)
        formula.tag, formula.text = "span", words
        formula.set("data-formula", "1")


def words_of_formula(formula: Any) -> str:
    """Returns a MathML element as a line of characters: from its presentation, otherwise from its annotation or
    `alttext`."""
    words = " ".join(_line(formula).split())
    if words:
        return words
    notes = (note.text or "" for tag in ("annotation", "annotation-xml") for note in formula.iter(tag))
    return _plain(next((note for note in notes if note.strip()), formula.get("alttext") or ""))


def _plain(tex: str) -> str:
    """Removes TeX markup around single characters of a formula."""
    tex = re.sub(r"\\(?:displaystyle|textstyle|left|right)\b\s*|\\([%$#&_{} ])|[$]", r"\1", tex)
    return " ".join(re.sub(r"([_^])\{(\w)\}", r"\1\2", tex).split())


_TOKENS = frozenset({"mn", "mi", "mo", "mtext", "ms"})
_INVISIBLE = str.maketrans("", "", "\u2061\u2062\u2063\u2064")
_RELATIONS = frozenset("=≈≤≥<>≪≫≠≡∼∝→←↔∈⊂⊆±×+−-")


def _line(element: Any) -> str:
    """Returns the characters of a formula, without recursion, since hostile input may be nested thousands deep."""
    done: dict[Any, str] = {}
    for one in reversed([part for part in element.iter() if isinstance(part.tag, str)]):
        done[one] = _joined(one, [done[child] for child in one if isinstance(child.tag, str)])
    return done[element]


def _joined(element: Any, parts: list[str]) -> str:
    tag = element.tag.rpartition("}")[2]
    if tag in {"annotation", "annotation-xml", "mphantom"}:
        return ""
    if tag in _TOKENS:
        text = "".join(element.itertext()).translate(_INVISIBLE).strip()
        before = element.getprevious()
        return f" {text} " if tag == "mo" and text in _RELATIONS and before is not None else text
    if tag in {"msup", "mover"} and len(parts) == 2:
        return f"{parts[0]}^{_group(parts[1])}" if tag == "msup" else parts[0]
    if tag in {"msub", "munder"} and len(parts) == 2:
        return f"{parts[0]}_{_group(parts[1])}"
    if tag in {"msubsup", "munderover"} and len(parts) == 3:
        return f"{parts[0]}_{_group(parts[1])}^{_group(parts[2])}"
    if tag == "mfrac" and len(parts) == 2:
        return f"{_group(parts[0])}/{_group(parts[1])}"
    if tag in {"msqrt", "mroot"} and parts:
        return f"√{_group(parts[0])}"
    if tag == "mtd":
        return f"{''.join(parts)} "
    return ("; " if tag == "mtable" else "").join(parts)


def _group(text: str) -> str:
    text = text.strip()
    return text if len(text) < 2 or re.fullmatch(r"[\w.]+", text) else f"({text})"


def _visible_twin(element: Any) -> bool:
    """Whether a hidden formula is next to its picture; the picture is then removed, and the words are kept."""
    picture = element.getnext()
    if picture is not None and picture.tag in {"img", "image"}:
        _drop(picture)
        return False
    return element.tag not in {"span", "div"} or len(_WORD.findall("".join(element.itertext()))) > 100
