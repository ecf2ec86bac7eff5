"""`longspan.embed`: embeds texts of any length; texts with similar meanings have similar vectors.

A document is read as a whole: the vector of each sentence depends on the text around it, and the vector of the document
is the mean of these. Single texts (questions, titles) are read separately; both kinds of vectors can be compared. Any
encoder can replace the bundled one: `Encoder` wraps a model that was trained to embed; `PooledEncoder` wraps any other
encoder and pools its token states. Models in the format of sentence-transformers are pooled as their files specify
(`longspan.checkpoints.pooling`), but texts are never truncated: a text that is longer than the model's input raises an
error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from longspan.characters import mend
from longspan.devices import check_loads, check_named, check_numbers
from longspan.errors import InputError
from longspan.options import expand_options
from longspan.settings import check_kind, check_several, show
from longspan_documents.inference.encoders import (
    UNKNOWN,
    BundledTokenizer,
    Encoder,
    batches_of,
    bundled_encoder,
    fits_one_row,
    in_one_row,
    of_length_one,
    padded,
)
from longspan_documents.inference.verbs import Embed, EmbedTexts

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.checkpoints.pooling import Pooling
    from longspan_documents.text.blocks import Document
    from longspan_documents.text.reading import DocumentSentence


@expand_options(EmbedTexts)
def embed(texts: str | Sequence[str], options: EmbedTexts) -> np.ndarray:
    """Embed separate texts of any length.

    Args:
        texts: one text, or several.

    Returns:
        `(D,)` for one text, `(N, D)` for several; float32 unit vectors, so that their dot products are cosines.

    Raises:
        InputError: a text is blank, no string, or the name of a file, or the bundled encoder knows less than half of
            its words; a model cannot be loaded, is no encoder, or has a shorter input than a text; a device does not
            exist or is specified for a model that is already loaded.
    """
    from longspan_documents.text.folders import check_not_path

    single = isinstance(texts, str)
    if not single:
        check_several(texts, "texts", "a text, or a list of texts")
        if isinstance(texts, Set):
            raise InputError(
                f"texts is {show(texts)}, whose order nobody knows; give a list, in the order of the vectors"
            )
    several = [texts] if single else list(texts)
    for text in several:
        if isinstance(text, str):
            check_not_path(text, "texts" if single else "a text", "give {path} to longspan.embed_document")
    vectors = embed_words(several, options)
    return vectors[0] if single else vectors


def embed_words(texts: Sequence[str], options: EmbedTexts) -> np.ndarray:
    """Returns `(N, D)` vectors as `embed` does, but accepts texts that are names of files, for requests."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts holds {show(text)}, which has no words; give texts with words in them")
    chosen = encoder_in(options)
    for text in texts:
        check_words_known(text, chosen)
    if options.encoder is None and options.purpose is not None:
        raise InputError(
            f"purpose={show(options.purpose)} chooses a prompt of encoder=…, which is not given; leave it out"
        )
    return chosen.embed(texts) if options.purpose is None else chosen.embed(texts, options.purpose)


def check_words_known(text: str, encoder: Any) -> None:
    """Raises an `InputError` if the bundled encoder knows less than half of a text: such vectors are nearly equal."""
    if not isinstance(getattr(encoder, "tokenizer", None), BundledTokenizer):
        return
    share = encoder.tokenizer.unknown_share(text)
    if share > UNKNOWN:
        raise InputError(
            f"the bundled encoder does not know {share:.0%} of the words of {show(text)}, so its vector would mean "
            "nothing; it was trained on English: give encoder='multilingual' (pip install 'longspan[multilingual]'), "
            "or another multilingual model"
        )


@dataclass(frozen=True, kw_only=True)
class EmbeddedDocument:
    """The vectors of a document.

    Attributes:
        vector: `(D,)` unit vector of the document: the mean of its sentences' vectors or, for a pooled encoder, of all
            token states; 0 for an empty document.
        vectors: `(N, D)`, of its sentences.
        sentences: the N sentences in order, with their positions.
        tokens: number of tokens that were read.
    """

    vector: np.ndarray
    vectors: np.ndarray
    sentences: tuple[DocumentSentence, ...]
    tokens: int


