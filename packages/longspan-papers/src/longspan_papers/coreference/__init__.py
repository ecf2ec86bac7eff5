"""Coreference: which words of a long document mean the same person, place or thing, by coarse-to-fine span ranking.

Lee et al. 2017 and 2018, end to end, over an encoder that reads a document whole. From data to answer::

    rows        what a document is; made-up ones      conll     its files of columns, read and written
    reading     data sets by name, files and folders  task      features, training, clusters out of antecedents
    spans       vectors and scores of spans           ranking   which are mentions, and of what
    head        the model class, its loss             metric    MUC, B³, CEAF: the score of CoNLL-2012
    resolving   a model folder and a document in, clusters with their places in its text out

Here stands what the head can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from longspan.models.heads import HeadSpec
from longspan.settings import Count, Dropout, Range


@dataclass(frozen=True, kw_only=True)
class CoreferenceHead(HeadSpec):
    """Which spans of a document mean the same, by coarse-to-fine span ranking (Lee et al. 2017, 2018).

    Attributes:
        span_width: longest mention, in words.
        spans_per_word: λ: so many spans are kept as mentions for each word of a document, rounded up.
        antecedents: of each mention, how many earlier ones are compared closely.
        crossing: whether mentions may cross; False takes them greedily, best first, on the processor.
        refinements: rounds in which mentions learn of their antecedents before they are compared again.
        singletons: what is in a cluster of its own is annotated too: mentions are trained as such, and those with a
            score above 0 are a cluster even alone.
        segment_tokens: the encoder reads segments of at most so many tokens, which do not see each other; `None` reads
            a document whole, as far as the model has positions.
        hidden_width: of the feed-forward networks.
        hidden_layers: of them.
        feature_width: of the vectors of span widths, distances and speakers.
        dropout: of the feed-forward networks and the vectors of spans.
    """

    head: ClassVar[str] = "coreference"
    model: ClassVar[str] = "LongspanForCoreference"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "token-classification"
    task: ClassVar[str | None] = "coreference"

    span_width: Annotated[int, Range(1, 1000)] = 30
    spans_per_word: Annotated[float, Range(above=0, maximum=30)] = 0.4
    antecedents: Annotated[int, Range(1, 65_536)] = 50
    crossing: bool = True
    refinements: Annotated[int, Range(0, 16)] = 0
    singletons: bool = False
    segment_tokens: Count | None = None
    hidden_width: Annotated[int, Range(1, 65_536)] = 1000
    hidden_layers: Annotated[int, Range(1, 16)] = 1
    feature_width: Annotated[int, Range(1, 4096)] = 20
    dropout: Dropout = 0.3
