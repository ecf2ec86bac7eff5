r"""The numbers of sections, formulas, figures, tables and theorems in LaTeX, to resolve references.

Counters are those of the standard classes: "2.1" for a subsection, "A" after `\\appendix`; in books and reports, and
with `\\numberwithin`, the number of a formula is prefixed by that of its chapter or section.
"""

from __future__ import annotations

import re

DEEPEST = 50
"""Maximum nesting depth of environments."""

_SECTIONS = ("chapter", "section", "subsection", "subsubsection")
_NOUNS = {"chapter": "Chapter", "section": "Section", "subsection": "Section", "subsubsection": "Section"}
_NOUNS |= {"figure": "Figure", "table": "Table"}
_FORMULAS, _ROWS = frozenset({"equation", "multline"}), frozenset({"align", "gather", "eqnarray", "flalign", "alignat"})
"""Environments with one number, and those with a number for each row."""
_EVENT = re.compile(
    r"(?<!\\)%[^\n]*|\\begin\{(?P<begin>[A-Za-z]+\*?)\}|\\end\{(?P<end>[A-Za-z]+\*?)\}|\\(?P<section>chapter"
    r"|section|subsection"
    r"|subsubsection)(?P<star>\*?)(?=\s*[\[{])|\\(?P<appendix>appendix)\b|\\(?P<caption>caption)\*?(?=\s*[\[{])"
    r"|\\(?P<item>item)\b|\\label\s*\{(?P<label>[^{}]{1,200})\}|(?P<row>\\\\)|\\(?P<unnumbered>nonumber|notag)\b"
)
_THEOREM = re.compile(
    r"\\newtheorem\s*\{(?P<name>[A-Za-z]+)\}\s*(?:\[(?P<shared>[A-Za-z]+)\])?\s*\{(?P<title>[^{}]{1,60})\}"
    r"\s*(?:\[(?P<within>[A-Za-z]+)\])?"
)
_WITHIN = re.compile(r"\\numberwithin\s*\{(\w+)\}\s*\{(\w+)\}")
_BOOK = re.compile(
    r"\\documentclass\s*(?:\[[^\]]*\])?\s*\{[^{}]*(?:book|report|scrreprt|memoir|thesis)[^{}]*\}", re.IGNORECASE
)
_REFERENCE = re.compile(r"(?P<tie>[~ ]?)\\(?P<name>[A-Za-z]*ref)\*?\s*(?:\[[^\][]*\]\s*)?\{(?P<labels>[^{}]*)\}")
_LOST = re.compile(r"[~\s]?[(\[]\s*(?:[Ss]ee |cf\.? ?)?(?:[A-Z][a-z]{1,12}\.?)?\0+\s*[)\]]")


def theorems_of(text: str) -> dict[str, str]:
    """Returns the theorem-like environments that a file defines, with their titles."""
    return {match["name"]: match["title"] for match in _THEOREM.finditer(text)}


def with_numbers(text: str) -> str:
    """Returns the source with references replaced by the printed numbers; those to other files are removed."""
    if "ref" not in text:
        return text
    numbers = _numbers(text) if "\\label" in text else {}

    def written(match: re.Match[str]) -> str:
        found = [numbers[label.strip()] for label in match["labels"].split(",") if label.strip() in numbers]
        if not found or match["name"] in {"pageref", "href", "vpageref"}:
            return match[0] if match["name"] == "href" else ""
        name, shown = match["name"].lower(), _listed([number for _, number in found])
        if name == "eqref":
            return f"{match['tie']}({shown})"
        if name in {"cref", "autoref", "vref", "fullref"}:
            noun = found[0][0] + ("s" if len(found) > 1 else "")
            return f"{match['tie']}{noun if match['name'][0].isupper() else noun.lower()} {shown}"
        return f"{match['tie']}{shown}"

    text = _REFERENCE.sub(lambda match: written(match) or "\0", text)
    # Removes brackets left empty by unknown references, and the duplicate full stop of a noun.
    return re.sub(r"\.?\0(?=\.)", "", _LOST.sub("", text)).replace("\0", "")


def _listed(numbers: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))


