"""`longspan tokenizer`: train a vocabulary on a corpus."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say
from longspan.settings import VOCABULARY

PANEL = "Models"


def tokenizer(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Text, JSON Lines or Parquet files (also .gz, .xz), directories, patterns, data sets, hf:NAME.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the tokenizer; it must not exist, or be empty.")],
    size: Annotated[
        int,
        typer.Option(
            min=VOCABULARY.minimum,
            max=VOCABULARY.maximum,
            help="Entries of the vocabulary, bytes and special tokens included.",
        ),
    ] = 50265,
    split: Annotated[str, typer.Option(help="Part of a directory or data set that has several.")] = "train",
    text_field: Annotated[
        str | None, typer.Option(help="Field of the records that holds the text.", show_default="recognised")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Only the first documents of each source.")
    ] = None,
    simplify: Annotated[
        bool, typer.Option("--simplify", help="Always read text in lower case, every number as 0, without citations.")
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="Whole words, split at white space, instead of byte pairs.")
    ] = False,
    on_error: Annotated[str, typer.Option(help="Corrupt rows: raise (name the line), or skip (and count).")] = "raise",
) -> None:
    """Train a byte-level BPE tokenizer, like those of BART and RoBERTa, or a word-level one, on a corpus of any size.

    The corpus is read once, in pieces; only the counts of its words are in memory. A recipe uses the result with
    `tokenizer: {from: DIR}`; `tokenizer: {train: SIZE}` trains one on the recipe's training data.
    """
    from longspan.data.corpus.sources import Corpus
    from longspan.files import new_folder, whole_folder

    folder = new_folder(output)
    corpora = [
        Corpus(source=source, split=split, limit=limit, text_field=text_field, on_error=on_error) for source in sources
    ]

    from longspan.training.tokenizers import train_tokenizer, train_words

    train = train_words if words else train_tokenizer
    trained = train((piece for corpus in corpora for piece, _ in corpus.pieces()), size, simplify=simplify)
    with whole_folder(folder) as partial:
        trained.save_pretrained(partial)
    say(f"{counted(len(trained), 'entry', 'entries')}: {output}")
