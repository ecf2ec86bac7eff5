"""Options that several commands have."""

from typing import Annotated, Literal

import typer

Device = Annotated[str | None, typer.Option(help="Where models compute: cpu, cuda, cuda:1, mps, …", show_default="cpu")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Of the weights of models that are given.", show_default="float32"),
]
