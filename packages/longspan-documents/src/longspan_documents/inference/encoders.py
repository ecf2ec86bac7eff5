"""The bundled encoder: unit vectors of separate texts, of a document and of its sentences.

`Encoder` combines a model that was trained to embed and its tokenizer. The bundled encoder is loaded without
transformers, as a plain network with a tokenizer of the tokenizers library: importing transformers takes longer than
reading a short document. `longspan_documents.inference.embed` loads every other encoder.

Small operations run on one thread, unless the user has set a number of threads. With several threads, an operation ends
when the last of them has finished, and the others spin until then. A small operation takes less time than this
synchronisation, and if another process uses the same processors, one of the threads does not run at all while the
others spin, in each of thousands of operations.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from longspan.characters import mend
from longspan.data.text.sentences import length_in_words, split_words
from longspan.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from longspan.models.fields import ModelFields
    from longspan_documents.text.blocks import Document
    from longspan_documents.text.reading import DocumentSentence

Network = TypeVar("Network", bound="nn.Module")

BATCH_TOKENS = 16_384
"""Tokens of a batch of separate texts, padding included."""
PADDED_AT_MOST = 640
"""Maximum number of tokens, padding included, of a batch that is padded; copying the texts into one row would take
longer."""
BUNDLED = Path(__file__).parents[1] / "bundled" / "encoder"
"""The folder of the bundled encoder; its README.md is the model card."""
CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables that set a number of threads."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager that computes with one thread, and restores the number of threads at its end.

    A number that the user has set is kept: in the environment, or by `torch.set_num_threads` (unless it equals the
    default of PyTorch, which is indistinguishable from no setting). Other threads of the process keep their number.
    Without PyTorch in the process, there is nothing to set.
    """
    if "torch" not in sys.modules:
        yield
        return
    import torch

    before = torch.get_num_threads()
    if before == 1 or not torch.backends.openmp.is_available() or _is_chosen(before):
        yield
        return
    _set_here(1, elsewhere=before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_chosen(count: int) -> bool:
    """Whether a number of threads differs from the defaults of PyTorch: the processors of this process, or the cores,
    each of which may count as two processors."""
    everywhere = os.cpu_count() or 1
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else everywhere
    return any(map(os.environ.get, CHOSEN_BY)) or count not in {everywhere, here, everywhere // 2, here // 2}


def _set_here(count: int, *, elsewhere: int) -> None:
    """Set the number of threads of this thread to `count`, and of threads that start later to `elsewhere`.

    PyTorch stores the number per thread, and new threads take the number that was set last in any thread. So another
    thread sets it to `elsewhere` afterwards.
    """
    import torch

    torch.set_num_threads(count)
    thread = threading.Thread(target=torch.set_num_threads, args=(elsewhere,))
    thread.start()
    thread.join()


class Encoder:
    """A model that was trained to embed, with its tokenizer; see `bundled_encoder` and `load_encoder`.

    Args:
        model: a `LongspanForSentenceEmbedding`, or the bundled network.
        tokenizer: the tokenizer of the model.

    Attributes:
        dimensions: D, of the vectors.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.dimensions: int = model.projection.out_features

    @classmethod
    def opened(cls, folder: Path, device: str | None) -> Self:
        """Load the encoder from a folder of the package; device and errors as in `bundled_encoder`."""
        from longspan.devices import placed
        from longspan.models.heads.sentence_network import EmbeddingNetwork

        model, tokenizer = open_bundled(folder, EmbeddingNetwork)
        return cls(model if device is None else placed(model, device), tokenizer)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.projection.weight.device

    @one_thread()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors `(N, D)` of separate texts; 0 for blank texts, and for those that the bundled tokenizer does
        not know."""
        return self._embed(texts)

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        encoded = self.encode([mend(text)[0] for text in texts])
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in batches_of([len(ids) for ids in encoded]):
            vectors[chosen] = self._read_texts([encoded[index] for index in chosen])
        vectors[[not text.strip() or not self.knows(text) for text in texts]] = 0
        return vectors

    def knows(self, text: str) -> bool:
        """Whether the tokenizer knows the words of a text, but for a share of `UNKNOWN`; otherwise its vector would be
        nearly that of any other such text. Only the bundled tokenizers are asked."""
        return not isinstance(self.tokenizer, BundledTokenizer) or self.tokenizer.unknown_share(text) <= UNKNOWN

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize separate texts, to at least one token each."""
        from longspan.tasks.tokenizers import encode_sentences

        return encode_sentences(texts, self.tokenizer)

    def _read_texts(self, encoded: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns vectors `(B, D)` of tokenized texts, which are read in one row if that is less work than padding."""
        import torch

        from longspan.models.inputs import EncoderInputs

        encoder = self.model.model.encoder
        with torch.inference_mode():
            if fits_one_row(encoder, [len(ids) for ids in encoded]):
                ids, owners = (tensor.to(self.device) for tensor in in_one_row(encoded))
                states = encoder.encode(EncoderInputs(input_ids=ids, seq_idx=owners)).states
                return self.model.embed(states, owners, len(encoded))[0][0].float().cpu().numpy()
            ids, real = (tensor.to(self.device) for tensor in padded(encoded, self.tokenizer.pad_token_id))
            states = encoder.encode(EncoderInputs(input_ids=ids, attention_mask=real)).states
            return self.model.embed(states, torch.where(real, 0, -1), 1)[0][:, 0].float().cpu().numpy()

    def embed_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Returns vectors `(N + P, D)` of a document's sentences, each in the context of the document, followed by
        those of its passages.

        Args:
            sentences: the N sentences in order; there may be none.
            firsts: P increasing indices of the first sentences of passages; a passage ends where the next begins.
        """
        return self.read_document(sentences, firsts)[0]

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns the vector `(D,)` of a document, the vectors `(N, D)` of its sentences, and the number of tokens."""
        vectors, tokens = self.read_document([sentence.text for sentence in sentences])
        return mean_vector(vectors), vectors, tokens

    @one_thread()
    def read_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> tuple[np.ndarray, int]:
        """Returns unit vectors of the N sentences of a document, which are read together, and the number of tokens.

        Args:
            sentences: N texts, in order.
            firsts: the index of the first sentence of each of P passages, increasing from 0; empty without passages.

        Returns:
            `(N + P, D)` float32, the sentences first, then the passages, 0 if the bundled tokenizer does not know the
            document; and the number of tokens.
        """
        import torch

        from longspan.tasks.tokenizers import encode_sentences

        encoded = encode_sentences([mend(text)[0] for text in sentences], self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded], dtype=torch.long)
        if not self.knows(" ".join(sentences)):
            return np.zeros((len(encoded) + len(firsts), self.dimensions), np.float32), sum(map(len, encoded))
        tokens = torch.tensor([token for ids in encoded for token in ids], dtype=torch.long)
        sentence_ids = torch.arange(len(encoded)).repeat_interleave(lengths)
        owners = None
        if len(firsts):
            owners = torch.searchsorted(torch.tensor(firsts), torch.arange(len(encoded)), right=True) - 1
            owners = owners.to(self.device)
        vectors = self.model.embed_document(tokens.to(self.device), sentence_ids.to(self.device), owners)
        return vectors.float().cpu().numpy(), len(tokens)


def mean_vector(vectors: np.ndarray) -> np.ndarray:
    """Returns the vector `(D,)` of a document: the normalised mean of its sentences' vectors `(N, D)`, or 0 if there
    are none."""
    return of_length_one(vectors.sum(0))


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Normalise vectors `(…, D)` to length 1; zero vectors stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def batches_of(lengths: Sequence[int], most: int | None = None) -> list[list[int]]:
    """Returns batches of indices of texts with similar lengths, each of at most `most` tokens (None: `BATCH_TOKENS`) or
    of one text."""
    most = BATCH_TOKENS if most is None else most
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > most:
            batches.append([])
        batches[-1].append(index)
    return batches


def padded(encoded: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Pad token ids to a batch `(B, T)` int64; returns it with its attention mask `(B, T)` bool."""
    import torch

    longest = max(map(len, encoded))
    ids = torch.full((len(encoded), longest), padding)
    for row, tokens in zip(ids, encoded, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return ids, torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in encoded])


def fits_one_row(encoder: Any, lengths: Sequence[int]) -> bool:
    """Whether an encoder can read texts of these lengths packed into one row, and that is less work than padding."""
    from longspan.attention.features.packed import worth_packing

    return max(lengths) * len(lengths) > PADDED_AT_MOST and encoder.reads_packed and worth_packing(lengths)


def in_one_row(encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pack the token ids of N texts into one row `(1, T)` int64; returns it with the index of each token's text `(1,
    T)` int64."""
    import torch

    lengths = torch.tensor([len(tokens) for tokens in encoded])
    ids = torch.tensor([token for tokens in encoded for token in tokens], dtype=torch.long)
    return ids[None], torch.arange(len(encoded)).repeat_interleave(lengths)[None]


@lru_cache(maxsize=2)
def bundled_encoder(device: str | None = None) -> Encoder:
    """Load the bundled encoder in float32; it is cached.

    Args:
        device: as PyTorch names devices; None is the CPU.

    Raises:
        InputError: its files are missing or damaged, or the device does not exist.
    """
    return Encoder.opened(BUNDLED, device)


def open_bundled(folder: Path, network: type[Network]) -> tuple[Network, BundledTokenizer]:
    """Load the network of a bundled folder in float32 and evaluation mode, and its tokenizer.

    Args:
        folder: contains config.json, model.safetensors, tokenizer.json and tokenizer_config.json.
        network: a class that is constructed from `ModelFields`, and whose parameters have the names in the file.

    Raises:
        InputError: a file is missing, damaged or does not fit the others.
    """
    try:
        config = _read_config(folder)
        model = _load(folder / "model.safetensors", network, config)
        tokenizer = BundledTokenizer(folder)
    except (InputError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        # These files are part of the package, so every error has the same remedy.
        reason = " ".join(str(error).split())[:200].rstrip(". ")
        raise InputError(f"the bundled model in {folder} is damaged ({reason}); install the package again") from error
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the bundled model in {folder} knows {config.vocab_size} tokens but its tokenizer has {len(tokenizer)}; "
            "install the package again"
        )
    return model, tokenizer


def _read_config(folder: Path) -> ModelFields:
    from longspan.models.fields import ModelFields

    known = {field.name for field in fields(ModelFields)}
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelFields(**{name: value for name, value in stored.items() if name in known})
    config.settle()
    return config


@one_thread()
def _load(file: Path, network: type[Network], config: ModelFields) -> Network:
    """Load the weights into the network, which is created on the meta device, so that nothing is initialised or
    allocated."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = restored(load_file(file))
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error
    broken = next((name for name, weight in weights.items() if not bool(weight.isfinite().all())), None)
    if broken is not None:
        raise ValueError(f"{file.name} holds no finite numbers in {broken}")
    with torch.device("meta"), _undrawn():
        model = network(config)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


SCALE = ".scale"
"""Suffix of the name of a quantised matrix's scales."""


def restored(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights of a file as float32.

    They are stored as float16 or quantised, with scales under NAME + `SCALE`: int8 with one scale per row, or two 4-bit
    numbers per byte with one scale per group (`tools/bundled/rounding.py`).
    """
    return {
        name: _unscaled(weight, stored[name + SCALE].float()) if name + SCALE in stored else weight.float()
        for name, weight in stored.items()
        if not name.endswith(SCALE)
    }


def _unscaled(weight: Tensor, scales: Tensor) -> Tensor:
    """Dequantise a matrix `(R, C)` with scales `(R, S)`, one for C / S columns each."""
    import torch

    if weight.dtype is torch.uint8:
        weight = torch.stack([weight & 15, weight >> 4], -1).flatten(1) - 7.5
    return (weight.unflatten(1, (scales.shape[1], -1)) * scales[..., None]).flatten(1)


def _undrawn() -> Any:
    """Returns a mode in which modules are created without initialising their weights, which saves imports and random
    numbers."""
    from torch.overrides import TorchFunctionMode

    class Undrawn(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = kwargs or {}
            if getattr(func, "__module__", None) == "torch.nn.init":
                return args[0] if args else keywords["tensor"]
            return func(*args, **keywords)

    return Undrawn()


SAMPLE = 20_000
"""Number of characters of a text by which its share of unknown words is judged, in eight places."""
UNKNOWN = 0.5
"""Above this share of unknown words, a text has no vector."""


class BundledTokenizer:
    """A tokenizer.json with the settings of transformers' tokenizer_config.json that summaries need."""

    is_fast = True
    pad_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    cls_token_id: int | None
    sep_token_id: int | None

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            self.backend = Tokenizer.from_str(text)
        except Exception as error:
            raise ValueError(f"tokenizer.json: {error}") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        for kind in ("pad_token", "bos_token", "eos_token", "unk_token", "cls_token", "sep_token"):
            setattr(self, f"{kind}_id", self.backend.token_to_id(names[kind]) if names.get(kind) else None)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def unknown_share(self, text: str) -> float:
        """Returns the share of a text's words that begin with a character which no token has; of its characters, if it
        has no words.

        Tokens are not counted, because a run of characters without spaces is one unknown token, however long it is.
        """
        if text.isascii():
            return 0.0
        if len(text) > SAMPLE:
            text = "\n".join(text[start : start + SAMPLE // 8] for start in range(0, len(text), len(text) // 8))
        words = split_words(text) or [character for character in text if not character.isspace()]
        unknown = [word for word in words if unicodedata.normalize("NFKD", word)[0] not in self._characters]
        return length_in_words(unknown) / length_in_words(words) if words else 0.0

    @cached_property
    def _characters(self) -> frozenset[str]:
        return frozenset(chain("123456789", *self.get_vocab()))  # the tokenizer reads every number as 0

    def get_vocab(self) -> dict[str, int]:
        """Returns every token with its id, added tokens included."""
        return self.backend.get_vocab(with_added_tokens=True)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        **ignored: Any,
    ) -> Mapping[str, Any]:
        """Returns `input_ids` (and `offset_mapping`) of one text, or lists of them for several, without truncation or
        padding."""
        self.backend.encode_special_tokens = split_special_tokens
        single = isinstance(text, str)
        encodings = self.backend.encode_batch([text] if single else list(text), add_special_tokens=add_special_tokens)
        encoded: dict[str, Any] = {"input_ids": [encoding.ids for encoding in encodings]}
        if return_offsets_mapping:
            encoded["offset_mapping"] = [encoding.offsets for encoding in encodings]
        return {name: values[0] for name, values in encoded.items()} if single else encoded
