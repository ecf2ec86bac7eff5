"""WikiHop: what is read of a row, piece by piece, its scores and files, and a run from a recipe to an answer."""

from __future__ import annotations

import json
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.wikihop.rows import ChoiceRow, read_choices
from longspan_papers.wikihop.task import MARKERS, CandidateChoice, _longest

ROW = ChoiceRow(
    "a",
    "country sms </s>",
    ("german empire", "japan"),
    ("SMS Posen was a ship of the German Empire.", "Japan is [ent] an island."),
    "japan",
)
ALONE = ChoiceRow("b", "country x", ("france",), ("France is a country.",), "france")


@pytest.fixture(scope="module")
def tokenizer():
    made = train_tokenizer([*ROW.supports, *ROW.candidates, ROW.query], 320)
    made.add_tokens(list(MARKERS), special_tokens=True)
    return made


def plain(text, tokenizer):
    return tokenizer(f" {text}", add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("tokens", [36, 41, 400])
def test_pieces_repeat_question_and_candidates_and_hold_every_support_once(tokens, tokenizer):
    task = CandidateChoice(max_tokens=tokens)
    found = task.pieces(ROW, tokenizer)
    q, end_q, ent, end_ent = tokenizer.convert_tokens_to_ids(list(MARKERS))
    parts = []
    for piece in found["rows"]:
        ids = piece["input_ids"]
        assert len(ids) <= tokens
        opening = ids[: found["leading"]]
        first, second = (plain(candidate, tokenizer) for candidate in ROW.candidates)
        if tokens == 400:
            wanted = [q, *plain(ROW.query, tokenizer), end_q, ent, *first, end_ent, ent, *second, end_ent]
            assert opening == wanted
        assert [opening[place] for place, one in enumerate(piece["candidate_ids"]) if one >= 0] == [ent, ent]
        assert [one for one in piece["candidate_ids"] if one >= 0] == [0, 1]
        assert len(piece["candidate_ids"]) == len(ids)
        assert ids[len(opening)] == ids[-1] == 2
        parts.append(ids[len(opening) + 1 : -1])
    assert [*chain.from_iterable(parts)] == [
        *plain(ROW.supports[0], tokenizer),
        2,
        *plain(ROW.supports[1], tokenizer),
    ]
    assert len(parts) == {36: 2, 41: 1, 400: 1}[tokens]
    assert all(len(part) == len(parts[0]) for part in parts[:-1])
    first_only = CandidateChoice(max_tokens=tokens, max_pieces=1).pieces(ROW, tokenizer)
    assert first_only["rows"] == found["rows"][:1]
    assert found["label"] == 1


def test_the_whole_of_question_and_candidates_is_global(tokenizer):
    task = CandidateChoice(max_tokens=36)
    features = [task.pieces(row, tokenizer) for row in (ROW, ALONE)]
    batch = task.collator(tokenizer)(features)
    assert batch["example_ids"].tolist() == [0] * len(features[0]["rows"]) + [1] * len(features[1]["rows"])
    assert batch["labels"].tolist() == [1, 0]
    before = (batch["input_ids"] == 2).cumsum(1) == 0
    assert torch.equal(batch["global_attention_mask"], before)
    assert task.model_fields()["global_tokens"] == "question"  # so it is where no mask is given


@pytest.mark.parametrize(
    ("lengths", "room", "cut"),
    [([3, 5, 1], 9, 5), ([3, 5, 1], 8, 4), ([3, 5, 1], 3, 1), ([3, 5, 1], 2, 0), ([9], 4, 4)],
)
def test_long_candidates_are_cut_first(lengths, room, cut):
    assert _longest(lengths, room) == cut


def test_what_leaves_no_room_is_named(tokenizer):
    many = ChoiceRow("c", "country x", tuple(f"place {number}" for number in range(79)), ("Text.",))
    with pytest.raises(InputError, match="row 'c' and its 79 candidates leave no room for supports in max_tokens=64"):
        CandidateChoice(max_tokens=64).pieces(many, tokenizer)
    assert CandidateChoice(max_tokens=512).pieces(many, tokenizer)["rows"]
    with pytest.raises(InputError, match=r"row 'c' has no answer to train on"):
        CandidateChoice().dataset([many], tokenizer, training=True, seed=1, folder=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the tokenizer lacks \[q\], \[/q\], \[ent\], \[/ent\]; use the tokenizer"):
        CandidateChoice().pieces(ROW, train_tokenizer(["a"], 300))


def test_supports_of_which_a_tokenizer_keeps_nothing_leave_the_question_its_piece(tokenizer):
    class Deaf:  # as BERT's tokenizer is for characters that cannot be seen
        def __call__(self, texts, **options):
            ids = tokenizer(texts, **options)["input_ids"]
            return {"input_ids": [[] if text == " \u200b" else one for text, one in zip(texts, ids, strict=True)]}

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    task, unseen = CandidateChoice(max_tokens=64), ChoiceRow("c", "x", ("a", "b"), ("\u200b",), "b")
    rows = [task.pieces(row, Deaf()) for row in (unseen, ALONE)]
    batch = task.collator(tokenizer)(rows)
    assert batch["example_ids"].tolist() == [0, 1]
    assert batch["candidate_ids"][0].max() == 1


class Prefers:
    """A model that gives the candidates of every question these logits."""

    training, device = False, torch.device("cpu")

    def __init__(self, *logits: float) -> None:
        self.logits = torch.tensor(logits)

    def eval(self):
        return self

    def train(self, mode):
        return self

    def __call__(self, example_ids, candidate_ids, **inputs):
        assert "labels" not in inputs
        count = int(candidate_ids.max()) + 1
        rows = self.logits[:count].repeat(int(example_ids.max()) + 1, 1)
        for row in range(len(rows)):
            rows[row, int(candidate_ids[example_ids == row].max()) + 1 :] = float("-inf")
        return SimpleNamespace(logits=rows)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_and_files(batch_size, tokenizer):
    unknown = ChoiceRow("c", "country y", ("x", "y"), ("Text.",))
    outcome = CandidateChoice(max_tokens=64).evaluate(
        Prefers(2.0, 1.0), tokenizer, [ROW, ALONE, unknown], batch_size=batch_size
    )
    assert outcome.scores == {"accuracy": 50.0}
    assert outcome.files == {"predictions-wikihop.json": {"a": "german empire", "b": "france", "c": "x"}}
    assert outcome.lines[0]["probabilities"] == {"german empire": 0.731059, "japan": 0.268941}
    assert outcome.lines[1]["probabilities"] == {"france": 1.0}


@pytest.mark.usefixtures("data_folder")
def test_the_sample_is_read_as_published():
    first, second = read_choices("wikihop-sample", "validation")
    assert (first.id, first.query, first.answer) == ("WH_dev_0", "country sms braunschweig", "german empire")
    assert (len(first.candidates), len(first.supports)) == (18, 15)
    assert (len(second.candidates), len(second.supports)) == (4, 9)


RECORD = {"id": "a", "query": "country x", "candidates": ["y", "z"], "supports": ["X is in y.", " "], "answer": "y"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": []}, "row 1: field 'candidates' is empty, so that there is nothing to choose"),
        ({"candidates": "y"}, "field 'candidates' of the record holds a str instead of a list"),
        ({"candidates": None}, "field 'candidates' of the record holds null instead of a list"),
        ({"answer": "q"}, "the answer 'q' is not among 2 candidates; add it"),
        ({"supports": ["", " "]}, "field 'supports' has no text"),
        ({"supports": [3]}, "a support is 3; give a list of texts"),
        ({"query": ""}, "the query"),
    ],
)
def test_bad_rows_are_named_or_passed_over(change, message, tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(json.dumps([RECORD | change, RECORD]), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(read_choices(file))
    (row,) = read_choices(file, on_error="skip")
    assert (row.supports, row.answer) == (("X is in y.",), "y")


def test_bad_files_are_named(tmp_path):
    for name, content, message in (
        ("a.json", b"{}", "a.json holds no list; give a file in the format of WikiHop"),
        ("b.json", b"[", "b.json is not JSON"),
        ("c.json", b'["\xff"]', "c.json is not UTF-8"),
        ("d.json", b"[[]]", "row 1: the record is a list instead of an object"),
        ("e.jsonl", b'{"query": "\xff"}', "line 1: not UTF-8 at byte 11"),
        ("f.jsonl", b'{"query": "a"}', "line 1: the record has no field 'candidates'"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            list(read_choices(tmp_path / name))


def test_masked_rows_are_read_only_by_name(tmp_path):
    for name, query in (("train.json", "plain"), ("train.masked.json", "masked"), ("dev.json", "dev")):
        (tmp_path / name).write_text(json.dumps([RECORD | {"query": query}]), encoding="utf-8")
    assert [row.query for row in read_choices(tmp_path, "train")] == ["plain"]
    assert [row.query for row in read_choices(tmp_path / "train.masked.json")] == ["masked"]
    assert [row.query for row in read_choices(tmp_path, "validation")] == ["dev"]


def test_made_up_rows_repeat_and_have_their_answer_in_one_support():
    rows = list(read_choices("synthetic", "train", 6))
    assert rows == list(read_choices("synthetic", "train", 6))
    assert rows != list(read_choices("synthetic", "validation", 6))
    for row in rows:
        kind, name = row.query.split()
        (told,) = [support for support in row.supports if f"the {kind} of {name} is " in support]
        assert told.endswith(f" is {row.answer} .")
        assert (len(set(row.candidates)), len(row.supports)) == (8, 3)