@expand_options(Embed)
def embed_document(document: str | Path | Document, options: Embed) -> EmbeddedDocument:
    """Embed a document of any length and its sentences, each in the context of the document.

    A document that is longer than the input of `encoder` is read in chunks, and its sentences are read separately.

    Args:
        document: the text itself, a `Path` to a file of any kind that `read` supports, or a document returned by
            `read`.

    Raises:
        InputError: there is nothing to read; other errors as in `embed`.
    """
    from longspan_documents.text.reading import as_document

    return embedded(as_document(document, options), encoder_in(options), options.language)


def embedded(document: Document, encoder: Any, language: str | None = None) -> EmbeddedDocument:
    """Embed a document with a loaded encoder; see `embed_document`."""
    from longspan_documents.text.reading import sentences_of

    check_words_known(document.text, encoder)
    sentences = tuple(sentences_of(document, language))
    vector, vectors, tokens = encoder.read(document, sentences)
    return EmbeddedDocument(vector=vector, vectors=vectors, sentences=sentences, tokens=tokens)


def save_vectors(
    path: Path, names: Sequence[str], documents: Sequence[EmbeddedDocument], *, sentences: bool = False
) -> None:
    """Write vectors to a .safetensors file, with the names in its metadata.

    It contains `documents` `(M, D)` float32 and, with `sentences`, for the document with index i `sentences.i` `(N, D)`
    and `places.i` `(N, 2)` int64, the first and end characters.
    """
    from safetensors.numpy import save

    from longspan.files import whole_file

    tensors = {"documents": np.stack([document.vector for document in documents])}
    if sentences:
        for index, document in enumerate(documents):
            tensors[f"sentences.{index}"] = document.vectors
            spans = [(sentence.start, sentence.end) for sentence in document.sentences]
            tensors[f"places.{index}"] = np.array(spans, np.int64).reshape(-1, 2)
    with whole_file(path) as file:
        file.write_bytes(save(tensors, {"names": json.dumps(list(names))}))


def encoder_in(options: EmbedTexts | Embed) -> Any:
    """Returns the encoder that the options specify, loaded.

    Raises:
        InputError: there are two encoders.
    """
    model, encoder, device, dtype = options.model, options.encoder, options.device, options.dtype
    if encoder is not None:
        from longspan_documents.inference.sentence_encoder import load_sentence_encoder

        if model is not None:
            raise InputError(f"model={show(model)} and encoder={show(encoder)} are both encoders; give one of them")
        return load_sentence_encoder(encoder, device, dtype)
    if model is not None and not hasattr(model, "embed"):
        check_kind(model, "model", (str, Path), "a folder, a name, or what `load_encoder` returned")
    check_loads("model", model, device, dtype)
    return load_encoder(model, device, dtype) if model is None or isinstance(model, str | Path) else model


