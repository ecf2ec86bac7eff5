"""What the site needs beyond its theme: equations as MathML, the help of commands, the picture of the rooms, the
version, tables and a search that a keyboard and a screen reader can use, and no trace of the day."""

from __future__ import annotations

import html
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from rooms import draw_rooms

from longspan.pictures.patterns import save_picture
from longspan.version import __version__

ROOT = Path(__file__).parents[1]
COMMANDS_HERE = "<!-- commands -->"
"""Where a page wants the help of every command."""
ROOMS_HERE = "<!-- rooms -->"
"""Where a page wants the picture of the rooms, which every change of the code changes: it is drawn for each site, and
lies in no checkout."""
ROOMS = (
    "![The rooms from top to bottom, each as wide as its lines of code, with the rooms that it imports](img/rooms.png)"
)

_MATHS = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)

_HEADING_OR_TABLE = re.compile(r"<h[1-6][^>]*>(?P<heading>.*?)</h[1-6]>|(?P<table><table>.*?</table>)", re.DOTALL)
_TAG = re.compile(r'<a class="headerlink".*?</a>|<[^>]+>', re.DOTALL)
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#:]+)")
_CODE = re.compile(r"(<pre\b.*?</pre>|<code\b.*?</code>)", re.DOTALL)
_THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}(?!\d))")
"""The space in 16 384, which no line may end with."""


def on_config(config: Any, **_: Any) -> Any:
    """The version beside the name of the site, and at the foot of each page the repository, where there is one."""
    config.site_name = f"{config.site_name} {__version__}"
    if config.extra["repository"]:
        config.copyright = f'<a href="{html.escape(config.extra["repository"])}">Repository</a> · {config.copyright}'
    return config


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    markdown = _LINK.sub(lambda match: _on_the_site(match, page.file, files), markdown.replace(ROOMS_HERE, ROOMS))
    return markdown.replace(COMMANDS_HERE, commands_page()) if COMMANDS_HERE in markdown else markdown


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that lie in packages, and the picture of the rooms, drawn from the code as it is."""
    for folder in sorted(ROOT.glob("packages/*/docs")):
        for path in sorted(folder.rglob("*.md")):
            name = path.relative_to(folder).as_posix()
            files.append(File(name, str(folder), config["site_dir"], config["use_directory_urls"]))
    with tempfile.TemporaryDirectory() as folder:
        save_picture(draw_rooms(), Path(folder, "rooms.png"))
        content = Path(folder, "rooms.png").read_bytes()
    files.append(File.generated(config, "img/rooms.png", content=content))
    return files


def _on_the_site(match: re.Match[str], file: File, files: Files) -> str:
    """A link between two files of the checkout as the link between their pages, whose folders are those of one site."""
    target = os.path.normpath(Path(str(file.abs_src_path)).parent / match["target"])
    page = next((other for other in files if other.abs_src_path == target), None)
    if page is None:
        return match[0]
    return match["before"] + os.path.relpath(page.src_uri, Path(file.src_uri).parent)


def on_page_content(content: str, **_: Any) -> str:
    return "".join(
        part if part.startswith(("<pre", "<code")) else _THOUSANDS.sub("\N{NARROW NO-BREAK SPACE}", part)
        for part in _CODE.split(_MATHS.sub(_equation, _with_regions(content)))
    )


def on_post_page(output: str, **_: Any) -> str:
    """The theme gives its search the role of a dialog, and no name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _with_regions(content: str) -> str:
    """Each table in a box that a keyboard reaches and scrolls, named by the heading above it."""
    heading, number = "", 0

    def boxed(match: re.Match[str]) -> str:
        nonlocal heading, number
        if match["table"] is None:
            heading = " ".join(_TAG.sub("", match["heading"]).split()).replace('"', "&quot;")
            return match[0]
        number += 1
        return f'<div class="table" role="region" aria-label="Table {number}: {heading}" tabindex="0">{match[0]}</div>'

    return _HEADING_OR_TABLE.sub(boxed, content)


def on_post_build(config: Any, **_: Any) -> None:
    """A site that knows no address has no use for a map of addresses, nor for a page whose links begin at one."""
    for name in ("sitemap.xml", "sitemap.xml.gz", "404.html"):
        Path(config["site_dir"], name).unlink(missing_ok=True)


def _equation(match: re.Match[str]) -> str:
    """LaTeX between the marks of `pymdownx.arithmatex` → MathML, in a box of its own if it is displayed."""
    block = match["open"] == "["
    mathml = convert(html.unescape(match["latex"]).strip(), display="block" if block else "inline")
    return f'<div class="equation" tabindex="0">{mathml}</div>' if block else mathml


def commands_page() -> str:
    """Each command as its help has it, as Markdown."""
    from longspan.cli import COMMANDS

    return "\n\n".join(_command(name) for name in COMMANDS)


def _command(name: str) -> str:
    import typer

    from longspan.cli import COMMANDS
    from longspan.cli.options import expanded

    app = typer.Typer(add_completion=False)
    app.command(name)(expanded(COMMANDS[name]))
    command = typer.main.get_command(app)
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    rows = [_row(parameter, context) for parameter in command.params]
    usage = " ".join(["longspan", name, "[OPTIONS]", *arguments])
    table = "\n".join(["| option | meaning |", "|---|---|", *filter(None, rows)])
    return f"## longspan {name}\n\n```text\n{usage}\n```\n\n{command.help}\n\n{table}"


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _row(parameter: Any, context: Any) -> str:
    """An argument or option as a row of the table, or nothing if the help hides it."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    name = _argument(parameter) if parameter.param_type_name == "argument" else record[0]
    meaning = re.sub(r"([\[*_])", r"\\\1", html.escape(" ".join(record[1].split()), quote=False))
    return f"| `{_cell(name)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
