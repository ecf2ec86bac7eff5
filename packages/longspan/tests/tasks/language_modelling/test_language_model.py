"""The task of guessing the next token: chunks that score every token once, and bits that a hand can check."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.corpus.tokens import Stream, token_files
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.tasks.language_modelling.language_model import LanguageModel, NextTokenChunks
from longspan.tasks.language_modelling.scoring import Scoring
from longspan.tasks.predicting import without_padding

from .conftest import TEXTS


@pytest.mark.parametrize("context", [0, 1, 5, 15])
@pytest.mark.parametrize("epoch", [None, 0, 3])
def test_every_token_is_scored_once(stream: Stream, context: int, epoch: int | None) -> None:
    whole = stream.read(0, len(stream)).tolist()
    chunks = NextTokenChunks(stream, max_tokens=17, context_tokens=context, seed=None if epoch is None else 1)
    if epoch is not None:
        chunks.set_epoch(epoch)
    place = 1
    for index in range(len(chunks)):
        ids, labels = chunks[index]["input_ids"].tolist(), chunks[index]["labels"].tolist()
        scored = [label for label in labels if label != -100]
        read = len(ids) - len(scored)
        assert len(ids) <= 17
        assert labels[:read] == [-100] * read
        assert labels[read:] == ids[read:]
        assert whole[place : place + len(scored)] == scored
        assert whole[place - read : place] == ids[:read]
        assert read == min(1 + context, place)
        place += len(scored)
    # In training, what the moved borders leave at the end comes in another epoch.
    assert 0 <= len(whole) - place <= chunks.shift


def test_borders_move_with_the_epoch_and_only_in_training(stream: Stream) -> None:
    chunks = NextTokenChunks(stream, max_tokens=17, context_tokens=0, seed=4)
    shifts = []
    for epoch in range(6):
        chunks.set_epoch(epoch)
        shifts.append(chunks.shift)
    assert len(set(shifts)) > 2
    assert all(0 <= shift < 16 for shift in shifts)
    fixed = NextTokenChunks(stream, max_tokens=17, context_tokens=0, seed=None)
    fixed.set_epoch(5)
    assert fixed.shift == 0


class Quarter(torch.nn.Module):
    """Gives the right next token the probability ¼, and spreads the rest over all the others."""

    device = torch.device("cpu")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        following = input_ids.roll(-1, 1)
        logits = torch.full((*input_ids.shape, 261), math.log(0.75 / 260))
        return SimpleNamespace(logits=logits.scatter(2, following[..., None], math.log(0.25)))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("max_tokens", [7, 1000])
def test_bits_of_a_model_known_by_hand(corpus: list[Any], tokenizer: Any, batch_size: int, max_tokens: int) -> None:
    """2 bits for each byte and each separator but the first."""
    task = LanguageModel(max_tokens=max_tokens)
    outcome = task.evaluate(Quarter(), tokenizer, corpus, batch_size=batch_size)
    characters, size = sum(map(len, TEXTS)), sum(len(text.encode()) for text in TEXTS)
    assert size == characters + 3  # a dash of three bytes, an umlaut of two
    bits = 2 * (size + len(TEXTS) - 1)
    assert outcome.scores["bits_per_token"] == pytest.approx(2)
    assert outcome.scores["perplexity"] == pytest.approx(4)
    assert outcome.scores["bits_per_byte"] == pytest.approx(bits / size)
    assert outcome.scores["bits_per_character"] == pytest.approx(bits / characters)
    assert outcome.scores["accuracy"] == 100
    assert sum(line["tokens"] for line in outcome.lines) == bits // 2


def test_bad_options_are_one_sentence() -> None:
    with pytest.raises(InputError, match="step is 64, but a window of 64 tokens scores at most 63"):
        LanguageModel(max_tokens=64, evaluation=Scoring(step=64))
    with pytest.raises(InputError, match="step is 3, but the mode 'disjoint' moves by whole windows; leave it out"):
        Scoring(mode="disjoint", step=3)


def test_windows_by_hand(corpus: list[Any], tokenizer: Any, tmp_path: Path) -> None:
    """Windows of 5 tokens that move by 2: what each reads and scores, from the first token on; and side by side."""
    files = token_files(tmp_path / "few", corpus[:1], tokenizer, limit=1)
    whole = Stream(files, 0).read(0, 12).tolist()
    assert len(whole) == 12  # a separator and "the cat sat"
    found = []
    for options in ({"tokens": 5, "step": 2}, {"mode": "disjoint", "tokens": 5}):
        task = LanguageModel(max_tokens=64, evaluation=Scoring(**options))
        chunks = NextTokenChunks(Stream(files, 0), max_tokens=5, context_tokens=task.evaluation.context(64), seed=None)
        found.append([(each["input_ids"].tolist(), int((each["labels"] != -100).sum())) for each in chunks])
    sliding, disjoint = found
    ends = [3, 5, 7, 9, 11, 12]
    assert sliding == [(whole[max(0, end - 5) : end], 2) for end in ends[:-1]] + [(whole[8:12], 1)]
    assert disjoint == [(whole[0:5], 4), (whole[4:9], 4), (whole[8:12], 3)]


@pytest.mark.parametrize("step", [1, 3, 6])
def test_sliding_windows_equal_a_loop(corpus: list[Any], tokenizer: Any, tmp_path: Path, step: int) -> None:
    """Every token of the text once, each by a pass of its own over the window that ends with it or shortly behind."""
    task = LanguageModel(max_tokens=4, evaluation=Scoring(tokens=9, step=step))
    torch.manual_seed(1)
    attention = {"mechanism": "longformer", "positions": "relative", "left_tokens": 3, "dilation": [1, 2]}
    config = LongspanConfig(
        vocab_size=261, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        position_embedding="none", init_std=0.5, dropout=0.0, attention=attention,
    )  # fmt: skip
    model = LongspanForCausalLM(config).eval()
    outcome = task.evaluate(model, tokenizer, corpus, batch_size=2)
    stream = Stream(token_files(tmp_path / "again", corpus, tokenizer), tokenizer.eos_token_id)
    whole = torch.from_numpy(stream.read(0, len(stream)))
    bits = 0.0
    with torch.no_grad():
        for place in range(1, len(whole)):
            end = 1 + -(-place // step) * step  # of the window that scores this token
            first = max(0, end - 9)
            logits = model(input_ids=whole[None, first:place]).logits[0, -1]
            bits -= float(logits.log_softmax(-1)[whole[place]]) / math.log(2)
    assert outcome.scores["bits_per_character"] == pytest.approx(bits / sum(map(len, TEXTS)), rel=1e-5)
    assert outcome.mode == f"sliding, 9 tokens, step {step}"
    assert sum(line["tokens"] for line in outcome.lines) == len(whole) - 1


@pytest.mark.parametrize("max_tokens", [7, 1000])
@pytest.mark.parametrize("padding_free", [False, True])
def test_documents_that_are_read_apart_equal_each_alone(
    corpus: list[Any], tokenizer: Any, tmp_path: Path, max_tokens: int, padding_free: bool
) -> None:
    """Loss and gradients of a batch of chunks, and bits in evaluation: sums over the pieces of every document in a
    chunk, each read by a pass of its own, whose first token is only read."""
    task = LanguageModel(max_tokens=max_tokens, cross_documents=False, evaluation=Scoring(mode="disjoint"))
    torch.manual_seed(1)
    config = LongspanConfig(
        vocab_size=261, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        init_std=0.5, dropout=0.0, attention={"mechanism": "longformer", "left_tokens": 3},
        max_position_embeddings=64,
    )  # fmt: skip
    model = LongspanForCausalLM(config).double().eval()
    bytes_of = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    tokens = [[tokenizer.eos_token_id, *own] for own in bytes_of]
    flat = [(number, token) for number, own in enumerate(tokens) for token in own]
    pieces: list[list[int]] = []
    for start in range(0, len(flat) - 1, max_tokens - 1):  # a chunk begins with the last token of the one before
        chunk = flat[start : start + max_tokens]
        pieces += [[token for number, token in chunk if number == each] for each in {number for number, _ in chunk}]
    losses = []
    for piece in pieces:
        logits = model(input_ids=torch.tensor([piece])).logits[0, :-1]
        losses.append(cross_entropy(logits, torch.tensor(piece[1:], dtype=torch.int64), reduction="sum"))
    total, count = torch.stack(losses).sum(), sum(len(piece) - 1 for piece in pieces)
    (total / count).backward()
    expected = [weight.grad for weight in model.parameters()]

    model.zero_grad()
    dataset = task.dataset(corpus, tokenizer, training=False, seed=0, folder=tmp_path)
    collator = task.collator(tokenizer)
    features = [dataset[index] for index in range(len(dataset))]
    batch = without_padding(collator, features) if padding_free else collator(features)
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, total / count, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close([weight.grad for weight in model.parameters()], expected, rtol=1e-10, atol=1e-10)
    outcome = task.evaluate(model, tokenizer, corpus, batch_size=3)
    bits = float(total.detach()) / math.log(2)
    assert outcome.scores["bits_per_token"] == pytest.approx(bits / count, rel=1e-5)
    assert outcome.scores["bits_per_character"] == pytest.approx(bits / sum(map(len, TEXTS)), rel=1e-5)


def test_a_stack_that_reads_whole_rows_cannot_read_documents_apart() -> None:
    config = LongspanConfig(vocab_size=261, stack={"stack": "universal"}, attention={"mechanism": "full"})
    task = LanguageModel(max_tokens=64, cross_documents=False)
    with pytest.raises(InputError, match=r"task.cross_documents is false, .* stack 'universal' does not support"):
        task.check_model(config)
