"""Licences, copyright, trademarks, editions and imprints are no part of the text; documents about them are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan import summarize
from longspan_documents.text.reading import document_of, read, sentences_of

FROB = (
    "The frob daemon collects measurements from every sensor in a building and stores them in a small local "
    "database. "
    "It was written because earlier tools lost readings whenever the network was down for more than a minute."
)
RIVER = (
    "The river rises in the hills above the old mill and runs for ninety miles before it meets the sea. "
    "In the spring of 1843 a flood carried away the bridge at Harrow, and with it the only road to the north."
)
GFDL = (
    "Permission is granted to copy, distribute and/or modify this document under the terms of the GNU Free "
    "Documentation "
    "License, Version 1.1 or any later version published by the Free Software Foundation with no Invariant "
    "Sections, no "
    "Front-Cover Texts, and no Back-Cover Texts. You can find a copy of the GFDL in the file COPYING-DOCS.",
    "This manual is part of a collection of manuals distributed under the GFDL. If you want to distribute this "
    "manual "
    "separately from the collection, you can do so by adding a copy of the license to the manual.",
    "Many of the names used by companies to distinguish their products and services are claimed as trademarks.",
    'DOCUMENT IS PROVIDED ON AN "AS IS" BASIS, WITHOUT WARRANTY OF ANY KIND, EITHER EXPRESSED OR IMPLIED. THE ENTIRE '
    "RISK AS TO THE QUALITY AND PERFORMANCE OF THE DOCUMENT IS WITH YOU. NO USE OF ANY DOCUMENT IS AUTHORIZED "
    "HEREUNDER "
    "EXCEPT UNDER THIS DISCLAIMER; AND",
    "UNDER NO CIRCUMSTANCES SHALL THE AUTHOR OR ANY DISTRIBUTOR OF THE DOCUMENT BE LIABLE TO ANY PERSON FOR ANY "
    "DIRECT, "
    "INDIRECT, SPECIAL OR CONSEQUENTIAL DAMAGES OF ANY CHARACTER ARISING OUT OF USE OF THE DOCUMENT.",
)
NOTICES = {
    "documentation": GFDL,
    "creative commons": (
        "The text of and illustrations in this document are licensed by Frob under a Creative Commons "
        "Attribution–Share "
        "Alike 3.0 Unported license. An explanation is available at http://creativecommons.org/licenses/by-sa/3.0/.",
        "Frob, as the licensor of this document, waives the right to enforce, and agrees not to assert, Section "
        "4d of "
        "CC-BY-SA to the fullest extent permitted by applicable law.",
        "Linux® is the registered trademark of Linus Torvalds in the United States and other countries.",
        "All other trademarks are the property of their respective owners.",
    ),
    "edition": (
        "First Edition (March 2009)",
        "This edition applies to version 2, release 1, of Frob for Buildings (product number 5724-X01) and to all "
        "subsequent releases and modifications until otherwise indicated in new editions.",
        "© Copyright Frob Corporation 2007, 2009. US Government Users Restricted Rights – Use, duplication or "
        "disclosure restricted by GSA ADP Schedule Contract with Frob Corp.",
    ),
    "imprint": (
        "First published 1998. Reprinted 1999, 2003.",
        "© Anna Field 1998",
        "All rights reserved. No part of this publication may be reproduced, stored in a retrieval system, or "
        "transmitted in any form or by any means, electronic, mechanical, photocopying, recording or otherwise, "
        "without "
        "the prior permission of the publisher.",
        "A catalogue record for this book is available from the British Library.",
        "ISBN 0 521 12345 6 hardback",
        "Typeset in Sabon by Field Typesetters. Printed in Great Britain by Bell and Sons, Glasgow.",
    ),
    "German": (
        "Das Werk einschließlich aller seiner Teile ist urheberrechtlich geschützt. Jede Verwertung ist ohne "
        "Zustimmung "
        "des Verlages unzulässig.",
        "1. Auflage 2009",
        "Alle Rechte vorbehalten.",
    ),
    "French": (
        "Tous droits de traduction, d'adaptation et de reproduction réservés pour tous pays.",
        "Ce document est mis à disposition selon les termes de la Licence Creative Commons Attribution 4.0.",
    ),
    "Spanish": (
        "Reservados todos los derechos. Queda rigurosamente prohibida, sin la autorización escrita de los "
        "titulares del "
        "copyright, la reproducción total o parcial de esta obra por cualquier medio o procedimiento.",
    ),
    "Italian": ("Tutti i diritti riservati. È vietata la riproduzione, anche parziale, senza autorizzazione scritta.",),
    "Portuguese": ("Todos os direitos reservados. É proibida a reprodução sem autorização por escrito da editora.",),
    "Dutch": ("Alle rechten voorbehouden. Niets uit deze uitgave mag worden verveelvoudigd zonder toestemming.",),
    "Swedish": ("Alla rättigheter förbehålles. Boken får inte kopieras utan tillstånd.",),
    "Polish": ("Wszelkie prawa zastrzeżone. Żadna część tej książki nie może być kopiowana bez zgody wydawcy.",),
    "Russian": ("Все права защищены. Никакая часть данной книги не может быть воспроизведена без разрешения.",),
    "Japanese": ("本書の無断複製・転載を禁じます。本書に記載されている会社名、製品名は各社の登録商標です。",),
    "Chinese": ("版权所有,侵权必究。未经出版者书面许可,不得以任何方式复制或抄袭本书的任何部分。",),
}


def told(text: str) -> list[str]:
    return [sentence.text for sentence in sentences_of(document_of(text))]


@pytest.mark.parametrize("case", NOTICES)
@pytest.mark.parametrize("place", ["head", "foot"])
def test_notices_around_a_text(case: str, place: str) -> None:
    notice = "\n\n".join(NOTICES[case])
    head, foot = (f"{notice}\n\n", "") if place == "head" else ("", f"\n\n{notice}")
    text = f"The Frob Manual\n\nJane Roe\n\n{head}Introduction\n\n{FROB}\n\nThe river\n\n{RIVER}{foot}\n"
    assert [sentence for sentence in told(text) if len(sentence) > 20] == [
        *(f"{sentence}." for sentence in FROB.rstrip(".").split(". ")),
        *(f"{sentence}." for sentence in RIVER.rstrip(".").split(". ")),
    ]


PAGE = """<html><head><title>{title}</title></head><body><div class="book"><div class="titlepage"><div><div>
<h1 class="title">{title}</h1></div><div><p class="copyright">Copyright © 2004, 2005 The Frob Team</p></div>
<div><div class="legalnotice">{legal}</div></div></div><hr></div><div class="toc"><p><b>Table of Contents</b></p><dl>
<dt><a href="ch01.html">1. Introduction</a></dt><dt><a href="ch02.html">2. Installing</a></dt></dl></div>{text}</div>
<div class="navfooter"><a href="ch01.html">Next</a></div></body></html>"""
CHAPTERS = (
    f'<div class="chapter"><h2 class="title">Chapter 1. Introduction</h2><p>{FROB}</p></div>'
    f'<div class="chapter"><h2 class="title">Chapter 2. Rivers</h2><p>{RIVER}</p></div>'
)


@pytest.mark.parametrize("text", [CHAPTERS, ""], ids=["one page", "first of several pages"])
def test_a_docbook_page(tmp_path: Path, text: str) -> None:
    legal = "".join(f"<p>{one}</p>" for one in GFDL)
    path = tmp_path / "index.html"
    path.write_text(PAGE.format(title="The Frob Manual", legal=legal, text=text), encoding="utf-8")
    document = read(path)
    assert document.title == "The Frob Manual"
    assert not [one.text for one in sentences_of(document) if "GNU" in one.text or "LIABLE" in one.text]
    if text:
        assert all(one.text in f"{FROB} {RIVER}" for one in summarize(path, 2).sentences)
    assert [block.text for block in document.blocks if block.kind == "boilerplate"][1:3] == list(GFDL[:2])


SECTIONS = """GNU Free Documentation License

