"""`longspan lengthen`: make a published model read long documents."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.terminal import say
from longspan.errors import InputError


def lengthen(
    source: Annotated[str, typer.Argument(help="A model directory (safetensors) or a Hub name.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options of the mechanism, such as left_tokens=256."),
    ] = None,
    *,
    output: Annotated[Path, typer.Option(help="Directory to write; it must not exist or be empty.")],
    attention: Annotated[str, typer.Option(help="The mechanism; `longspan mechanisms` lists them.")] = "poolingformer",
    max_tokens: Annotated[int, typer.Option(help="The longest input afterwards.")] = 16384,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Encoder layers that get the mechanism, such as 6-11 or 0,2,-1.",
            show_default="the last half for poolingformer and fusion, else all",
        ),
    ] = None,
) -> None:
    """Make a published model read long documents: BART, mBART, LED, BERT, DistilBERT, RoBERTa, DistilRoBERTa, XLM-R,
    CamemBERT, ELECTRA, Longformer, DeBERTa, DeBERTa-v2 and v3, mDeBERTa.

    Positions are tiled, global projections copied from the local ones, and a second level starts silent, so short
    inputs come out as before: the report says by how much they differ. DeBERTa needs `--attention fusion`, which keeps
    its relative positions. Train the result, or use it as it is.
    """
    settings = _settings(options or [])
    chosen = None if layers is None else _layers(layers)

    from longspan.checkpoints.lengthening.lengthen import lengthen as run
    from longspan.checkpoints.registry import load_any
    from longspan.checkpoints.saving import load_tokenizer, save_whole
    from longspan.files import new_folder

    folder = new_folder(output)
    model = load_any(source)
    tokenizer = load_tokenizer(source, model.config)
    model = run(model, attention, max_tokens, chosen, **settings)
    if tokenizer is not None:
        tokenizer.model_max_length = max_tokens
    save_whole(folder, model, tokenizer)
    say(str(model.report))
    say(f"{'tokenizer':<14} {'copied' if tokenizer is not None else 'none beside the source; add one to use text'}")
    say(f"{'written':<14} {output}")


def _settings(options: list[str]) -> dict[str, Any]:
    """`["left_tokens=256", "pooling=mean"]` → `{"left_tokens": 256, "pooling": "mean"}`: JSON values or plain text."""
    settings: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{option!r} is no option of the mechanism; write KEY=VALUE, such as left_tokens=256")
        if name in settings:
            raise InputError(f"{name} is given twice; give it once")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _layers(text: str) -> list[int]:
    """`"0,2,6-11"` → layer numbers; negative ones count from the end."""
    from longspan.patterns.base import shortened

    layers: list[int] = []
    for part in text.split(","):
        numbers = re.fullmatch(r"\s*(-?[0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)  # no model has 10 000 layers
        if numbers is None:
            raise InputError(
                f"layers={shortened(repr(text))} is not understood; write numbers of up to four digits and ranges, "
                "such as 6-11 or 0,2,-1"
            )
        first = int(numbers[1])
        last = first if numbers[2] is None else int(numbers[2])
        if last < first:
            raise InputError(
                f"layers={text!r} has the range {part.strip()}, which is empty; write the lower number first"
            )
        layers.extend(range(first, last + 1))
    return layers
