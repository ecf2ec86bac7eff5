"""`longspan generate`."""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say, say_json, text_of_input
from longspan.errors import InputError
from longspan.options import Computing

PANEL = "Models"


def generate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder of a model trained for language_model.", show_default=False)
    ] = "",
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue; - is standard input.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 400,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; higher draws more boldly.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest tokens of this probability together.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among so many tokens.", show_default="all")] = None,
    beams: Annotated[int, typer.Option(help="Search with so many beams instead of drawing.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the draws.", show_default="another each time")] = None,
    *,
    computing: Computing,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object at the end, and nothing before.")] = False,
) -> None:
    """Continue a text with a language model, and print it while it is generated.

    Examples: `longspan generate runs/novels-small "It was a dark night"`, `longspan generate runs/novels-small "Chapter
    I." --max-tokens 2000 --seed 3`.
    """
    from longspan.inference.generate import Writing
    from longspan.inference.generate import generate as run

    if not model.strip() or (not prompt and re.search(r"\s", model) and not Path(model).exists()):
        missing = f"MODEL is {model!r}, which is no folder" if model.strip() else "MODEL is missing"
        raise InputError(
            f"{missing}; train one with `longspan train novels-small` (data.train and data.validation name "
            "texts of your own), and give its folder before the text: `longspan generate runs/novels-small TEXT`"
        )
    writing = Writing(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, beams=beams, seed=seed)
    if prompt == "-":
        prompt = text_of_input().removesuffix("\n")
    if json:
        say_json(asdict(run(prompt, model, writing=writing, device=computing.device, dtype=computing.dtype)))
        return
    begun = False

    def show(piece: str) -> None:
        nonlocal begun
        # The prompt is printed with the first piece, so that an error leaves no partial output.
        say(piece if begun else prompt + piece, end="")
        begun = True
        sys.stdout.flush()

    done = run(prompt, model, writing=writing, stream=show, device=computing.device, dtype=computing.dtype)
    say()
    sys.stdout.flush()
    rate = done.tokens / max(done.seconds, 1e-9)
    say(f"[{counted(done.tokens, 'token')} written in {done.seconds:.1f} s, {rate:,.0f} a second]", error=True)
