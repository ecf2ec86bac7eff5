"""Any sentence encoder of sentence-transformers' format, read through transformers: texts in, vectors out.

What its files say is done as they say it (`longspan.checkpoints.sentence_modules`): prompts before questions and
passages, pooling, dense layers, normalisation, similarity. Nothing is cut: a text that is longer than the model reads
goes through it in chunks, whose vectors count by their tokens; one that was lengthened (`longspan lengthen`) reads it
whole.

For a ranking, similarities are put on one scale for all encoders: with a the mean similarity of fixed questions to
passages that do not answer them, and b to those that do, s is read as (s − a) / (b − a).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.characters import counted, mend
from longspan.checkpoints.sentence_modules import SentenceModules, sentence_modules
from longspan.devices import check_loads
from longspan.errors import InputError, named
from longspan.settings import check_kind
from longspan_documents.inference.encoders import batches_of, of_length_one
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import DocumentSentence

Purpose = Literal["question", "passage"]

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
"""Questions with passages that answer them in other words: each passage but a question's own is one that does not."""


class SentenceEncoder:
    """A sentence encoder that is ready to read; `load_sentence_encoder` opens one.

    Args:
        model: gives `last_hidden_state` for `input_ids` and `attention_mask`, on any device.
        tokenizer: the one that belongs to it.
        modules: what is done with texts and states.
        source: what messages call it.
        max_tokens: of the longest text that the model reads; None where nothing bounds it.

    Attributes:
        dimensions: D, of the vectors.
        in_chunks: how many texts were longer than the model reads, so far.
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
        table = np.stack([self._raw(one, against) for one in self.vectors(questions, "question")])
        own = np.eye(len(PAIRS), dtype=bool)
        self._apart, together = float(table[~own].mean()), float(table[own].mean())
        # A model that was trained for nothing (random weights) puts everything anywhere.
        self._spread = max(together - self._apart, 1e-3 * max(1.0, abs(self._apart)))
        self.in_chunks = 0  # of the user's texts
        self._latest: tuple[str, np.ndarray] | None = None

    # Vectors ---------------------------------------------------------------------------------------------------------

    def vectors(self, texts: Sequence[str], purpose: Purpose | None = None) -> np.ndarray:
        """Vectors `(N, D)` float32 of loose texts, as the model's files make them; blank texts are 0.

        Args:
            texts: N of any length.
            purpose: what they are, for the prompt before them; None takes the model's default prompt.
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
        """`vectors` at length 1, blank ones 0."""
        return of_length_one(self.vectors(texts, purpose))

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """The vector `(D,)` of a document, in chunks where it is longer than the model reads; `(N, D)` of its
        sentences, each read by itself; and how many tokens were read."""
        texts = [sentence.text for sentence in sentences]
        whole = " ".join([block.text for block in document.blocks if block.kind == "heading"][:1] + texts)
        return self.embed([whole], "passage")[0], self.embed(texts, "passage"), self.count_tokens([whole, *texts])

    def similarities(self, question: str, passages: np.ndarray) -> np.ndarray:
        """How near a question is to passages whose `vectors` are `(P, D)`, `(P,)` float64: about 0 for those that have
        nothing to do with it, about 1 for those that answer it, whatever the encoder. The vector of the latest question
        is kept, since a question is put to all passages and then to the sentences of the best."""
        latest = self._latest
        if latest is None or latest[0] != question:
            latest = self._latest = question, self.vectors([question], "question")[0]
        near = self._raw(latest[1], passages)
        return (near.astype(np.float64) - self._apart) / self._spread

    def _raw(self, vector: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The similarity of the model's files: `(D,)` and `(N, D)` → `(N,)`, the higher the nearer."""
        if self.modules.similarity == "dot":
            return others @ vector
        if self.modules.similarity == "cosine":
            return of_length_one(others) @ of_length_one(vector)
        order = 2 if self.modules.similarity == "euclidean" else 1
        return -np.linalg.norm(others - vector, order, axis=1)

    # Reading ---------------------------------------------------------------------------------------------------------

    @property
    def note(self) -> str | None:
        """A sentence on texts that were read in chunks; None where there were none."""
        if not self.in_chunks:
            return None
        return (
            f"{counted(self.in_chunks, 'text')} longer than the {self.max_tokens} tokens that the encoder "
            f"{self.source!r} reads went through it in chunks; `longspan lengthen` makes it read longer ones whole"
        )

    def _chunks(self, text: str, prompt: str) -> list[str]:
        """The text itself, or parts of it that the model can read, with the prompt before each."""
        most = self.max_tokens
        if most is None or len(text) + len(prompt) < most // 2:  # no token is shorter than half a character
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
        """How many tokens a prompt takes at the beginning of a text, special ones before it included."""
        if not prompt:
            return 0
        ids = self.tokenizer(prompt, verbose=False)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """How many tokens texts have, special ones included, each whole; blank ones none."""
        real = [text for text in texts if text.strip()]
        return sum(map(len, self.tokenizer(real, verbose=False)["input_ids"])) if real else 0

    def _read(self, pieces: Sequence[str], prompted: int) -> tuple[np.ndarray, np.ndarray]:
        """Vectors `(P, D)` of pieces that the model can read, and the tokens of each, `(P,)`."""
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


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> SentenceEncoder:
    from longspan.checkpoints.pooling import beside
    from longspan.checkpoints.published import load_published, longest_text
    from longspan.model_files import read_json

    file = beside(source, "config.json") if os.path.isdir(os.path.expanduser(source)) else None
    if file is not None and str(read_json(file).get("model_type", "")).startswith("longspan"):
        model, tokenizer, most = _ours(source, device, dtype)
    else:
        model, tokenizer = load_published(source, "states", device=device, dtype=dtype)
        most = longest_text(model, tokenizer)
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return SentenceEncoder(model, tokenizer, sentence_modules(source).on(model.device), source, most)


def _ours(source: str, device: str | None, dtype: str | None) -> tuple[Any, Any, int]:
    """The encoder of a Longspan folder, such as a lengthened one, its tokenizer and the longest text in tokens."""
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
    """Load a sentence encoder once, for many texts; the latest two stay loaded.

    Args:
        source: a folder or a Hub name of sentence-transformers' format, of any encoder of transformers, or of one that
            was lengthened; or what this function returned.
        device: where it computes, as PyTorch names devices ("cpu", "cuda", "cuda:1", "mps"); None is the processor.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: it cannot be loaded, has modules that are not known, or is no encoder; a device that is not there,
            or one for an encoder that is loaded already.
    """
    check_loads("encoder", source, device, dtype)
    if hasattr(source, "similarities"):
        return source  # pyright: ignore[reportReturnType]
    check_kind(source, "encoder", (str, Path), "a folder, a name, or what `load_sentence_encoder` returned")
    with named("encoder"):
        return _load(str(source), device, dtype)
