"""Coreference: which words of a long document refer to the same entity, by coarse-to-fine span ranking.

Lee et al. 2017 and 2018, end to end, over an encoder that reads the whole document. From data to answer::

    rows        a document; synthetic documents       conll     its column files, read and written
    reading     data sets by name, files and folders  task      features, training, clusters from antecedents
    spans       vectors and scores of spans           ranking   mentions and their antecedents
    head        the model class, its loss             metric    MUC, B³, CEAF: the score of CoNLL-2012
    resolving   model folder and document in, clusters with their character offsets out

This module defines the options of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from longspan.models.heads import HeadSpec
from longspan.settings import Count, Dropout, Range


@dataclass(frozen=True, kw_only=True)
class CoreferenceHead(HeadSpec):
    """Coreference by coarse-to-fine span ranking (Lee et al. 2017, 2018).

    Attributes:
        span_width: longest mention, in words.
        spans_per_word: λ: number of spans kept as mentions per word of a document, rounded up.
        antecedents: number of earlier mentions that are compared with each mention by the fine score.
        crossing: whether mentions may cross; False selects them greedily, best first, on the CPU.
        refinements: rounds in which mention vectors are updated from their antecedents before they are scored again.
        singletons: whether clusters of one mention are annotated: mentions are trained as such, and those with a score
            above 0 are a cluster even alone.
        segment_tokens: the encoder reads segments of at most this many tokens, which do not attend to each other;
            `None` reads a document in one piece, up to the model's number of positions.
        hidden_width: of the feed-forward networks.
        hidden_layers: number of hidden layers of the feed-forward networks.
        feature_width: of the embeddings of span widths, distances and speakers.
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
