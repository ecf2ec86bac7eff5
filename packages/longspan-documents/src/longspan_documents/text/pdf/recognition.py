"""Text recognition (OCR) of pages and files that are pictures, with RapidOCR, whose package includes its weights.

Recognised text becomes lines with positions and sizes, so that columns, headings and paragraphs are found as in any PDF
page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from io import BytesIO
from itertools import islice
from math import inf, sqrt
from statistics import median
from typing import Any

from longspan.errors import InputError
from longspan.imports import require
from longspan.workers import run_python, take_at_most
from longspan_documents.text.pdf.lines import MOST_IMAGES, Line

MOST_PAGES = 200
"""Maximum pages of a file that are recognised; each takes seconds."""
SECONDS = 60
"""Time limit for each page, and for loading the models."""
DOTS = 200
"""Dots per inch of rendered pages."""
MOST_DOTS, LARGEST_IMAGE = 12_000_000, 200_000_000
"""Dots to which larger pictures are scaled down for recognition; maximum dots of a picture that is opened."""
MEMORY = 8 << 30
"""Address space limit, in bytes, of the recognition process, most of which it never uses."""
FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "GIF")
LETTERS, BELOW = 0.72, 0.22
"""Relative to the height of a recognised line: font size, and distance of the base line from its lower end."""
ALIKE = 1.25
"""Maximum ratio of line heights on a page for equal font sizes."""


def recognised_pages(data: bytes, name: str, numbers: Sequence[int] | None = None) -> list[list[Line]]:
    """Returns the lines of pages that are pictures, recognised by another process (see `main`).

    Args:
        data: a PDF file, or an image of one or more pages.
        name: its name in error messages.
        numbers: page indices of a PDF file, from 0; None for an image.

    Raises:
        InputError: there are more than `MOST_PAGES`, the file is damaged or too large, it took too long, or the 'ocr'
            extra is not installed.
    """
    require("rapidocr", extra="ocr", purpose="text recognition")
    require("pypdfium2" if numbers is not None else "PIL", extra="ocr", purpose="text recognition")
    if numbers is not None and len(numbers) > MOST_PAGES:
        raise InputError(
            f"{name} has {len(numbers)} pages that are pictures, and text recognition reads {MOST_PAGES} of a file at "
            "most; cut it into parts"
        )
    limit = SECONDS * (1 + (MOST_PAGES if numbers is None else len(numbers)))
    try:
        done = run_python(f"from {__name__} import main; main()", json.dumps(numbers), data=data, timeout=limit)
    except subprocess.TimeoutExpired:
        raise InputError(f"text recognition of {name} took more than {limit} seconds; cut it into parts") from None
    answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout.strip() else {}
    if "pages" in answer:
        where = numbers if numbers is not None else range(len(answer["pages"]))
        return [lines_of_boxes(boxes, page) for page, boxes in zip(where, answer["pages"], strict=True)]
    if done.returncode > 0:
        raise RuntimeError(done.stderr.decode("utf-8", "replace"))
    reason = answer.get("reason") or "it needs too much memory"
    raise InputError(f"{name} cannot be read by text recognition ({' '.join(reason.split()).rstrip('.')})")


def main() -> None:
    """Recognises a file from standard input and writes the boxes of its pages to standard output, as JSON.

    This is a separate process, which can be terminated, with limited memory. For each page it writes a list of `[left,
    top, right, bottom, text]` in points.
    """
    from rapidocr import RapidOCR

    numbers = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    take_at_most(AS=MEMORY)
    threads = int(os.environ.get("OMP_NUM_THREADS", "-1"))
    runtime = {f"EngineConfig.onnxruntime.{which}_op_num_threads": threads for which in ("intra", "inter")}
    recognise = RapidOCR(
        params={"Global.log_level": "error", "Global.use_cls": False, "Global.max_side_len": 8_000, **runtime}
    )
    try:
        pages = [
            [
                [*(float(edge) / scale for edge in (*box.min(0), *box.max(0))), text]
                for box, text in zip(*_found(recognise, picture), strict=True)
            ]
            for picture, scale in (_images(data) if numbers is None else _drawn(data, numbers))
        ]
        sys.stdout.write(f"\n{json.dumps({'pages': pages})}\n")
    except _TooMuchError as error:
        sys.stdout.write(f"\n{json.dumps({'reason': str(error)})}\n")


class _TooMuchError(Exception):
    """A picture is damaged or too large."""


def _found(recognise: Any, picture: Any) -> tuple[Any, Any]:
    result = recognise(picture)
    return ([], []) if result.boxes is None else (result.boxes, result.txts)


def _drawn(data: bytes, numbers: Sequence[int]) -> Any:
    """Yields pages of a PDF file as arrays of colours, each with its dots per point."""
    import pypdfium2

    with closing(pypdfium2.PdfDocument(data)) as document:
        for number in numbers:
            with closing(document[number]) as page:
                width, height = page.get_size()
                scale = min(DOTS / 72, _sharpness(page), sqrt(MOST_DOTS / max(width * height, 1)))
                drawn = page.render(scale=scale)  # pyright: ignore[reportArgumentType]
                yield drawn.to_numpy()[:, :, :3].copy(), scale


def _sharpness(page: Any) -> float:
    """Returns the dots per point of the finest image on a page: rendering at a higher resolution blurs it."""
    import pypdfium2.raw as pdfium

    finest = 0.0
    for image in islice(page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3), MOST_IMAGES):
        left, _, right, _ = image.get_bounds()
        finest = max(finest, image.get_px_size()[0] / max(right - left, 1.0))
    return max(finest, 1.0) if finest else inf


def _images(data: bytes) -> Any:
    """Yields the pages of an image, as in `_drawn`; they are assumed to have the width of a sheet of paper."""
    import numpy
    from PIL import Image, ImageOps, ImageSequence

    Image.MAX_IMAGE_PIXELS = None  # the limit below is used instead
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            for number, frame in enumerate(ImageSequence.Iterator(image)):
                if number >= MOST_PAGES:
                    raise _TooMuchError(f"it has more than {MOST_PAGES} pages")
                if frame.width * frame.height > LARGEST_IMAGE:
                    raise _TooMuchError(f"it has more than {LARGEST_IMAGE // 1_000_000} million dots")
                page = ImageOps.exif_transpose(frame).convert("RGB")
                shrunk = sqrt(MOST_DOTS / (page.width * page.height))
                if shrunk < 1:
                    page = page.resize((max(round(shrunk * page.width), 1), max(round(shrunk * page.height), 1)))
                yield numpy.asarray(page)[:, :, ::-1].copy(), page.width / 595
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise _TooMuchError(f"it is damaged: {error}") from None


def lines_of_boxes(boxes: Sequence[Sequence[Any]], page: int) -> list[Line]:
    """Returns the lines of a page from the boxes written by `main`; similar heights become the same size."""
    heights = [bottom - top for _, top, _, bottom, _ in boxes]
    usual = median(heights) if heights else 0.0
    lines: list[Line] = []
    for (left, _, right, bottom, text), height in zip(boxes, heights, strict=True):
        alike = usual / ALIKE < height < usual * ALIKE
        if text.strip():
            lines.append(
                Line(
                    text=" ".join(text.split()),
                    page=page,
                    left=left,
                    right=right,
                    base=bottom - BELOW * (usual if alike else height),
                    size=LETTERS * (usual if alike else height),
                )
            )
    return lines
