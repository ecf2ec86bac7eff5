"""Pipelines of summaries and questions: the shapes of transformers 4, its scores written out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertForQuestionAnswering
from transformers.pipelines import PIPELINE_REGISTRY

import longspan
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.training.tokenizers import train_tokenizer
from marmots import TEXT, write
from tiny_writers import TEXT as SNAILS
from tiny_writers import peer, word_tokenizer, words, write_folder

QUESTION = "what are the main enemies of marmots?"
EAGLES = TEXT.index("Eagles")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT that answers and its tokenizer; it reads 128 tokens at once."""
    tokenizer = train_tokenizer([f"{TEXT} {QUESTION}"] * 3, 400)
    torch.manual_seed(7)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "sep")}
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=130, initializer_range=0.5, **tokens, **sizes
    )
    return write(tmp_path_factory.mktemp("questions"), BertForQuestionAnswering(config), tokenizer)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("writers") / "pegasus", "Pegasus", generation={"max_length": 12})


def test_summaries_without_a_model() -> None:
    summarizer = longspan.pipeline("summarization")
    expected = {"summary_text": longspan.summarize(TEXT, sentences=2).text}
    assert summarizer(TEXT, sentences=2) == [expected]
    assert summarizer([TEXT, TEXT], sentences=2) == [expected, expected]
    assert list(summarizer(iter([TEXT]), sentences=2)) == [expected]
    with pytest.raises(InputError, match=r"max_length=30 is for a model that writes, .* give sentences"):
        summarizer(TEXT, max_length=30)
    with pytest.raises(InputError, match="truncation=True would cut"):
        summarizer(TEXT, truncation=True)


def test_summaries_as_generate_writes_them(writer: Path) -> None:
    summarizer = longspan.pipeline("summarization", writer, device=-1)
    assert summarizer([SNAILS]) == [{"summary_text": text} for text in peer(writer, [SNAILS])]
    options: dict[str, Any] = {"max_length": 9, "min_length": 4, "num_beams": 2, "no_repeat_ngram_size": 2}
    (told,) = summarizer(SNAILS, **options)
    assert told == {"summary_text": peer(writer, [SNAILS], **options)[0]}
    assert len(words(told["summary_text"])) < len(words(summarizer(SNAILS)[0]["summary_text"]))
    with pytest.raises(InputError, match="no_such_option"):
        summarizer(SNAILS, no_such_option=1)
    with pytest.raises(InputError, match="max_tokens=69 is more than the 63 tokens"):
        summarizer(SNAILS, max_length=70)


def test_answers_without_a_model() -> None:
    answerer = longspan.pipeline("question-answering")
    told = answerer(question=QUESTION, context=TEXT)
    assert told["answer"] == TEXT[told["start"] : told["end"]] == "Eagles are their main enemies."
    found = longspan.answer(TEXT, QUESTION)
    assert told["score"] == found.passages[0].probability
    several = answerer(question=QUESTION, context=TEXT, top_k=2)
    assert several[0] == told
    assert len(several) == len(longspan.answer(TEXT, QUESTION, top=2).passages)
    pair = {"question": QUESTION, "context": TEXT}
    assert answerer(pair) == answerer([pair]) == told
    assert answerer([pair, pair]) == answerer(question=[QUESTION] * 2, context=TEXT) == [told, told]
    nothing = answerer(question="who won the 1998 election in Norway?", context=TEXT, handle_impossible_answer=True)
    assert nothing == {"score": pytest.approx(nothing["score"]), "start": 0, "end": 0, "answer": ""}
    assert nothing["score"] > 0.5