@overload
def load_encoder(model: None = None, device: str | None = None, dtype: None = None) -> Encoder: ...
@overload
def load_encoder(
    model: str | Path | None, device: str | None = None, dtype: str | None = None
) -> Encoder | PooledEncoder: ...
def load_encoder(
    model: str | Path | None = None, device: str | None = None, dtype: str | None = None
) -> Encoder | PooledEncoder:
    """Load an encoder for many texts; arguments and errors as in `embed`. The two latest are cached."""
    if model is not None:
        check_kind(model, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    check_numbers(dtype, model)
    return bundled_encoder(device) if model is None else _load(str(model), device, dtype)


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> Encoder | PooledEncoder:
    from longspan.checkpoints.loading import load_pair
    from longspan.checkpoints.pooling import pooling_of
    from longspan.models import LongspanForSentenceEmbedding
    from longspan.models.encoder_model import encoder_of

    model, tokenizer = load_pair(source, device, dtype)
    if isinstance(model, LongspanForSentenceEmbedding):
        return Encoder(model.eval(), tokenizer)
    encoder = encoder_of(model)
    if encoder is None:
        raise InputError(
            f"model {source!r} is a {type(model).__name__}, which writes text and does not embed; give an encoder, "
            "such as a BERT or a RoBERTa, lengthened or not"
        )
    return PooledEncoder(encoder.eval(), tokenizer, pooling_of(source))


class PooledEncoder:
    """An encoder with its tokenizer, whose token states are pooled to one vector.

    Args:
        model: a `LongspanModel`.
        tokenizer: the tokenizer of the model.
        pooling: how states are pooled; vectors are always normalised to length 1.

    Attributes:
        dimensions: D, of the vectors.
        max_tokens: maximum length of a text, special tokens included.
    """

    def __init__(self, model: Any, tokenizer: Any, pooling: Pooling | None = None) -> None:
        from longspan.checkpoints.pooling import Pooling
        from longspan.tasks.language_modelling.masked_lm import around

        self.model = model
        self.tokenizer = tokenizer
        self.pooling = pooling or Pooling()
        self.before, self.after = around(tokenizer)
        self.dimensions: int = model.config.states_width
        self.max_tokens: int = model.encoder.embeddings.max_tokens

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors `(N, D)` of separate texts; 0 for blank texts."""
        encoded = [[*self.before, *tokens, *self.after] for tokens in self._encode(texts)]
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in batches_of([len(tokens) for tokens in encoded]):
            vectors[chosen] = self.pooled([encoded[index] for index in chosen])
        vectors[[not text.strip() for text in texts]] = 0
        return vectors

    def pooled(self, encoded: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns vectors `(B, D)` of tokenized texts, special tokens included."""
        import torch

        lengths = [len(tokens) for tokens in encoded]
        if fits_one_row(self.model.encoder, lengths):
            ids, owners = (tensor.to(self.model.device) for tensor in in_one_row(encoded))
            with torch.inference_mode():
                states = self.model(input_ids=ids, seq_idx=owners).last_hidden_state[0].float().cpu()
            parts = states.split(lengths)
            return of_length_one(np.stack([_pool(part[None], None, self.pooling.mode)[0].numpy() for part in parts]))
        states, real = self._states(encoded)
        return of_length_one(_pool(states, real, self.pooling.mode).numpy())

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns the vector `(D,)` of a document read as a whole, headings included; the `(N, D)` mean token states of
        its sentences; and the number of tokens that were read."""
        # Headings, and sentences with their indices, in order.
        headings = [(index, -1, block.text) for index, block in enumerate(document.blocks) if block.kind == "heading"]
        indexed_sentences = [(sentence.block, index, sentence.text) for index, sentence in enumerate(sentences)]
        inside = [heading for heading in headings if heading[2]] + indexed_sentences
        pieces = [(text, None if index < 0 else index) for _, index, text in sorted(inside)]
        encoded = self._encode([text if index == 0 else f" {text}" for index, (text, _) in enumerate(pieces)])
        tokens = [*self.before, *chain.from_iterable(encoded), *self.after]
        vectors = np.zeros((len(sentences), self.dimensions), np.float32)
        if not pieces:
            return np.zeros(self.dimensions, np.float32), vectors, 0
        states, real = self._states([tokens])
        start = len(self.before)
        for (_, sentence), ids in zip(pieces, encoded, strict=True):
            if sentence is not None:
                vectors[sentence] = of_length_one(states[0, start : start + len(ids)].mean(0).numpy())
            start += len(ids)
        return of_length_one(_pool(states, real, self.pooling.mode).numpy())[0], vectors, len(tokens)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        from longspan.tasks.tokenizers import encode_sentences

        mended = [mend(text)[0] for text in texts]
        return encode_sentences([text.lower() for text in mended] if self.pooling.lower else mended, self.tokenizer)

    def _states(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Returns the last hidden states `(B, T, D)` float32 and the attention mask `(B, T)`, on the CPU."""
        import torch

        ids, real = padded(encoded, self.tokenizer.pad_token_id or 0)
        with torch.inference_mode():
            there = {"input_ids": ids.to(self.model.device), "attention_mask": real.to(self.model.device)}
            return self.model(**there).last_hidden_state.float().cpu(), real


def _pool(states: Tensor, real: Tensor | None, mode: str) -> Tensor:
    """Pool states `(B, T, D)` with an attention mask `(B, T)`, or over all tokens, to `(B, D)`."""
    if mode == "cls":
        return states[:, 0]
    if real is None:
        return states.amax(1) if mode == "max" else states.mean(1)
    if mode == "max":
        return states.masked_fill(~real[..., None], float("-inf")).amax(1)
    return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
