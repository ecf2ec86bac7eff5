"""Options are checked, and markers are appended once."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.errors import InputError
from longspan_papers.natural_questions.options import PassageTypes, QuestionOptions, marker_ids, marker_tokens
from longspan_papers.natural_questions.task import NaturalQuestions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 7}, "max_tokens is 7; it must be at least 8"),
        ({"max_tokens": 512}, "stride=1568 is not from 1 to max_tokens − 1 = 511"),
        ({"stride": 0}, "stride is 0; it must be at least 1"),
        ({"max_question_tokens": 0}, "max_question_tokens is 0; it must be at least 1"),
        ({"max_question_tokens": 4096}, "max_question_tokens=4096 is not from 1"),
        ({"keep_negatives": 1.5}, "keep_negatives is 1.5; it must be at most 1"),
        ({"keep_negatives": -0.1}, "keep_negatives is -0.1; it must be at least 0"),
        ({"max_candidates": -1}, "max_candidates is -1; it must be at least 0"),
        ({"passage_types": True}, "passage_types=true needs match_types=true"),
        ({"answer_types": 3}, "answer_types is 3; choose 2 or 5"),
        ({"max_answer_tokens": 0}, "max_answer_tokens is 0"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NaturalQuestions(**options)


def test_markers_are_numbers_and_kinds() -> None:
    assert marker_tokens(QuestionOptions(max_candidates=2)) == [
        *("[Candidate=1]", "[Candidate=2]", "[Paragraph=1]", "[Paragraph=2]", "[Table=1]", "[Table=2]"),
        *("[List=1]", "[List=2]", "[Other=1]", "[Other=2]"),
    ]
    assert len(marker_tokens(QuestionOptions(max_candidates=None))) == len(marker_tokens(QuestionOptions())) == 5 * 48
    assert marker_tokens(QuestionOptions(markers=False)) == []


def test_markers_are_appended_to_the_vocabulary_once() -> None:
    model = models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    options = QuestionOptions(max_candidates=2)
    with pytest.raises(InputError, match=r"the tokenizer lacks 10 marker tokens such as \[Candidate=1\]"):
        marker_ids(tokenizer, options)
    assert tokenizer.add_tokens(marker_tokens(options), special_tokens=True) == 10
    assert tokenizer.add_tokens(marker_tokens(options), special_tokens=True) == 0
    assert marker_ids(tokenizer, options) == {name: 2 + i for i, name in enumerate(marker_tokens(options))}
    assert tokenizer.add_tokens(marker_tokens(QuestionOptions(markers=False)), special_tokens=True) == 0
    assert marker_ids(tokenizer, QuestionOptions(markers=False)) == {}
    assert tokenizer("a [Table=2]")["input_ids"] == [1, 2 + 5]


def test_passage_types_go_into_a_byte_and_back() -> None:
    # 3 matches, then 11 places and "none", then 5 kinds and "none"
    assert (PassageTypes.PLACES_AT, PassageTypes.KINDS_AT, PassageTypes.COUNT) == (3, 15, 21)
    packed = [PassageTypes.pack(2, number, kind) for number in (1, 4, 5, 6, 49, 800) for kind in PassageTypes.KINDS]
    assert max(packed) <= 255
    assert len(set(packed)) == 4 * 5  # 5 and 6 share a place, as do 49 and 800
    tokens = [0, PassageTypes.pack(2, 6, "table"), PassageTypes.pack(1, 800, "brief")]
    rows = PassageTypes.unpack(torch.tensor([tokens]))
    # no passage: the first place and kind; the sixth is in the fifth place, table is the second kind
    assert rows.tolist() == [[[0, 3, 15], [2, 3 + 5, 15 + 2], [1, 3 + 11, 15 + 5]]]
