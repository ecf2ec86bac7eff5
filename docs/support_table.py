"""The page of the table of support: which mechanism supports which feature, and why not."""

from __future__ import annotations

from longspan.attention import MECHANISMS, AttentionConfig
from longspan.attention.support import FEATURES, Unless, why_not
from longspan.stacks import STACKS
from longspan.stacks.base import STACK_FEATURES

HEAD = """\
# Which mechanism supports what

Features that cross mechanisms, such as global tokens or packed documents, do not go with every mechanism. What is not
supported is refused with an error that gives the reason below. The page is made from the table in
`longspan.attention.support`; in code:

```python
from longspan.attention import MECHANISMS
from longspan.attention.support import supports, why_not

assert supports(MECHANISMS["etc"], "structure")
assert supports(MECHANISMS["full"], "globals")                                # its bidirectional form
assert not supports(MECHANISMS["full"], "globals", causal=True)
assert why_not(MECHANISMS["bigbird"](), "causal", causal=True) == "all tokens see the last block"
```
"""


def support_page() -> str:
    """Markdown, a section for each feature, in which mechanisms with the same answer share a row."""
    sections = [HEAD]
    for feature, row in FEATURES.items():
        answers: dict[str, list[str]] = {}
        for name, kind in MECHANISMS.items():
            answers.setdefault(_answer(kind, feature), []).append(name)
        lines = [f"## {row.title.capitalize()}", "", f"{row.meaning} In code: `{feature!r}`.".replace("'", '"'), ""]
        lines += ["| mechanism | supported |", "|---|---|"]
        for answer in sorted(answers, key=lambda answer: (answer != "yes", -len(answers[answer]))):
            names = ", ".join(f"[`{name}`]({name}.md)" for name in answers[answer])
            lines.append(f"| {names} | {answer} |")
        sections.append("\n".join(lines) + "\n")
    sections.append(_stacks())
    return "\n".join(sections)


def _stacks() -> str:
    """What stacks support of these features, in one table."""
    lines = [
        "## Stacks",
        "",
        "A stack puts blocks with these mechanisms together, and may support less than they do:",
        "",
    ]
    lines += ["| | what it means | stacks |", "|---|---|---|"]
    for feature, meaning in STACK_FEATURES.items():
        names = ", ".join(f"`{name}`" for name, kind in STACKS.items() if feature in kind.supports)
        lines.append(f"| `{feature}` | {meaning} | {names} |")
    return "\n".join(lines) + "\n"


def _answer(kind: type[AttentionConfig], feature: str) -> str:
    """The answers of the forms for which the feature can be asked, in one cell."""
    if feature in ("bidirectional", "causal"):
        forms = [feature == "causal"]
    elif FEATURES[feature].form == "causal":
        forms = [kind.causal]
    else:
        forms = [causal for causal in (False, True) if (kind.causal if causal else kind.bidirectional)]
    cells = {causal: _cell(kind, feature, causal) for causal in forms}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return "; ".join(f"{'causal' if causal else 'bidirectional'}: {cell}" for causal, cell in cells.items())


def _cell(kind: type[AttentionConfig], feature: str, causal: bool) -> str:
    stated = kind.support.get(feature)
    if isinstance(stated, Unless) and (causal or FEATURES[feature].form == "any"):
        options = ", ".join(f"`{name}={value!r}`" for name, value in stated.options.items()).replace("'", '"')
        return f"with {options}; otherwise {stated.reason}"
    reason = why_not(kind, feature, causal=causal)
    return "yes" if reason is None else f"no: {reason or 'it ' + FEATURES[feature].refusal}"
