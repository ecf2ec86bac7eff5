"""Tables of contents in many languages and forms: no sentence, and no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from counted import lines_run
from longspan import answer
from longspan_documents.text.plain_text import blocks_of_text
from longspan_documents.text.reading import document_of, read
from longspan_documents.text.tidying.contents import without_contents

TITLES = {  # a name, three titles, and of each section its text
    "Contents": ("Introduction", "The Flood of 1843", "The New Bridge"),
    "Inhaltsverzeichnis": ("Einleitung", "Die Flut von 1843", "Die neue Brücke"),
    "Table des matières": ("Introduction", "La crue de 1843", "Le nouveau pont"),
    "Índice de contenidos": ("Introducción", "La crecida de 1843", "El puente nuevo"),
    "Sommario": ("Introduzione", "La piena del 1843", "Il nuovo ponte"),
    "Inhoudsopgave": ("Inleiding", "De vloed van 1843", "De nieuwe brug"),
    "Sumário": ("Introdução", "A cheia de 1843", "A nova ponte"),
    "Оглавление": ("Введение", "Наводнение 1843 года", "Новый мост"),
    "目次": ("はじめに", "1843年の洪水", "新しい橋"),
    "目录": ("引言", "1843年的洪水", "新桥"),
    "Spis treści": ("Wstęp", "Powódź z 1843 roku", "Nowy most"),
    "Innehållsförteckning": ("Inledning", "Floden 1843", "Den nya bron"),
    "Indholdsfortegnelse": ("Indledning", "Oversvømmelsen i 1843", "Den nye bro"),
    "Sisällysluettelo": ("Johdanto", "Vuoden 1843 tulva", "Uusi silta"),
    "İçindekiler": ("Giriş", "1843 seli", "Yeni köprü"),
    "목차": ("머리말", "1843년 홍수", "새 다리"),
}
PAGES = (3, 17, 42)
PROSE = (
    "The river rises in the hills above the old mill and runs for ninety miles. It meets the sea at Harrow.",
    "A flood carried away the bridge, and with it the only road to the north. People crossed by a ferry.",
    "It was built of stone from the quarry at Thorn. It was opened on the first of May 1854.",
)
FORMS = {
    "dots": lambda number, title, page: f"{number}. {title} {'.' * 30} {page}\n",
    "spaced dots": lambda number, title, page: f"{title} {'. ' * 12}{page}\n",
    "ellipses": lambda number, title, page: f"{title}……{page}\n",
    "middle dots": lambda number, title, page: f"{title} {'·' * 12} {page}\n",
    "gaps": lambda number, title, page: f"{title}      {page}\n",
    "pages": lambda number, title, page: f"{title} {page}\n",
    "bare": lambda number, title, page: f"{title}\n",
    "numbered": lambda number, title, page: f"{number} {title}\n",
    "apart": lambda number, title, page: f"{title}\n\n",
    "apart with pages": lambda number, title, page: f"{number}. {title} {page}\n\n",
}


def text_of(name: str, form: str) -> str:
    entries = "".join(FORMS[form](number, *one) for number, one in enumerate(zip(TITLES[name], PAGES, strict=True), 1))
    body = "\n\n".join(f"{title}\n\n{prose}" for title, prose in zip(TITLES[name], PROSE, strict=True))
    return f"On a river\n\n{name}\n\n{entries}\n{body}\n"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TITLES)
def test_a_table_of_contents(name: str, form: str) -> None:
    document = document_of(text_of(name, form))
    shown = [(block.kind, block.text) for block in document.blocks if block.kind != "boilerplate"]
    assert shown[1:] == [
        one
        for title, prose in zip(TITLES[name], PROSE, strict=True)
        for one in (("heading", title), ("paragraph", prose))
    ]
    assert document.blocks[1].text.split("\n")[0] == name


@pytest.mark.parametrize("name", ["Inhaltsverzeichnis", "Table des matières", "目录", "Оглавление"])
def test_on_a_page(tmp_path: Path, name: str) -> None:
    titles = TITLES[name]
    body = "".join(f"<h2>{title}</h2><p>{prose}</p>" for title, prose in zip(titles, PROSE, strict=True))
    numbered = list(zip(titles, PAGES, strict=True))
    rows = "".join(f"<tr><td>{title}</td><td>{page}</td></tr>" for title, page in numbered)
    entries = {
        "links": "<ul>" + "".join(f"<li><a href='#{title}'>{title}</a></li>" for title in titles) + "</ul>",
        "table": f"<table>{rows}</table>",
        "lines": "".join(f"<p><a href='#{title}'>{title}</a> {page}</p>" for title, page in numbered),
    }
    for form, table in entries.items():
        path = tmp_path / f"{form}.html"
        path.write_text(
            f"<html><meta charset=utf-8><body><h1>On a river</h1><h2>{name}</h2>{table}{body}</body></html>",
            encoding="utf-8",
        )
        told = [block.text for block in read(path).blocks if block.kind in {"paragraph", "item", "table"}]
        assert told == list(PROSE), form


def test_no_entry_answers() -> None:
    text = text_of("Inhaltsverzeichnis", "pages") + "\n\n".join(PROSE)
    found = answer(text, "Die neue Brücke 42")
    assert not [one for one in found.passages if "42" in one.text]


STAYS = {
    "prose below a name": "# On boxes\n\n## Contents\n\n"
    "The contents of the box were examined by two people. They found a ring.\n",
    "an ambiguous name": "Kurs: Schnecken halten\n\nInhalt\n\n"
    "- Grundlagen der Haltung\n- Futter und Wasser\n- Krankheiten erkennen\n\n"
    "Der Kurs dauert zwei Tage und kostet 200 Euro. Er findet im Garten der Schule statt.\n",
    "numbers that rise": f"Report of the mill\n\n{PROSE[0]}\n\nWheat 12\nRye 15\nOats 20\nBarley 44\n\n{PROSE[1]}\n",
}


@pytest.mark.parametrize("case", STAYS)
def test_what_is_no_table_of_contents_stays(case: str) -> None:
    assert "boilerplate" not in {block.kind for block in document_of(STAYS[case]).blocks}


@pytest.mark.parametrize(
    "text",
    [
        "Wheat 1\n\n",
        "Contents\n\nA wall\n\nThe snail went on for a long while. Nobody saw it there.\n\n",
        "Inhalt\n\nMauer\n\n",
    ],
    ids=["one page", "many names", "names without a table"],
)
def test_work_in_proportion_to_the_blocks(text: str) -> None:
    few, many = (blocks_of_text("The start.\n\n" + text * times) for times in (100, 400))
    assert lines_run(without_contents, many) < 4.5 * lines_run(without_contents, few)


def test_the_foot_of_every_page_is_no_title_because_it_is_in_the_contents_too() -> None:
    """Contracts that a filing prints: the foot of the page stands between two entries."""
    foot = "Source: HARROW BRIDGE, INC., 8-K, 2/5/2020"
    titles = TITLES["Contents"]
    entries = "\n\n".join([f"{titles[0]} 3", foot, f"{titles[1]} 17", f"{titles[2]} 42"])
    pages = [f"{title}\n\n{prose}\n\n{foot}" for title, prose in zip(titles, PROSE, strict=True)]
    text = "\n\n".join(["On a river", "Contents", entries, *pages, PROSE[0], foot, PROSE[1], foot])
    blocks = without_contents(blocks_of_text(text))
    headings = [block.text for block in blocks if block.kind == "heading"]
    assert foot not in headings
    assert set(titles) <= set(headings)
