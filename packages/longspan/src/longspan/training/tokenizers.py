"""The tokenizer of an experiment: an existing one, or byte pairs or whole words, trained on the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from longspan.checkpoints.loading import END, PADDING, UNKNOWN, line_ends, load_tokenizer, word_tokenizer
from longspan.errors import InputError
from longspan.files import whole_folder
from longspan.progress import progress_bar
from longspan.training.models import RANDOM
from longspan.training.recipe import Recipe

SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
"""In BART's order, so that their ids are 0, 1, 2 and 3, the defaults of `LongspanConfig`."""


def tokenizer_of(recipe: Recipe, task: Any, parts: Sequence[list[Any]], folder: Path) -> Any:
    """Returns the experiment's tokenizer, saved in `folder/tokenizer` so that a resumed run uses the same one; `parts`
    are the training rows, of each weighted source.
    """
    place = folder / "tokenizer"
    if not place.exists():
        size = 512 if recipe.model.source in RANDOM else recipe.tokenizer.train
        if size is not None:
            texts = _corpus(task, parts, recipe.tokenizer.rows)
            trained = train_words if recipe.tokenizer.words else train_tokenizer
            tokenizer = trained(texts, size, simplify=recipe.tokenizer.simplify)
        else:
            tokenizer = load_tokenizer(str(recipe.tokenizer.source or recipe.model.source))
        if task.new_tokens():
            tokenizer.add_tokens(list(task.new_tokens()), special_tokens=True)
        tokenizer = prepared(tokenizer, task.normalizer())
        with whole_folder(place) as partial:
            tokenizer.save_pretrained(partial)
    return load_tokenizer(place)


def prepared(tokenizer: Any, normalizer: Any | None) -> Any:
    """Returns the tokenizer with this normaliser before its own, so that texts are always prepared as in training.

    Classes of transformers for one architecture rebuild their normaliser when they are loaded, so the result is a
    `PreTrainedTokenizerFast`, which keeps the one in its file. A tokenizer in Python has none, and is not changed.
    """
    if normalizer is None or not hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer
    from tokenizers import Tokenizer, normalizers

    backend: Any = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.normalizer = normalizers.Sequence([normalizer, *([backend.normalizer] if backend.normalizer else [])])
    kept = ("model_max_length", "model_input_names", "padding_side", "truncation_side", "clean_up_tokenization_spaces")
    options = {name: getattr(tokenizer, name) for name in kept}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokenizer.special_tokens_map, **options)


def is_prepared(tokenizer: Any, normalizer: Any) -> bool:
    """Whether a tokenizer begins with this normaliser, as returned by `prepared`."""
    first = _steps(normalizer)
    own = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return own is not None and _steps(own)[: len(first)] == first


def _steps(normalizer: Any) -> list[Any]:
    """Returns the parts of a normaliser as plain data, with nested sequences flattened."""
    plain = json.loads(normalizer.__getstate__())
    return plain["normalizers"] if plain["type"] == "Sequence" else [plain]


def _corpus(task: Any, parts: Sequence[list[Any]], count: int | None) -> Iterator[str]:
    """Yields the texts of all rows, or of about `count` of them, sampled evenly."""
    if count is None:
        return _texts(task, parts)
    if task.counts_rows:
        step = max(1, sum(map(len, parts)) // count)
        return _texts(task, [rows[::step] for rows in parts])
    # Streamed sources are read twice, since the number of documents is only known afterwards.
    documents = sum(1 for _ in _texts(task, parts))
    return islice(_texts(task, parts), 0, None, max(1, documents // count))


def _texts(task: Any, parts: Sequence[list[Any]]) -> Iterator[str]:
    return chain.from_iterable(task.corpus(rows) for rows in parts)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, max_tokens: int = 1_000_000, *, simplify: bool = False
) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE as BART's: text of any script is representable, with `<s> … </s>` around each text.

    Args:
        texts: the corpus; read once.
        vocab_size: entries, in the limits of `VOCABULARY`; a small corpus may give fewer.
        max_tokens: the tokenizer's `model_max_length`.
        simplify: see `simplification`; such a tokenizer can score text, but not restore it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = [*SPECIAL_TOKENS.values(), "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    if simplify:
        tokenizer.normalizer = simplification()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_progress(texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="<mask>", model_max_length=max_tokens, **SPECIAL_TOKENS
    )


def train_words(texts: Iterable[str], vocab_size: int, *, simplify: bool = False) -> PreTrainedTokenizerFast:
    """Trains a tokenizer of the most frequent words of a corpus, split at white space; each line ends in `<eos>`.

    Ids follow frequency, after `<eos>`, `<unk>` and `<pad>`, as adaptive embeddings require.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    normalizer = line_ends(*([simplification()] if simplify else []))
    counter = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    counter.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    counter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False)
    counter.train_from_iterator(_with_progress(texts), trainer)
    ids = counter.get_vocab()
    # The trainer counts special tokens in the text as words, and sorts them among these.
    special = [END, UNKNOWN, PADDING]
    words = [word for word in sorted(ids, key=lambda word: ids[word]) if word not in special]
    return word_tokenizer([*special, *words][:vocab_size], normalizer=normalizer)


def _with_progress(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts with a progress bar; raises if there are none."""
    empty = True
    for text in progress_bar(texts, doing="reading for the vocabulary", unit=" texts"):
        empty = False
        yield text
    if empty:
        raise InputError("there is no text to train a tokenizer on; name files that have some")


def simplification() -> Any:
    """Returns a normaliser of the tokenizers library: NFKC, lower case, every number 0, without
    SumPubMed's citation marks.

    Data sets differ in their numbers and citations (SumPubMed, all in lower case, has `<dig>` and `<cit>`); a model
    trained on one should work for ordinary texts.
    """
    from tokenizers import Regex, normalizers

    number, citation = normalizers.Replace(Regex(r"<dig>|\d+(?:[.,:]\d+)*"), "0"), normalizers.Replace("<cit>", "")
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), citation, number])
