"""`longspan draw`: a picture of an attention pattern, or of the learned attention spans of a model's heads."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.terminal import say
from longspan.errors import InputError

PANEL = "Attention"


def draw(
    pattern: Annotated[
        str | None, typer.Argument(help='For example "window(128) | first(1)".', show_default=False)
    ] = None,
    tokens: Annotated[int, typer.Option(help="Number of tokens, up to 32768.")] = 512,
    out: Annotated[Path, typer.Option(help="Picture to write; the ending chooses the format.")] = Path("pattern.png"),
    heads: Annotated[bool, typer.Option("--heads", help="One panel for each head of a per_head pattern.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Instead of a pattern: a model folder, whose heads have learned spans.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Draw the pairs of tokens that an attention pattern lets attend, and count them; or the learned spans of a model's
    heads (adaptive spans).

    Patterns are `full`, `causal`, `window(left, right, dilation)` or `window(each_side)`, `first(count)`,
    `blocks(size)`, `strided(stride)`, `fixed(stride, summary)`, `prefix(count)`, `drawn_blocks(block, count, seed)`,
    `planned_blocks` and `random_blocks` likewise, `pooled_window(left, right, kernel, stride)` and `per_head(pattern,
    …)`; `|` is "or", `&` is "and", brackets group.

    Examples: `longspan draw "causal & (window(64) | strided(64))"`, `longspan draw --model DIR --out spans.png`,
    `longspan draw "per_head(window(64), window(32, 32, 4))" --heads --out heads.svg`.
    """
    from longspan.patterns import parse
    from longspan.pictures.patterns import check_picture, draw_pattern, save_picture

    if pattern is not None and model is not None:
        raise InputError("draw takes a pattern or --model FOLDER, and got both; leave one out")
    check_picture(out)
    if model is not None:
        from longspan.checkpoints.loading import load_model
        from longspan.pictures.spans import draw_spans

        save_picture(draw_spans(load_model(model)), out)
    elif pattern is not None:
        save_picture(draw_pattern(parse(pattern), tokens, heads=heads), out)
    else:
        raise InputError("draw takes a pattern or --model FOLDER, and got neither; give one of them")
    say(f"wrote {out}")