Version 1.1, March 2000

0. PREAMBLE

The purpose of this License is to make a manual or other written document free: to assure everyone the effective freedom
to copy and redistribute it, with or without modifying it, either commercially or noncommercially.

1. APPLICABILITY AND DEFINITIONS

This License applies to any manual that contains a notice placed by the copyright holder saying it can be distributed
under the terms of this License. The Document, below, refers to any such manual or work.

2. VERBATIM COPYING

You may copy and distribute the Document in any medium, provided that this License, the copyright notices, and the
license notice saying this License applies to the Document are reproduced in all copies, and that you add no other
conditions whatsoever to those of this License.
"""


def test_a_licence_that_is_printed_in_full_behind_a_manual() -> None:
    text = f"The Frob Manual\n\n{FROB}\n\n{RIVER}\n\nAppendix A. {SECTIONS}\nAppendix B. Errors\n\n{RIVER}\n"
    found = told(text)
    assert not [one for one in found if "License" in one]
    assert (
        found.count(
            "In the spring of 1843 a flood carried away the bridge at Harrow, and with it the only road to the north."
        )
        == 2
    )


LICENCES = {
    "GFDL": SECTIONS,
    "MIT": "MIT License\n\nCopyright (c) 2020 Jane Roe\n\nPermission is hereby granted, free of charge, to any "
    "person "
    'obtaining a copy of this software (the "Software"), to deal in the Software without restriction.\n\nThe above '
    "copyright notice and this permission notice shall be included in all copies or substantial portions of the "
    'Software.\n\nTHE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND. IN NO EVENT SHALL THE AUTHORS BE '
    "LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY.\n",
    "BSD": "Copyright (c) 2020 Jane Roe. All rights reserved.\n\nRedistribution and use in source and binary "
    "forms, with "
    "or without modification, are permitted provided that the following conditions are met:\n\n1. Redistributions of "
    "source code must retain the above copyright notice, this list of conditions and the following disclaimer.\n",
}
ABOUT = {
    "a licence agreement": "SOFTWARE LICENSE AGREEMENT\n\nThis Agreement is made by and between Frob Systems "
    '("Licensor") and '
    'Mill Lane ("Licensee").\n\n1. Grant. Licensor grants Licensee a license to use the software in forty '
    "buildings.\n\n"
    '2. Warranty. THE SOFTWARE IS PROVIDED "AS IS" WITHOUT WARRANTY OF ANY KIND.\n\n3. Trademarks. Frob is a '
    "registered "
    "trademark of Licensor. All rights not granted here are reserved by the parties.\n",
    "an employment contract": 'EMPLOYMENT AGREEMENT\n\nThis Agreement is made between Mill Lane (the "Employer") '
    "and Ann Marsh.\n\n"
    "1. Duties. The Employee shall keep the ferry every day of the week.\n\n2. Copyright. All copyright and related "
    "rights in works of the Employee belong to the Employer, and all rights are reserved.\n\n3. Liability. "
    "Neither party "
    "is liable for any indirect damages.\n",
    "a German lease": "MIETVERTRAG\n\nzwischen Anna Feld (Vermieter) und Jan Roth (Mieter)\n\n§ 1 Mietsache. Der "
    "Vermieter vermietet "
    "dem Mieter die Wohnung.\n\n§ 2 Haftung. Die Haftung für leichte Fahrlässigkeit ist ausgeschlossen.\n\n§ 3 "
    "Ende. Jede "
    "Partei kann kündigen.\n",
    "an article on licences": "Which licence should you choose?\n\nSoftware that is licensed under the GNU "
    "General Public License may "
    "be changed by anyone.\n\nThe MIT License is short: permission is granted to anyone, without warranty of any "
    "kind.\n\n"
    "Works under a Creative Commons licence may be shared.\n\nWhoever chooses no licence keeps all rights "
    "reserved.\n\nA "
    "licence is chosen in a minute and lasts for years.\n",
    "news of a court": "A court ruled on Monday that the patent of Frob Systems is valid and was infringed by "
    "Mill Lane. The judges "
    "granted damages of two million dollars. Mill Lane had argued that the licence gave it permission to use the "
    "software.\n\nFrob owns the trademark and the copyright in the software, and licenses it to forty firms.\n",
    "a story of a right": f"The Right to Cross\n\n{RIVER}\n\nAll rights to the crossing had belonged to the "
    f"abbey, and no one might use "
    "the ford without its permission. The abbot granted the widow a licence to keep the ferry.\n",
}


@pytest.mark.parametrize("text", [*LICENCES.values(), *ABOUT.values()], ids=[*LICENCES, *ABOUT])
def test_a_document_about_rights_is_read_whole(text: str) -> None:
    kinds = {block.kind for block in document_of(text).blocks}
    assert kinds <= {"heading", "paragraph", "item"}
    assert summarize(text, 1).sentences


def test_a_notice_before_an_abstract_is_none() -> None:
    text = (
        "On the Speed of Snails\n\n© 2020 The Authors. This is an open access article under the CC BY "
        "license.\n\nAbstract\n\n"
        f"{FROB}\n\n1. Introduction\n\n{RIVER}\n\n{RIVER}\n"
    )
    abstract = [sentence.text for sentence in sentences_of(document_of(text)) if sentence.abstract]
    assert " ".join(abstract) == FROB


def test_an_english_licence_is_no_abstract_of_a_japanese_book() -> None:
    text = (
        "川と橋の歴史\n\nThis work is licensed under a Creative Commons Attribution-NonCommercial 4.0 "
        "International License. To view a "
        "copy of this license, visit http://creativecommons.org/licenses/by-nc/4.0/ or send a letter to Creative "
        "Commons, PO Box 1866, Mountain View, CA 94042, USA.\n\n第1章 "
        "洪水\n\n川は丘から始まり、九十マイルを流れて海に注ぐ。"
        "洪水が橋を押し流した。\n\n第2章 橋\n\n新しい橋は石で造られた。橋は五月一日に開通した。\n"
    )
    summary = summarize(text, 4)
    assert summary.sentences
    assert not [sentence.text for sentence in summary.sentences if sentence.text.isascii()]
    assert not summary.abstract


def test_the_frame_of_a_short_book() -> None:
    text = (
        "The Project Gutenberg eBook of The River\n\nThis ebook is for the use of anyone anywhere.\n\nTitle: The "
        "River\n\n"
        "Author: Anna Field\n\nLanguage: English\n\n*** START OF THE PROJECT GUTENBERG EBOOK THE RIVER "
        "***\n\nCHAPTER I\n\n"
        f"{RIVER}\n\n*** END OF THE PROJECT GUTENBERG EBOOK THE RIVER ***\n\nUpdated editions will replace the "
        f"previous one.\n\n"
        "START: FULL LICENSE\n\nTo protect the Project Gutenberg™ mission, by using or distributing this work you "
        "agree "
        "to comply with all the terms of the Full Project Gutenberg License.\n"
    )
    assert " ".join(told(text)) == RIVER
    assert document_of(text).title == "The River"
