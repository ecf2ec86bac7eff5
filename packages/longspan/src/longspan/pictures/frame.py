"""Self-contained web pages without scripts or external resources: their frame, and escaping of texts."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable

from longspan.characters import shown


def page_frame(title: str, style: str, body: Iterable[str], *, pictures: bool = False) -> str:
    """Returns a page whose content security policy blocks all loading, except, if requested, of embedded `pictures`.

    Args:
        title: title of the tab; escaped here.
        style: the whole CSS.
        body: markup, already escaped.
        pictures: whether it contains `data:` addresses.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    image_policy = "img-src data:; " if pictures else ""
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {image_policy}',
            f"style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n",
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" ',
            'content="no-referrer">\n<meta name="color-scheme" content="light dark">\n',
            f"<title>{as_line(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            *body,
            "</body>\n</html>\n",
        ]
    )


def as_text(text: str) -> str:
    """Escapes a text for a page or an attribute."""
    return html.escape(shown(text))


def as_line(text: str) -> str:
    """Escapes a text as `as_text` does, on one line."""
    return as_text(" ".join(text.split()))
