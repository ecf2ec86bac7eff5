"""Denoising as a task: pieces that fit, noise that repeats where it must and is new where it should, scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.data.turns import Turn
from longspan.errors import InputError
from longspan.models import LongspanConfig
from longspan.models.losses import IGNORED
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.dialogue.denoising import DialogueDenoising
from longspan_papers.dialogue.pieces import pieces_of, token_counter
from longspan_papers.dialogue.reading import synthetic_dialogues


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = train_tokenizer((dialogue.text for dialogue in synthetic_dialogues(8, seed=0)), 500)
    found.add_tokens(["[MASK_SPEAKER]", "[start]", "[end]"], special_tokens=True)
    return found


def words(lines: list[str]) -> list[int]:
    return [len(line.split()) for line in lines]


def dataset(task: DialogueDenoising, tokenizer: Any, folder: Path, *, training: bool = True, seed: int = 1) -> Any:
    rows = task.read("synthetic", "train", 4)
    return task.dataset(rows, tokenizer, training=training, seed=seed, folder=folder)


def test_pieces_end_with_turns_and_keep_every_word() -> None:
    long = " ".join(f"One two three {number}." for number in range(30))
    turns = [Turn("Ann", "a b c"), Turn("Bob", long), Turn("Ann", "word " * 40), Turn("", "x" * 99)]
    pieces = list(pieces_of(turns, words, room=24, longest_turn=18))
    flat = [turn for piece in pieces for turn, _ in piece]
    assert " ".join(turn.text for turn in flat) == " ".join(turn.text for turn in turns)
    assert all(sum(size for _, size in piece) <= 24 for piece in pieces)
    assert all(size == words([turn.line])[0] <= 18 for piece in pieces for turn, size in piece)
    # A turn that is too long is cut where sentences end.
    assert all(turn.text.endswith(".") for turn in flat if turn.speaker == "Bob")
    assert list(pieces_of([], words, room=24, longest_turn=9)) == []


def test_noise_is_new_in_every_epoch_and_fixed_in_validation(tokenizer: Any, tmp_path: Path) -> None:
    task = DialogueDenoising(max_source_tokens=300, max_target_tokens=64)
    data, again = (dataset(task, tokenizer, tmp_path / name) for name in "ab")
    assert len(data) > 4
    assert data[1] == again[1]
    again.set_epoch(1)
    assert data[1] != again[1]
    assert data[1] != dataset(task, tokenizer, tmp_path / "a", seed=2)[1]
    fixed = [dataset(task, tokenizer, tmp_path / "c", training=False, seed=seed) for seed in (1, 2)]
    fixed[1].set_epoch(7)
    assert fixed[0][1] == fixed[1][1]
    with pytest.raises(InputError, match="was made from other dialogues"):
        dataset(DialogueDenoising(max_source_tokens=200, max_target_tokens=64), tokenizer, tmp_path / "a")


def test_source_and_target_fit_and_hold_what_they_should(tokenizer: Any, tmp_path: Path) -> None:
    task = DialogueDenoising(max_source_tokens=120, max_target_tokens=40, noise={"window_share": 0.5})
    data = dataset(task, tokenizer, tmp_path)
    whole = "\n".join(dialogue.text for dialogue in synthetic_dialogues(4, seed=0))
    tokens = {name: tokenizer.convert_tokens_to_ids(name) for name in ("[start]", "[end]", "[MASK_SPEAKER]")}
    for index in range(len(data)):
        found = data[index]
        assert len(found["input_ids"]) <= 120
        assert len(found["labels"]) <= 40
        assert [found["input_ids"].count(tokens[name]) for name in ("[start]", "[end]")] == [1, 1]
        assert all(line in whole for line in tokenizer.decode(found["labels"][1:-1]).split("\n"))
    assert any(tokens["[MASK_SPEAKER]"] in data[index]["input_ids"] for index in range(len(data)))
    assert any(tokenizer.mask_token_id in data[index]["input_ids"] for index in range(len(data)))


def test_options(tokenizer: Any, tmp_path: Path) -> None:
    assert DialogueDenoising(setting="script").new_tokens() == ["[start]", "[end]"]
    assert DialogueDenoising(noise={"markers": False}).new_tokens() == ["[MASK_SPEAKER]"]
    assert DialogueDenoising(without=("merge",)).config("<mask>").split == 1.0
    for options, sentence in (
        ({"noise": {"window_shares": 1}}, "did you mean 'window_share'"),
        ({"noise": {"mask": "x"}}, "unknown key"),
        ({"noise": {"permute": 2}}, "permute is 2.0; it must be at most 1"),
        ({"without": ("colour",)}, "without"),
    ):
        with pytest.raises(InputError, match=sentence):
            DialogueDenoising(**options)
    with pytest.raises(InputError, match="max_target_tokens=5 leaves no room"):
        dataset(DialogueDenoising(max_target_tokens=5), tokenizer, tmp_path)
    bare = train_tokenizer(["a b"], 300)
    with pytest.raises(InputError, match=r"lacks \['\[MASK_SPEAKER\]', '\[start\]', '\[end\]'\]"):
        dataset(DialogueDenoising(), bare, tmp_path)


def test_scores_are_those_of_the_targets(tokenizer: Any) -> None:
    class Sure:
        """Gives the token 7 half of the probability and the token 8 the other half."""

        def __call__(self, labels, **_):
            logits = torch.full((*labels.shape, 10), -1e9)
            logits[..., 7:9] = torch.tensor([1.0, 1.0])
            return type("Output", (), {"logits": logits})

    labels = torch.tensor([[7, 8, 7], [8, IGNORED, IGNORED]])
    table = DialogueDenoising().sums(Sure(), {"labels": labels})
    assert torch.allclose(table, torch.tensor([[3.0, 2.0, 3.0], [1.0, 0.0, 1.0]], dtype=torch.float64))
    assert DialogueDenoising().losses().scores(math.log(4))["bits_per_token"] == pytest.approx(2)


def test_counts_are_those_of_the_tokenizer(tokenizer: Any) -> None:
    assert token_counter(tokenizer)(["Ada: Hi.", ""]) == [
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("Ada: Hi.\n", "\n")
    ]
    assert token_counter(tokenizer)([]) == []


def test_a_prefix_model_needs_room_for_source_and_target() -> None:
    task = DialogueDenoising(model="prefix", max_source_tokens=70, max_target_tokens=20)
    assert task.model_class().__name__ == "LongspanForPrefixLM"
    task.check_model(LongspanConfig(max_position_embeddings=91))
    task.check_model(LongspanConfig(max_position_embeddings=9, position_embedding="sinusoidal"))
    for options in ({"max_position_embeddings": 90}, {"max_position_embeddings": 110, "pseudo_masks": True}):
        with pytest.raises(InputError, match=r"are more than the .* positions of the model"):
            task.check_model(LongspanConfig(**options))
