"""PDF files typeset by hand: every line at its place, in any order."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import pytest

FONTS = {"text": "Helvetica", "bold": "Helvetica-Bold", "code": "Courier"}

Set = tuple[float, float, str] | tuple[float, float, str, float] | tuple[float, float, str, float, str]
"""A line: how far from the left and the upper end of the page (600 by 800 points), its words, size and font."""


@pytest.fixture
def typeset() -> Callable[..., bytes]:
    """Make `typeset(*pages)`, each a list of lines, in the order in which the file shall have them."""

    def make(*pages: Sequence[Set]) -> bytes:
        fonts = " ".join(
            f"/{key} << /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>"
            for key, name in FONTS.items()
        )
        kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
        objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
        for lines in pages:
            stream = "\n".join(_shown(*line) for line in lines)
            objects.append(
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects) + 2} 0 R"
                f" /Resources << /Font << {fonts} >> >> >>"
            )
            objects.append(f"<< /Length {len(stream.encode('cp1252'))} >>\nstream\n{stream}\nendstream")
        data = b"%PDF-1.4\n" + b"".join(
            f"{number} 0 obj\n{body}\nendobj\n".encode("cp1252") for number, body in enumerate(objects, 1)
        )
        return data + f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n%%EOF\n".encode()

    return make


def _shown(left: float, down: float, text: str, size: float = 10, font: str = "text") -> str:
    escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    if font == "picture":  # one grey point, over the whole page
        return "q 600 0 0 800 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID x EI Q"
    if font == "askew":
        return f"BT /text {size} Tf 0.7 0.7 -0.7 0.7 {left} {800 - down} Tm ({escaped}) Tj ET"
    if font == "turned":
        return f"BT /text {size} Tf 0 1 -1 0 {left} {800 - down} Tm ({escaped}) Tj ET"
    return f"BT /{font} {size} Tf {left} {800 - down} Td ({escaped}) Tj ET"


@pytest.fixture
def column() -> Callable[..., list[Set]]:
    """Make `column(text, left, down, width=46)`: a paragraph of at most `width` letters a line, 12 points apart."""

    def make(text: str, left: float, down: float, width: int = 46) -> list[Set]:
        return [(left, down + 12 * number, line) for number, line in enumerate(textwrap.wrap(text, width))]

    return make
