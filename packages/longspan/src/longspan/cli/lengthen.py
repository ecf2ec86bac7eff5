"""`longspan lengthen`: convert a published model to long documents."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.terminal import say
from longspan.errors import InputError

PANEL = "Models"


def lengthen(
    source: Annotated[str, typer.Argument(help="A model directory (safetensors) or a Hub name.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options of the mechanism, such as left_tokens=256 or layers=6-11."),
    ] = None,
    *,
    output: Annotated[Path, typer.Option(help="Directory to write; it must not exist or be empty.")],
    attention: Annotated[
        str | None,
        typer.Option(
            help="The mechanism (`longspan mechanisms` lists them), with two levels in the upper half of the layers; "
            "or by layers, as recipes have it: '[{layers: 0-5, mechanism: longformer}, "
            "{layers: 6-, mechanism: poolingformer}]'.",
            show_default="poolingformer; longformer in T5 and its kin, ModernBERT and MPNet",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The longest input afterwards.")] = 16384,
    new_positions: Annotated[
        str,
        typer.Option(help="How rows of the position table beyond the source's start: copied, or random to compare."),
    ] = "copied",
    stack: Annotated[
        str | None,
        typer.Option(
            help="Another stack for the encoder's layers, by name or as recipes have it: '{stack: top_down, kernel: "
            "32}'; what it has besides is new, and must be trained."
        ),
    ] = None,
) -> None:
    """Convert a published model to long documents: BART, mBART, LED, BERT, BigBird, BigBird-Pegasus, DistilBERT,
    RoBERTa, DistilRoBERTa, XLM-R, CamemBERT, ELECTRA, Longformer, DeBERTa, DeBERTa-v2 and v3, mDeBERTa, Pegasus,
    Marian, T5, mT5, UMT5, LongT5, ModernBERT, MPNet.

    Positions are tiled, global projections are copied from the local ones, and a second level is initialised to have no
    effect, so outputs for short inputs are unchanged; the report contains the difference. DeBERTa needs `--attention
    fusion`, which keeps its relative positions; T5 and its variants, ModernBERT and MPNet remain models of
    transformers, with windowed attention. Train the result, or use it as it is; with `--stack` it has to be trained.
    """
    settings = _settings(options or [])
    chosen, stacked = _read(attention, "--attention"), _read(stack, "--stack")

    import torch

    from longspan.checkpoints.architectures import IN_PLACE
    from longspan.checkpoints.lengthening.lengthen import lengthen as run
    from longspan.checkpoints.loading import tokenizer_beside
    from longspan.checkpoints.pooling import carry_pooling
    from longspan.checkpoints.sources import load_any
    from longspan.files import new_folder, whole_folder
    from longspan.progress import without_file_bars

    folder = new_folder(output)
    model: Any = load_any(source, in_place=True)
    if stacked is not None and model.config.model_type in IN_PLACE:
        raise InputError(
            f"--stack puts blocks of Longspan together, and a {type(model).__name__} stays as transformers has it; "
            "leave it out"
        )
    tokenizer = tokenizer_beside(source, model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some new weights are random, and the same command must write the same files
        model = run(model, chosen, max_tokens, new_positions=new_positions, **settings)
        if stacked is not None:
            from longspan.checkpoints.decomposing import restacked

            model = restacked(model, stacked, "--stack")
    with whole_folder(folder) as partial, without_file_bars():
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.model_max_length = max_tokens
            tokenizer.save_pretrained(partial)
        pooled = carry_pooling(source, partial, max_tokens)
    say(str(model.report))
    if stacked is not None:
        say(str(model.stack_report))
    say(
        f"{'tokenizer':<14} "
        f"{'copied' if tokenizer is not None else 'none in the folder of the source; add one to use text'}"
    )
    if pooled:
        say(f"{'vectors':<14} pooled as in the source's modules.json, which is copied")
    say(f"{'written':<14} {output}")


def _settings(options: list[str]) -> dict[str, Any]:
    """`["left_tokens=256", "pooling=mean"]` → `{"left_tokens": 256, "pooling": "mean"}`: JSON values or plain text."""
    settings: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{option!r} is no option of the mechanism; write KEY=VALUE, such as left_tokens=256")
        if name in ("attention", "max_tokens", "new_positions", "output"):
            raise InputError(f"{name} is no option of the mechanism; write --{name.replace('_', '-')} {value}")
        if name in settings:
            raise InputError(f"{name} is given twice; give it once")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _read(text: str | None, option: str) -> Any:
    """Parse an option: a name, or data such as mechanisms with the layers of each, from JSON, or from YAML if it is
    installed; returns None for None."""
    if text is None or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        from longspan.plain_yaml import read_yaml

        return read_yaml(text, option)
