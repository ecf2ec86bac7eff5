"""Options of the verbs of this package, each declared once; see `longspan_documents.inference.verbs`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from longspan.options import Computing, Option
from longspan_documents.text.options import Reading


@dataclass(frozen=True)
class Coref(Computing, Reading):
    """Options of `coref`."""

    _: KW_ONLY
    model: Annotated[
        str | Path,
        Option(
            "Folder of a model of coreference.",
            missing="train one with `longspan train coref-small`, or with the recipe longformer-coref from a published "
            "encoder, and give its folder: those of the Hub come with code of their own, which is not run",
        ),
    ]
