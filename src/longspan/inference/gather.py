"""From a document that was read to what the picker of sentences reads: vectors, content words, structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longspan.data.text.blocks import Document
from longspan.data.text.reading import DocumentSentence
from longspan.data.text.words import contents_of
from longspan.inference.embed import Encoder
from longspan.tasks.summaries.clues import Sentences


def gather(document: Document, found: Sequence[DocumentSentence], encoder: Encoder) -> tuple[Sentences, int]:
    """The sentences of a document with all that is known of them, and how many tokens were read.

    Args:
        document: as it was read.
        found: its sentences.
        encoder: gives their vectors.
    """
    texts = [sentence.text for sentence in found]
    vectors, tokens = encoder.read_document(texts)
    places = [index for index, block in enumerate(document.blocks) if block.kind == "heading"]
    headings = [document.blocks[index].text for index in places]
    title = document.title or ""
    loose = encoder.embed([*headings, title])
    blocks = np.array([sentence.block for sentence in found], dtype=int)
    sentences = Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=vectors,
        paragraphs=blocks,
        sections=np.searchsorted(places, blocks) if places else np.zeros(len(found), int),
        headings=headings,
        heading_vectors=loose[:-1],
        title=title,
        title_vector=loose[-1] if title.strip() else None,
        spoken=np.array([sentence.speaker is not None for sentence in found], dtype=bool),
    )
    return sentences, tokens
