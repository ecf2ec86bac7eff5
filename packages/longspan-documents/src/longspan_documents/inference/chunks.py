"""`longspan.chunks`: a document in, its passages out, each with the places that other tools need to point back.

They are the passages that `longspan.answer` ranks and `longspan index` keeps: whole sentences of one section
(`longspan_documents.text.passages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.errors import InputError, last_line
from longspan.options import takes
from longspan.settings import check_kind, show
from longspan_documents.inference.results import Quote, quote_of
from longspan_documents.inference.verbs import Chunks
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import MOST, Measure, passages_of, within
from longspan_documents.text.reading import as_document


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPassage:
    """A passage and where it stands.

    Attributes:
        file: what its document is called.
        text: the words as they are to be read: each paragraph, item, line of a table and turn on its own line.
        quote: its words in the document, and their place.
        headings: of the sections that it stands in, the outermost first.
        speakers: who speaks in it.
        sentences: the numbers of its first sentence and of the one behind its last, among those of the document.
        words: of `text`, between spaces.
        tokens: of `text`, without special tokens.
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
        """Plain data, for JSON: places stand beside the text."""
        record = {"file": self.file, "text": self.text, **asdict(self.quote)}
        record["text"] = self.text
        told = ("headings", "speakers", "sentences", "words", "tokens")
        return record | {name: getattr(self, name) for name in told}


@takes(Chunks)
def chunks(document: str | Path | Document, options: Chunks) -> tuple[PlacedPassage, ...]:
    """Cut a document into passages of whole sentences, none of which leaves its section.

    Args:
        document: the text itself, a `Path` to a file, or what `longspan_documents.text.reading.read` gave.

    Returns:
        The passages in order.

    Raises:
        InputError: nothing to read, an option outside its limits, or a tokenizer that cannot be loaded.
    """
    return cut(as_document(document, options), options)


def cut(document: Document, options: Chunks) -> tuple[PlacedPassage, ...]:
    """The passages of a document that has been read; see `chunks`."""
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
            words=len(text.split()),
            tokens=tokens,
        )
        for passage, text, tokens in zip(passages, texts, count(texts), strict=True)
    )


def headings_above(document: Document) -> dict[int | None, tuple[str, ...]]:
    """For the index of each block that is a heading: its words, behind those of the headings that it stands below."""
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
    """What counts the tokens of texts."""
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
