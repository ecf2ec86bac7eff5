"""`longspan.chunks`: splits a document into passages with their positions, for other tools.

These are the passages that `longspan.answer` ranks and `longspan index` stores: whole sentences of one section
(`longspan_documents.text.passages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.data.text.sentences import count_words
from longspan.errors import InputError, last_line
from longspan.options import expand_options
from longspan.settings import check_kind, show
from longspan_documents.inference.results import Quote, quote_of
from longspan_documents.inference.verbs import Chunks
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import MOST, Measure, passages_of, within
from longspan_documents.text.reading import as_document


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPassage:
    """A passage and its position in the document.

    Attributes:
        file: name of the document.
        text: the text for display: each paragraph, list item, table row and turn on its own line.
        quote: the text as it is in the document, with its position.
        headings: headings of the sections that contain the passage, the outermost first.
        speakers: the speakers in the passage.
        sentences: indices of its sentences in the document, as a pair of first and end (exclusive).
        words: number of words of `text`, separated by white space; see `count_words`.
        tokens: number of tokens of `text`, without special tokens.
    """

    file: str
    text: str
    quote: Quote
    headings: tuple[str, ...]
    speakers: tuple[str, ...]
    sentences: tuple[int, int]
    words: int
    tokens: int

    def __str__(self) -> str:
        return self.text

    def record(self) -> dict[str, Any]:
        """Returns the passage as a dictionary for JSON, with the fields of `quote` at its top level."""
        record = {"file": self.file, "text": self.text, **asdict(self.quote)}
        record["text"] = self.text
        names = ("headings", "speakers", "sentences", "words", "tokens")
        return record | {name: getattr(self, name) for name in names}


@expand_options(Chunks)
def chunks(document: str | Path | Document, options: Chunks) -> tuple[PlacedPassage, ...]:
    """Split a document into passages of whole sentences; no passage extends over several sections.

    Args:
        document: the text itself, a `Path` to a file, or a document returned by `longspan_documents.text.reading.read`.

    Returns:
        The passages in order.

    Raises:
        InputError: there is nothing to read, an option is out of range, or a tokenizer cannot be loaded.
    """
    return cut(as_document(document, options), options)


def cut(document: Document, options: Chunks) -> tuple[PlacedPassage, ...]:
    """Split a document that has been read into passages; see `chunks`."""
    count = _counter(options.tokenizer)
    max_words, max_tokens = options.max_words, options.max_tokens
    if max_words is None and max_tokens is not None:
        passages = passages_of(document, most=max_tokens, overlap=options.overlap, measure=count)
    else:
        passages = passages_of(document, most=max_words or MOST, overlap=options.overlap)
    if max_tokens is not None:
        passages = [part for passage in passages for part in within(document, passage, max_tokens, count)]
    paths = headings_above(document)
    texts = [passage.text for passage in passages]
    return tuple(
        PlacedPassage(
            file=document.name,
            text=text,
            quote=quote_of(document, passage.start, passage.end),
            headings=paths.get(passage.sentences[0].section, ()),
            speakers=passage.speakers,
            sentences=(passage.first, passage.first + len(passage.sentences)),
            words=count_words(text),
            tokens=tokens,
        )
        for passage, text, tokens in zip(passages, texts, count(texts), strict=True)
    )


def headings_above(document: Document) -> dict[int | None, tuple[str, ...]]:
    """Returns, for the index of each heading block, the headings of its enclosing sections and its own."""
    above: list[tuple[int, str]] = []
    paths: dict[int | None, tuple[str, ...]] = {}
    for index, block in enumerate(document.blocks):
        if block.kind != "heading":
            continue
        level = block.level or 1
        while above and above[-1][0] >= level:
            above.pop()
        above.append((level, " ".join(block.text.split())))
        paths[index] = tuple(words for _, words in above if words)
    return paths


def _counter(tokenizer: str | Path | Callable[..., Any] | None) -> Measure:
    """Returns a function that counts the tokens of texts."""
    if tokenizer is not None and not callable(tokenizer):
        check_kind(tokenizer, "tokenizer", (str, Path), "a folder, a name, or a tokenizer of transformers")
    used = tokenizer if callable(tokenizer) else _load(tokenizer and str(tokenizer))

    def count(texts: Sequence[str]) -> list[int]:
        ids = used(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        return list(map(len, ids))

    if callable(tokenizer):
        try:
            count(["a word"])
        except Exception as error:
            raise InputError(
                f"tokenizer is {show(tokenizer)}, which takes no texts as a tokenizer of transformers does "
                f"({last_line(error)}); give such a one, a folder or a name"
            ) from error
    return count


@lru_cache(maxsize=2)
def _load(source: str | None) -> Any:
    if source is None:
        from longspan_documents.inference.encoders import BUNDLED, BundledTokenizer

        return BundledTokenizer(BUNDLED)
    from longspan.checkpoints.loading import load_tokenizer

    return load_tokenizer(source)