def _numbers(text: str) -> dict[str, tuple[str, str]]:
    """Returns for each label the noun and the number of its target."""
    counters = _Counters(text)
    found: dict[str, tuple[str, str]] = {}
    # Open environments: their names, and the target of labels in them.
    open_: list[tuple[str, tuple[str, str]]] = [("", ("", ""))]
    rows = 0  # formulas whose numbers have not been counted yet
    for event in _EVENT.finditer(text):
        name, place = open_[-1]
        if event["section"] and not event["star"]:
            place = counters.of_section(event["section"])
            open_ = [(one, place) for one, _ in open_]
        elif event["appendix"]:
            counters.begin_appendix()
        elif begun := event["begin"]:
            if begun in counters.theorems:
                place = (counters.theorems[begun], counters.step(counters.shared.get(begun, begun)))
            elif begun in _FORMULAS:
                place, rows = ("Equation", counters.step("equation")), 0
            elif begun in _ROWS:
                rows = 1
            elif begun == "enumerate":
                counters.values["item"] = 0
            if len(open_) < DEEPEST:
                open_.append((begun, place))
        elif event["end"] and len(open_) > 1:
            if name in _ROWS:
                for _ in range(rows):
                    counters.step("equation")
            open_.pop()
        elif event["caption"]:
            kind = next(
                (one.rstrip("*") for one, _ in reversed(open_) if one.rstrip("*").endswith(("figure", "table"))),
                "figure",
            )
            kind = "table" if kind.endswith("table") else "figure"
            open_[-1] = (name, (_NOUNS[kind], counters.step(kind)))
        elif event["item"] and name == "enumerate":
            open_[-1] = (name, ("Item", counters.step("item")))
        elif event["row"] and name in _ROWS:
            rows += 1
        elif event["unnumbered"] and name in _ROWS:
            rows -= 1
        elif label := event["label"]:
            if name in _ROWS:
                for _ in range(max(rows, 1)):
                    open_[-1] = (name, ("Equation", counters.step("equation")))
                rows = 0
            found.setdefault(label.strip(), open_[-1][1])
    return {label: place for label, place in found.items() if place[1]}


class _Counters:
    """The counters of a file."""

    def __init__(self, text: str) -> None:
        self.theorems, self.shared = theorems_of(text), {}
        self.within: dict[str, str] = {}
        self.first = 0 if _BOOK.search(text) else 1
        if not self.first:
            self.within = dict.fromkeys(("figure", "table", "equation"), "chapter")
        for match in _THEOREM.finditer(text):
            if match["shared"]:
                self.shared[match["name"]] = match["shared"]
            elif match["within"]:
                self.within[match["name"]] = match["within"]
        self.within.update(_WITHIN.findall(text))
        self.values: dict[str, int] = {}
        self.appendix = False

    def step(self, counter: str) -> str:
        """Advances a counter and returns its printed number."""
        self.values[counter] = self.values.get(counter, 0) + 1
        outer = self.within.get(counter, "")
        before = self._printed(outer) if outer in _SECTIONS else ""
        return f"{before}.{self.values[counter]}" if before else str(self.values[counter])

    def of_section(self, name: str) -> tuple[str, str]:
        """Returns the noun and the number of a section that begins."""
        self.values[name] = self.values.get(name, 0) + 1
        inner = _SECTIONS[_SECTIONS.index(name) + 1 :]
        for counter in (*inner, *(one for one, outer in self.within.items() if outer == name)):
            self.values[counter] = 0
        top = self.appendix and name == _SECTIONS[self.first]
        return ("Appendix" if top else _NOUNS[name]), self._printed(name)

    def begin_appendix(self) -> None:
        """Restarts section numbers, in letters."""
        self.appendix = True
        self.values.update(dict.fromkeys(_SECTIONS[self.first :], 0))

    def _printed(self, name: str) -> str:
        values = [self.values.get(section, 0) for section in _SECTIONS[self.first : _SECTIONS.index(name) + 1]]
        letters = self.appendix and values and 0 < values[0] <= 26
        return ".".join([chr(64 + values[0]) if letters else str(values[0]), *map(str, values[1:])]) if values else ""
