"""`longspan draw`: a picture of who sees whom."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.terminal import say


def draw(
    pattern: Annotated[str, typer.Argument(help='For example "window(128) | first(1)".', show_default=False)],
    tokens: Annotated[int, typer.Option(help="Number of tokens, up to 32768.")] = 512,
    out: Annotated[Path, typer.Option(help="Picture to write; the ending chooses the format.")] = Path("pattern.png"),
    heads: Annotated[bool, typer.Option("--heads", help="One panel for each head of a per_head pattern.")] = False,
) -> None:
    """Draw which tokens an attention pattern lets see each other, and count the pairs.

    Patterns are `full`, `causal`, `window(left, right, dilation)` or `window(each_side)`, `first(count)`,
    `blocks(size)`, `strided(stride)`, `fixed(stride, summary)`, `prefix(count)`, `drawn_blocks(block, count, seed)`,
    `planned_blocks` and `random_blocks` likewise, `pooled_window(left, right, kernel, stride)` and
    `per_head(pattern, …)`; `|` is "or", `&` is "and", brackets group.

    Examples: `longspan draw "causal & (window(64) | strided(64))"`,
    `longspan draw "per_head(window(64), window(32, 32, 4))" --heads --out heads.svg`.
    """
    from longspan.patterns import parse
    from longspan.pictures.patterns import check_picture, draw_pattern, save_picture

    check_picture(out)
    save_picture(draw_pattern(parse(pattern), tokens, heads=heads), out)
    say(f"wrote {out}")
