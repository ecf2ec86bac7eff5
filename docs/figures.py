"""Draw the figures of the documentation: `python docs/figures.py`. Run by `make docs`; no figure is drawn by hand."""

from pathlib import Path

from longspan.patterns import parse
from longspan.pictures import draw_pattern, save_picture

FIGURES = {
    "window-first.png": ("window(128) | first(1)", 512, False),
    "heads.png": ("per_head(window(64), window(64, 64, 2), window(32, 0, 4), causal & strided(64))", 512, True),
    "longformer.png": ("window(128) | first(1)", 1024, False),
    "poolingformer.png": ("pooled_window(512, 512, 5, 4)", 2048, False),
    "bigbird.png": ("window(64) | first(64) | random_blocks(64, 3, 0)", 1024, False),
    "sparse.png": ("causal & (window(64) | strided(64))", 512, False),
}
"""File → pattern, tokens, a panel for each head."""


def main() -> None:
    folder = Path(__file__).parent / "img"
    folder.mkdir(exist_ok=True)
    for name, (text, tokens, heads) in FIGURES.items():
        save_picture(draw_pattern(parse(text), tokens, heads=heads), folder / name)


if __name__ == "__main__":
    main()
