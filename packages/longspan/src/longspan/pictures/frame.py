"""Web pages, each one file without scripts, addresses or anything else to load: their frame, and texts in them."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable

from longspan.characters import shown


def page_frame(title: str, style: str, body: Iterable[str], *, pictures: bool = False) -> str:
    """A whole page, whose own policy lets a browser load nothing but, if asked for, `pictures` that it holds itself.

    Args:
        title: of the tab; escaped here.
        style: the CSS, all of it.
        body: markup, escaped by whoever made it.
        pictures: whether there are `data:` addresses in it.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    own = "img-src data:; " if pictures else ""
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {own}',
            f"style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n",
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" ',
            'content="no-referrer">\n<meta name="color-scheme" content="light dark">\n',
            f"<title>{as_line(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            *body,
            "</body>\n</html>\n",
        ]
    )


def as_text(text: str) -> str:
    """Any text as it may stand in a page or an attribute."""
    return html.escape(shown(text))


def as_line(text: str) -> str:
    """A text for HTML as `as_text` gives it, on one line."""
    return as_text(" ".join(text.split()))
