"""The body of a letter or mail: what its sender writes, what is quoted, and the signature."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from longspan_documents.text.blocks import Block
from longspan_documents.text.markup import NOT_TEXT, blocks_of_pieces, laid_out, pieces_of, text_of_lines
from longspan_documents.text.page_parts import keep_what_is_read
from longspan_documents.text.plain_text import blocks_of_text
from longspan_documents.text.tidying.structure import with_items
from longspan_documents.text.web_pages import parsed

FEWEST = 3
"""Minimum number of header fields above a mail, one of which is the sender."""
FROM = "From|Von|De|Da|Van|Från|Fra"
_FIELD = (
    rf"(?:{FROM}|To|Cc|Bcc|Date|Sent|Subject|Reply-To|An|Datum|Gesendet|Betreff|À|Envoyé|Objet|Para|Fecha|Enviado|Asunto"
    r"|Data|Inviato|Oggetto|Aan|Verzonden|Onderwerp|Till|Skickat|Ämne)"
)
HEAD = re.compile(
    rf"\s*(?:[-_]{{2,}}[^\n]{{0,60}}\n)?(?:[*>]*{_FIELD}\s?:[^\n]*(?:\n[ \t]+[^\n]*)*(?:\n|$)){{{FEWEST},12}}"
)
LONGEST_CLOSE = 400
"""Maximum characters from the closing formula of a letter to its end."""

_QUOTED = re.compile(r"^[^\S\n]*[>|]")
_SAYS = re.compile(
    r"^[^\S\n]*(?:On|Am|Le|El|Il|Op|Den|Em) (?=[^\n]{0,200}\d)[^\n]{4,200}(?:\n[^\n>]{1,200})?"
    r"(?:(?:wrote|a écrit|escribió|ha scritto|escreveu)|(?:schrieb|schreef|skrev)[^\n:]{0,80}(?:\n[^\n:>]{0,80}>)?)"
    r"\s?:[^\S\n]*$",
    re.MULTILINE,
)
_REST = re.compile(
    r"^(?:-{2,}[^\S\n]*(?:Original Message|Forwarded message|Ursprüngliche Nachricht|Message d'origine"
    r"|Mensaje original)[^\S\n]*-{2,}|_{20,}|-{5}BEGIN PGP SIGNATURE-{5}|--[^\S\n]?|Sent from my [^\n]{1,60}"
    r"|Get Outlook for [^\n]{1,60}"
    r"|From:[^\n]{1,300}\n(?:[A-Z][\w-]{1,20}:[^\n]{0,300}\n){1,6})[^\S\n]*$",
    re.MULTILINE,
)
"""From here on a mail is a signature, the footer of a list, or an older mail."""
_CLOSING = re.compile(
    r"\s*(?:(?:(?:kind|best|warm|many|with (?:kind|best))\s)*(?:regards|wishes|greetings)|best|cheers|thanks|thank you"
    r"|many thanks|sincerely|yours(?: \w+){0,2}|respectfully|love|mit freundlichen grüßen"
    r"|(?:viele|beste|liebe|herzliche) grüße|cordialement|bien à vous|saludos|un saludo|cordiali saluti"
    r"|met vriendelijke groet(?:en)?|hälsningar"
    r"|med vänlig hälsning|atenciosamente)[,.!]?[^\S\n]*(?:\n|$)",
    re.IGNORECASE,
)
_CITED = re.compile(
    r"(?:^|[-_\s])(?:gmail_quote\w*|gmail_signature\w*|gmail_attr|moz-cite-prefix|moz-signature|yahoo_quoted"
    r"|protonmail_quote|divRplyFwdMsg|appendonsend|OutlookMessageHeader|AppleMailSignature|signature)(?:$|[-_\s])",
    re.IGNORECASE,
)


def sender_of(field: str) -> str | None:
    """Returns the name in a field "From", otherwise the address: for "Weber, Anna <a@example.org>" everything before
    the bracket."""
    from email.utils import parseaddr  # late: most documents are not mails, and it imports much

    name, address = parseaddr(field)
    if "@" not in address or "@" in name:  # a name alone, or one with a comma, which would be parsed as two addresses
        name = field.partition("<")[0].strip(" \t\"'") or name
    return " ".join((name or address or field).split()) or None


def blocks_of_letter(text: str, sender: str | None) -> list[Block]:
    """Returns the paragraphs of a letter as turns of its sender; quotations and the signature are notes."""
    rest = next((match.start() for match in _REST.finditer(text)), len(text))
    notes = list(_note_spans(text, rest))
    blocks: list[Block] = []
    for block in with_items(blocks_of_text(_with_gaps(text, notes))):
        place = block.body.start
        is_note = any(start <= place < end for start, end in notes)
        head = HEAD.match(block.text) if is_note else None
        if head is not None:  # above a quoted mail: no text of its own
            blocks.append(Block(kind="boilerplate", body=block.body.part(0, head.end())))
            block = replace(block, body=block.body.part(head.end(), len(block.text)))
        if block.text.strip():
            blocks.append(replace(block, kind="note", level=0) if is_note else block)
    return signed(blocks, sender)


def blocks_of_letter_page(page: str, sender: str | None) -> tuple[str, list[Block]]:
    """Returns the text and the blocks of a letter that is an HTML page; see `blocks_of_letter`."""
    tree = parsed(page)
    if tree is None:
        return "", []
    keep_what_is_read(tree)
    for element in list(tree.iter()):
        if isinstance(element.tag, str) and _is_cited(element):
            element.tag = "note"
    lines = laid_out(tree, lambda element: element.tag in NOT_TEXT or element.tag == "head")
    return text_of_lines(lines), signed(blocks_of_pieces(pieces_of(lines)), sender)


def signed(blocks: Sequence[Block], sender: str | None) -> list[Block]:
    """Converts paragraphs to turns of the sender, and the closing and a line with part of the sender's name to
    notes."""
    result: list[Block] = []
    names = {name.lower() for name in re.findall(r"[^\W\d_]+", sender or "")}
    left = sum(len(block.text) for block in blocks if block.kind != "note")
    closed = False
    for block in blocks:
        if block.kind in {"paragraph", "item"}:
            closed = closed or (left <= LONGEST_CLOSE and bool(_CLOSING.match(block.text)))
            words = [word.lower() for word in re.findall(r"[^\W\d_]+", block.text)]
            is_name = 0 < len(words) <= 4 and names.issuperset(words)
            left -= len(block.text)
            if closed or is_name:
                block = replace(block, kind="note", level=0)
            else:
                block = replace(block, kind="turn" if block.kind == "paragraph" else "item", speaker=sender)
        result.append(block)
    return result


def is_quoted(text: str) -> bool:
    """Whether every line of a paragraph is quoted, or it only introduces a quotation."""
    lines = [line for line in text.split("\n") if line.strip()]
    return all(map(_QUOTED.match, lines)) or says_whose(text)


def says_whose(text: str) -> bool:
    """Whether a paragraph only introduces a quotation."""
    return bool(_SAYS.fullmatch(text.strip()))


def _is_cited(element: Any) -> bool:
    named = f"{element.get('id', '')} {element.get('class', '')}"
    return (element.tag == "blockquote" and element.get("type") == "cite") or bool(_CITED.search(named))


def _note_spans(text: str, rest: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of quotations, of lines that introduce them, and of the end of the mail."""
    place, start = 0, -1
    for line in text[:rest].split("\n"):
        if _QUOTED.match(line):
            start = place if start < 0 else start
        elif start >= 0 and line.strip():
            yield start, place
            start = -1
        place += len(line) + 1
    if start >= 0:
        yield start, rest
    for match in _SAYS.finditer(text, 0, rest):
        yield match.start(), match.end()
    if rest < len(text):
        yield rest, len(text)


def _with_gaps(text: str, notes: Sequence[tuple[int, int]]) -> str:
    """Returns the text with line ends around notes as paragraph ends: form feeds, which keep all positions."""
    characters = list(text) if notes else []
    for start, end in notes:
        for place in (start - 1, end - 1):
            if 0 <= place < len(text) and text[place] == "\n":
                characters[place] = "\f"
    return "".join(characters) or text
