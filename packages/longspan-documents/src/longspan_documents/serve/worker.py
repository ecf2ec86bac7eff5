"""The server's worker processes, which run one job after another; see `ready`.

`JobRunner` caches what it has read, so that a summary of the same document with another length, or another question, is
fast.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from longspan.characters import on_one_line, shown
from longspan.data.text.abbreviations import abbreviations_from
from longspan.data.text.sentences import count_words
from longspan.errors import InputError, disk_reason, is_out_of_memory, memory_sentence
from longspan.imports import require
from longspan_documents.inference.answer import Answerer, asking_in, check_question, load_models
from longspan_documents.inference.encoders import Encoder, bundled_encoder, of_length_one
from longspan_documents.inference.results import further_note, quote_of
from longspan_documents.inference.summarize import WEIGHTS, Extractive, PackageScorer, summarize_documents
from longspan_documents.inference.verbs import Answer, Chunks, Embed, EmbedTexts, Summarize
from longspan_documents.serve.limits import Limits, TooMuchError
from longspan_documents.summaries.picker import Picker
from longspan_documents.text.blocks import SPOKEN, Document
from longspan_documents.text.reading import DocumentSentence, abbreviating, document_of, read, sentences_of

Value = TypeVar("Value")
Report = Callable[..., None]
"""Called with `progress` from 0 to 1 and `doing`, a few words."""

CHARACTERS_PER_TOKEN = 4.6
"""An estimate; progress is measured by the tokens that the encoder has read, before their total is known."""
LONGEST_ERROR = 4_000
"""Maximum length of an error; the server reads lines of up to 64 KiB."""
KEPT = {"documents": 64, "vectors": 8, "answerers": 4}
"""Number of cached entries of each kind."""


class Remembered(OrderedDict[Hashable, Any]):
    """A cache of the most recently used values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def value(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns the cached value of a key, or computes it."""
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)
        return self[key]


class ReportingEncoder(Encoder):
    """The bundled encoder with a cache of documents' vectors and progress reports."""

    def __init__(self, plain: Encoder, report: Report) -> None:
        super().__init__(plain.model, plain.tokenizer)
        self.report = report
        self.expected = self.done = 0.0
        self._vectors = Remembered(KEPT["vectors"])
        plain.model.model["encoder"].embeddings.register_forward_hook(self._count)

    def read_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> tuple[np.ndarray, int]:
        """See `Encoder.read_document`."""
        run = super().read_document
        return self._vectors.value((tuple(sentences), tuple(firsts)), lambda: run(sentences, firsts))

    def expect(self, characters: int) -> None:
        """Start measuring progress: texts of this many characters will be read."""
        self.expected, self.done = characters / CHARACTERS_PER_TOKEN, 0.0

    def _count(self, _: Any, inputs: tuple[Any, ...], __: Any) -> None:
        if self.expected:
            self.report(progress=round(min(0.95, self.done / self.expected), 3))
            self.done += inputs[0].numel()


class JobRunner:
    """The jobs of a worker; every method takes and returns plain data.

    A document is `{"id", "name", "path"}`, an uploaded file, or `{"id": None, "name", "text"}`.

    Args:
        report: called with progress.
        encoder: as in `longspan.answer`; it also computes embeddings, and similarities to the query of a summary.
        reranker: as in `longspan.answer`.
        device: as in `longspan.answer`.
        dtype: as in `longspan.answer`.
        abbreviations: further words that do not end a sentence.
        ocr: as in `longspan_documents.text.reading.read`, for files.
        sentences: maximum number of sentence vectors that are returned.

    Raises:
        InputError: one of them cannot be loaded, or is of another kind.
    """

    def __init__(
        self,
        report: Report,
        encoder: str | None = None,
        reranker: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        abbreviations: Iterable[str] = (),
        ocr: bool = False,
        sentences: int = Limits.sentences,
    ) -> None:
        self.report = report
        self.most_sentences, self.ocr = sentences, ocr
        self.abbreviations = abbreviations_from(abbreviations)
        if ocr:
            require("rapidocr", extra="ocr", purpose="text recognition")
        _, self.own_encoder, self.reranker = load_models(None, encoder, reranker, device, dtype)
        # Passed for every set of documents; the models are cached.
        self.models: dict[str, Any] = {"encoder": encoder, "reranker": reranker, "device": device, "dtype": dtype}
        self.encoder = ReportingEncoder(bundled_encoder(device), report)
        self.summarizer = Extractive(
            PackageScorer(Picker.load(WEIGHTS), self.encoder, self.own_encoder), english_only=True
        )
        self._documents = Remembered(KEPT["documents"])
        self._answerers = Remembered(KEPT["answerers"])

    def read(self, document: dict[str, Any]) -> dict[str, Any]:
        """Returns a description of a document: its title, sizes and notes for its reader."""
        opened, notes = self._opened(document)
        sentences = len(sentences_of(opened))
        return {
            "id": document["id"],
            "name": document["name"],
            "title": on_one_line(opened.title or "").strip() or None,
            "characters": len(opened.text),
            "words": count_words(opened.text),
            "sentences": sentences,
            "pages": len(opened.pages) or None,
            "notes": notes,
        }

    def content(self, document: dict[str, Any]) -> dict[str, Any]:
        """Returns a document's blocks for display.

        `runs` are pairs of words and the index of their sentence, or null between sentences. Control characters become
        U+FFFD.
        """
        opened, notes = self._opened(document)
        of_block: dict[int, list[DocumentSentence]] = {}
        for sentence in sentences_of(opened):
            of_block.setdefault(sentence.block, []).append(sentence)
        several = len(opened.pages) > 1
        blocks = [
            {
                "kind": block.kind,
                "level": block.level,
                "speaker": block.speaker and on_one_line(block.speaker),
                "start": block.body.start,
                "page": opened.page(block.body.start) if several else None,
                "runs": _runs(opened, index, of_block.get(index, [])),
            }
            for index, block in enumerate(opened.blocks)
        ]
        return {**self.read(document), "notes": notes, "blocks": blocks}

    def summarize(self, document: dict[str, Any], options: dict[str, Any], scores: bool) -> dict[str, Any]:
        """See `longspan.summarize`; `scores` adds the score of every sentence, with its first character."""
        requested = Summarize.restore(options, "api")
        opened, notes = self._opened(document)
        self.report(progress=0.0, doing="Reading every sentence")
        self.encoder.expect(len(opened.text))
        (summary,) = summarize_documents(self.summarizer, [opened], requested)
        note = further_note(opened, summary)
        picked = [
            {**asdict(sentence), **_place(opened, *sentence.place), "text": str(sentence.text)}
            for sentence in summary.sentences
        ]
        return {
            "document": document["id"],
            "name": document["name"],
            "sentences": picked,
            "of": len(summary.document),
            "tokens": summary.tokens,
            "seconds": round(summary.seconds, 3),
            "notes": [*notes, *([note] if note else [])],
            **({"scores": [[sentence.start, sentence.score] for sentence in summary.document]} if scores else {}),
        }

    def answer(
        self, documents: list[dict[str, Any]], questions: list[str], options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """See `longspan.answer`; returns one record for each question."""
        asked = Answer.restore(options, "api")
        opened = [self._opened(document) for document in documents]
        key = tuple(_key(document) for document in documents)

        def answerer() -> Answerer:
            self.report(progress=0.0, doing="Reading the documents for questions")
            self.encoder.expect(sum(len(document.text) for document, _ in opened))
            return Answerer([document for document, _ in opened], **self.models)

        ready = self._answerers.value(key, answerer)
        self.report(progress=0.95, doing="Looking for passages")
        notes = [note for _, some in opened for note in some]
        results = []
        for question in questions:
            answer = ready.answer(question, **asking_in(asked))
            result = {**asdict(answer), "sure": answer.sure}
            del result["scores"]
            for passage in (*result["passages"], *filter(None, [result["short"]])):
                passage["document"] = documents[passage["document"]]["id"]
            note = result.pop("note")
            results.append({**result, "notes": [*notes, *([note] if note else [])]})
        return results

    def chunks(self, document: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """See `longspan.chunks`."""
        from longspan_documents.inference.chunks import cut

        opened, notes = self._opened(document)
        passages = cut(opened, Chunks.restore(options, "api"))
        records = [passage.record() for passage in passages]
        return {"document": document["id"], "name": document["name"], "passages": records, "notes": notes}

    def embed(self, documents: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
        """See `longspan.embed_document`; returns one record for each document."""
        from longspan_documents.inference.embed import embed_document

        sentences = Embed.restore(options, "api").sentences
        records = []
        count = 0
        for document in documents:
            opened, _ = self._opened(document)
            count += len(sentences_of(opened)) if sentences else 0
            if count > self.most_sentences:
                raise TooMuchError(
                    f"{document['name']}: vectors of more than {self.most_sentences:,} sentences are asked for, the "
                    "limit of this server; leave `sentences` out, or give parts"
                )
            self.report(doing=f"Reading {document['name']}")
            self.encoder.expect(len(opened.text))
            done = embed_document(opened, **self._given())
            record: dict[str, Any] = {"document": document["id"], "name": document["name"], "tokens": done.tokens}
            record["vector"] = done.vector.tolist()
            if sentences:
                record["sentences"] = [
                    {"text": sentence.text, "start": sentence.start, "end": sentence.end, "vector": vector.tolist()}
                    for sentence, vector in zip(done.sentences, done.vectors, strict=True)
                ]
            records.append(record)
        return records

    def embed_texts(self, texts: list[str]) -> dict[str, Any]:
        """See `longspan.embed`; returns the vectors, and the number of tokens of the texts."""
        vectors, tokens = self._vectors(texts)
        return {"vectors": vectors.tolist(), "tokens": tokens}

    def embeddings(self, texts: list[str], encoding_format: str, dimensions: int | None) -> dict[str, Any]:
        """Embed texts in the format of OpenAI's API; vectors are truncated to `dimensions` and normalised again."""
        vectors, tokens = self._vectors(texts)
        if dimensions is not None:
            if dimensions > vectors.shape[1]:
                most = vectors.shape[1]
                raise InputError(f"dimensions={dimensions} is not to be had; leave it out or give at most {most}")
            vectors = of_length_one(vectors[:, :dimensions])
        coded = encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if coded else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": "longspan", "usage": usage}

    def rerank(self, query: str, texts: list[str], top: int | None, texts_too: bool) -> dict[str, Any]:
        """Order texts by relevance to a question, in the format of Jina's API; scores are from 0 to 1."""
        assert self.reranker is not None, "the server refuses it without a reranker"
        check_question(query)
        scores = self.reranker.scores(query, texts)
        results = [
            {
                "index": int(index),
                "relevance_score": float(np.exp(-np.logaddexp(0.0, -scores[index]))),
                **({"document": {"text": texts[index]}} if texts_too else {}),
            }
            for index in np.argsort(-scores, kind="stable")[:top]
        ]
        pairs = self.reranker.tokenizer([query] * len(texts), texts, verbose=False)["input_ids"]
        tokens = sum(map(len, pairs))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"id": uuid4().hex, "model": "longspan", "results": results, "usage": usage}

    def _vectors(self, texts: list[str]) -> tuple[np.ndarray, int]:
        """Returns vectors `(N, D)` of texts, and their number of tokens."""
        from longspan.tasks.tokenizers import encode_sentences
        from longspan_documents.inference.embed import embed_words

        self.encoder.expect(sum(map(len, texts)))
        vectors = embed_words(texts, EmbedTexts(**self._given()))
        if self.own_encoder is not None:
            tokens = self.own_encoder.count_tokens(texts)
        else:
            tokens = sum(map(len, encode_sentences(texts, self.encoder.tokenizer)))
        return vectors, tokens

    def _given(self) -> dict[str, Any]:
        """Returns the encoder as an option of `longspan.embed`."""
        return {"model": self.encoder} if self.own_encoder is None else {"encoder": self.own_encoder}

    def _opened(self, document: dict[str, Any]) -> tuple[Document, list[str]]:
        """Returns the document as it was read, and notes for its reader."""

        def opened() -> tuple[Document, list[str]]:
            self.report(doing=f"Opening {document['name']}")
            notes = Notes()
            logging.getLogger("longspan").addHandler(notes)
            name = document["name"]
            try:
                if "text" in document:
                    if not document["text"].strip():
                        raise InputError("the text is empty; give one with words in it")
                    found = abbreviating(document_of(document["text"], name=name), self.abbreviations)
                    return found, [*document.get("notes", []), *notes.sentences]
                path = document["path"]
                found = replace(read(Path(path), abbreviations=self.abbreviations, ocr=self.ocr), name=name)
                return found, [note.replace(path, name) for note in notes.sentences]
            except InputError as error:  # the name of the stored file must not appear in the error
                raise InputError(str(error).replace(str(document.get("path", "")) or name, name)) from error
            finally:
                logging.getLogger("longspan").removeHandler(notes)

        return self._documents.value(_key(document), opened)


class Notes(logging.Handler):
    """Collects log messages while a document is read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        self.sentences.append(record.getMessage().removeprefix("note: "))


def _key(document: dict[str, Any]) -> Hashable:
    return document["id"] or document["text"]


def _place(document: Document, start: int, end: int) -> dict[str, Any]:
    quote = quote_of(document, start, end)
    return {"first_line": quote.first_line, "last_line": quote.last_line, "page": quote.page}


def _runs(document: Document, index: int, sentences: Sequence[DocumentSentence]) -> list[tuple[str, int | None]]:
    """Split a block's text at the beginnings and ends of its sentences."""
    block = document.blocks[index]
    runs: list[tuple[str, int | None]] = []
    done = 0
    for sentence in sentences if block.kind in SPOKEN else ():
        start, end = block.body.place(sentence.start), block.body.place(sentence.end)
        runs += [(block.text[done:start], None), (block.text[start:end], sentence.start)]
        done = max(done, end)
    runs.append((block.text[done:], None))
    return [(shown(words), place) for words, place in runs if words]


def limit_memory(more: int) -> None:
    """Limit the memory of this process to `more` bytes above its current size, if the system supports it (Linux)."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def do(runner: JobRunner, job: dict[str, Any], most: int = Limits.result_bytes) -> dict[str, Any]:
    """Run a job, and write its result to the file that it names.

    Returns:
        The `size` of the result in bytes, or an `error`, one sentence, and its HTTP `status`.
    """
    try:
        result = json.dumps(getattr(runner, job["kind"])(**job["arguments"]), allow_nan=False).encode()
        if len(result) > most:
            raise TooMuchError(
                f"the result has {len(result) >> 20} MiB, and this server gives {most >> 20}; ask for less"
            )
        Path(job["file"]).write_bytes(result)
        return {"size": len(result)}
    except InputError as error:
        too_much = isinstance(error, TooMuchError) or is_out_of_memory(error)
        return {"error": str(error)[:LONGEST_ERROR], "status": 413 if too_much else 422}
    except Exception as error:
        if is_out_of_memory(error):
            return {"error": memory_sentence(error), "status": 413}
        if (reason := disk_reason(error)) is not None:
            return {"error": f"the result cannot be written: {reason}", "status": 507}
        logging.getLogger(f"longspan.{__name__}").exception("a job failed")
        return {"error": f"something went wrong ({type(error).__name__}); the terminal shows more", "status": 500}


def ready(report: Report, options: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load the models in a worker's process; returns the function that runs a job, see `do`.

    Args:
        report: called with progress.
        options: `limits` and those of `JobRunner`.
    """
    # Out of memory, a tokenizer that prints a backtrace hangs, and so may two of its threads.
    os.environ |= {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
    limits = Limits(**options.pop("limits"))
    runner = JobRunner(report, **options, sentences=limits.sentences)

    def do_within_memory(job: dict[str, Any]) -> dict[str, Any]:
        limit_memory(limits.memory)
        return do(runner, job, limits.result_bytes)

    return do_within_memory