def scores_by_hand(folder: Path, most: int) -> tuple[dict[tuple[int, int], float], float]:
    """Score of every place, and of none, by the definition of transformers 4: the softmax of starts and that of ends,
    over the tokens of the context and the first one, times each other."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = BertForQuestionAnswering.from_pretrained(folder).eval()
    encoded = tokenizer(QUESTION, TEXT, return_offsets_mapping=True, return_tensors="pt")
    spans = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        output = model(**encoded)
    inside = [at for at, kind in enumerate(encoded.sequence_ids(0)) if kind == 1 and spans[at][1] > spans[at][0]]
    start, end = (
        {at: float(odds) for at, odds in zip([0, *inside], scores[0, [0, *inside]].double().softmax(0), strict=True)}
        for scores in (output.start_logits, output.end_logits)
    )
    pairs = {(spans[i][0], spans[j][1]): start[i] * end[j] for i in inside for j in inside if 0 <= j - i < most}
    return pairs, start[0] * end[0]


@pytest.mark.parametrize("most", [15, 2])
def test_answers_are_scored_as_transformers_4_did(questions: Path, most: int) -> None:
    pairs, none = scores_by_hand(questions, most)
    answerer = longspan.pipeline("question-answering", questions)
    told = answerer(question=QUESTION, context=TEXT, top_k=4, align_to_words=False, max_answer_len=most)
    best = sorted(pairs.items(), key=lambda pair: -pair[1])[:4]
    assert [(one["start"], one["end"]) for one in told] == [place for place, _ in best]
    assert [one["score"] for one in told] == pytest.approx([score for _, score in best])
    assert [one["answer"] for one in told] == [TEXT[start:end] for (start, end), _ in best]
    every = answerer(
        question=QUESTION, context=TEXT, top_k=999_999, align_to_words=False, handle_impossible_answer=True
    )
    (empty,) = [one for one in every if not one["answer"]]
    assert empty == {"score": pytest.approx(none), "start": 0, "end": 0, "answer": ""}


def test_answers_in_whole_words(questions: Path) -> None:
    told = longspan.pipeline("question-answering", questions)(question=QUESTION, context=TEXT, top_k=20)
    assert len({(one["start"], one["end"]) for one in told}) == len(told)
    for one in told:
        around = TEXT[max(0, one["start"] - 1) : one["start"] + 1], TEXT[one["end"] - 1 : one["end"] + 1]
        assert not any(pair.isalnum() and len(pair) == 2 for pair in around)


def test_a_context_longer_than_the_model_is_read_around_its_passages(questions: Path) -> None:
    long = "\n\n".join([f"Letter {number} is about rain, snow and hail, and says little. " * 3 for number in range(60)])
    text = f"{long}\n\n{TEXT}"
    told = longspan.pipeline("question-answering", questions)(question=QUESTION, context=text, top_k=3)
    assert [one["answer"] for one in told] == [text[one["start"] : one["end"]] for one in told]
    assert told[0]["start"] >= len(long) - 600


def test_what_is_refused(questions: Path) -> None:
    with pytest.raises(InputError, match=r"task='translation' is none of longspan\.pipeline"):
        longspan.pipeline("translation")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="words=3 is no option of 'question-answering'"):
        longspan.pipeline("question-answering", words=3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"task=\['summarization'\] is none of longspan\.pipeline"):
        longspan.pipeline(["summarization"])  # type: ignore[call-overload]
    reads, picks = longspan.pipeline("question-answering", questions), longspan.pipeline("question-answering")
    pair = {"question": QUESTION, "context": TEXT}
    for options, message in (
        ({"doc_stride": 64}, "doc_stride=64 determines how a context is cut"),
        ({"top_k": 0}, "top_k=0 asks for no answer"),
        ({"max_answer_len": 0}, "max_answer_len=0 leaves no room"),
        ({"no_such": 1}, "no_such=1 is no option"),
    ):
        with pytest.raises(InputError, match=message):
            reads(pair, **options)
    with pytest.raises(InputError, match="max_answer_len=3 is for a model that marks words"):
        picks(pair, max_answer_len=3)
    for given, message in (
        ({}, "question=None asks nothing"),
        ({"question": 7, "context": TEXT}, "question is 7, of type int; give a question, or a list of questions"),
        ({"question": QUESTION, "context": " "}, "holds nothing to read"),
        ({"question": [QUESTION], "context": [TEXT, TEXT]}, "question has 1 entries and context 2"),
    ):
        with pytest.raises(InputError, match=message):
            picks(**given)
    with pytest.raises(InputError, match="is no question with a context"):
        picks(QUESTION)
    with pytest.raises(InputError, match="give one of the two"):
        picks(pair, question=QUESTION)


def test_transformers_knows_both_by_names_of_their_own(questions: Path, writer: Path, tmp_path: Path) -> None:
    assert {"long-summarization", "long-question-answering"} <= set(PIPELINE_REGISTRY.get_supported_tasks())
    theirs = transformers.pipeline("long-summarization", model=str(writer), device="cpu", max_length=9)
    expected = longspan.pipeline("summarization", writer)([SNAILS, SNAILS], max_length=9)
    assert theirs([SNAILS, SNAILS]) == list(theirs(text for text in [SNAILS, SNAILS])) == expected
    assert theirs(SNAILS) == expected[:1]
    theirs.save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*.py"))
    answerer = transformers.pipeline("long-question-answering", model=str(questions), device="cpu", top_k=2)
    expected = longspan.pipeline("question-answering", questions)(question=QUESTION, context=TEXT, top_k=2)
    assert answerer(question=QUESTION, context=TEXT) == expected


def test_a_longspan_model_in_transformers_pipeline(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    torch.manual_seed(3)
    config = LongspanConfig(vocab_size=len(tokenizer), decoder_layers=1, init_std=0.2, **tokens, **sizes)
    folder = write(tmp_path, LongspanForConditionalGeneration(config), tokenizer)
    expected = longspan.pipeline("summarization", folder)(SNAILS, max_length=7)
    assert (
        transformers.pipeline("long-summarization", model=str(folder), device="cpu")(SNAILS, max_length=7) == expected
    )
