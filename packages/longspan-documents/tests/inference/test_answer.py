"""`longspan.answer`: passages of texts, files and folders, best first, each with its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import longspan
from longspan.errors import InputError
from longspan_documents.inference.answer import BY_WORDS, Answerer
from longspan_documents.inference.ranking import Weights, load_weights
from longspan_documents.inference.results import RankedPassage, ShortAnswer, quote_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import document_of

FILLER = "The weather was fine that day, and nobody in the village had anything to say about it or anything else. " * 4
HOMES = "Marmots — as everybody knows — live in deep burrows.\nThey sleep there through the whole winter."
ENEMIES = "Eagles are their main enemies. A whistle warns of them."
TEXT = f"# Homes\n\n{HOMES}\n\n{FILLER}\n\n# Enemies\n\n{ENEMIES}\n\n{FILLER}"
QUESTION = "What are their main enemies?"


class Eagles:
    """A reader that always finds the eagles in the second document."""

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        place = documents[1].text.index("Eagles")
        return ShortAnswer(document=1, quote=quote_of(documents[1], place, place + 6), probability=0.875)


def test_the_best_passage_comes_first_with_its_place() -> None:
    found = longspan.answer(TEXT, f"  {QUESTION}\n")
    best = found.passages[0]
    assert found.question == QUESTION
    assert found.answered
    assert len(found.passages) == 2
    assert best.heading == "Enemies"
    assert best.text.startswith(ENEMIES)
    assert str(best.sentence) == str(found) == found.text == "Eagles are their main enemies."
    assert best.text[slice(*best.mark)] == str(best.sentence)
    start = TEXT.index("Eagles")
    assert (best.quote.start, best.sentence.start, best.sentence.end) == (start, start, start + 30)
    assert best.sentence.first_line == TEXT[:start].count("\n") + 1
    # Each of the dashes before it is one character and three bytes.
    assert best.sentence.start_byte == start + 4
    assert best.quote.page is None
    assert [one.probability for one in found.passages] == sorted(
        (one.probability for one in found.passages), reverse=True
    )


def test_every_passage_has_a_score_in_the_order_of_the_document() -> None:
    (scores,) = longspan.answer(TEXT, QUESTION).scores
    starts = [one.start for one in scores]
    assert starts == sorted(starts, key=lambda start: start or 0)
    assert all(one.score is not None and 0 <= one.score <= 1 for one in scores)


def test_top_passages_as_many_as_there_are() -> None:
    assert len(longspan.answer(TEXT, QUESTION, top=1).passages) == 1
    assert len(longspan.answer("Marmots whistle.", QUESTION, top=5).passages) == 1


def test_nothing_in_common_is_no_answer_and_the_threshold_moves_the_line() -> None:
    found = longspan.answer(TEXT, "Who discovered penicillin?")
    assert not found.answered
    assert found.text == "no answer found"
    assert found.passages
    assert longspan.answer(TEXT, "Who discovered penicillin?", threshold=0.0).answered
    assert not longspan.answer(TEXT, QUESTION, threshold=1.0).answered


def test_several_documents_compete_and_are_named() -> None:
    found = longspan.answer([HOMES, document_of(ENEMIES, name="enemies.txt"), FILLER], "Which enemies have they?")
    best = found.passages[0]
    assert (best.document, best.file) == (1, "enemies.txt")
    assert [len(scores) for scores in found.scores] == [1, 1, 1]
    assert {one.file for one in found.passages} == {"document 1", "enemies.txt", "document 3"}


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text(HOMES)
    (tmp_path / "sub" / "b.md").write_text(f"# Enemies\n\n{ENEMIES}")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found = longspan.answer(tmp_path, QUESTION)
    assert found.passages[0].file == str(tmp_path / "sub" / "b.md")
    assert found.note is not None
    assert "1 file passed over (1 .png)" in found.note
    assert "broken.pdf" in found.note
    assert longspan.answer(tmp_path / "a.txt", "where do they sleep?").passages[0].text == " ".join(HOMES.split())
    with pytest.raises(InputError, match="the name of a folder"):  # a text is a text
        longspan.answer(str(tmp_path), QUESTION)


def test_a_speaker_is_named() -> None:
    text = "\n".join(["ANNA: Where do marmots sleep?", "BEN: In burrows.", "ANNA: And eat?", "BEN: On the meadows."])
    best = longspan.answer(text, "What did Ben say about burrows?").passages[0]
    assert best.speakers == ("ANNA", "BEN")
    assert "BEN: In burrows." in best.text


def test_a_model_of_questions_gives_the_words() -> None:
    found = Answerer([document_of(HOMES), document_of(ENEMIES)], Eagles()).answer("Who discovered penicillin?")
    assert found.answered
    assert found.text == "Eagles"
    assert found.short is not None
    assert found.short.probability == 0.875


def test_with_fitted_weights_english_is_ranked_by_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards:
        """Everything that does not share words with the question is near to it."""

        def embed(self, texts: list[str]) -> np.ndarray:
            return np.array([[0.0, 1.0] if "burrow" in text or "foe" in text else [1.0, 0.0] for text in texts])

        def embed_document(self, sentences: list[str], firsts: Sequence[int]) -> np.ndarray:
            return self.embed([*sentences, *(sentences[first] for first in firsts)])

        def knows(self, text: str) -> bool:
            return True

    words = load_weights()["words"]
    meaning = dataclasses.replace(words, rank={"nearest": 1.0})
    fitted: dict[str, Weights] = {"words": words, "meaning": meaning}
    monkeypatch.setattr("longspan_documents.inference.answer.load_weights", lambda: fitted)
    monkeypatch.setattr("longspan_documents.inference.answer.bundled_encoder", lambda device: Backwards())
    assert longspan.answer([ENEMIES, HOMES], "foe enemies").passages[0].document == 1
    foreign = "土拨鼠生活在山区。" * 30
    assert longspan.answer([foreign, "山区"], "土拨鼠生活在哪里？").passages[0].document == 0


def test_other_languages_have_no_probability() -> None:
    found = longspan.answer("土拨鼠生活在山区。\n\n鹰是它们的主要敌人。", "谁是敌人？")
    assert found.note == BY_WORDS
    assert (found.answered, found.sure, found.probability) == (True, "unsure", None)
    assert [passage.probability for passage in found.passages] == [None]
    assert longspan.answer(TEXT, QUESTION).note is None


@pytest.mark.parametrize("question", ["", " \n", "?!", None])
def test_a_question_without_words_is_refused(question: str) -> None:
    with pytest.raises(InputError, match="asks nothing"):
        longspan.answer(TEXT, question)


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(InputError, match="the document is empty"):
        longspan.answer(" \n", QUESTION)
    with pytest.raises(InputError, match="document 2 is empty"):
        longspan.answer([TEXT, ""], QUESTION)
    with pytest.raises(InputError, match="no document to ask"):
        longspan.answer([], QUESTION)
    with pytest.raises(InputError, match="top is 0; it must be at least 1"):
        longspan.answer(TEXT, QUESTION, top=0)
    with pytest.raises(InputError, match=r"threshold is 2.0; it must be at most 1"):
        longspan.answer(TEXT, QUESTION, threshold=2)


def test_more_answerable_questions_make_an_answer_more_likely() -> None:
    found = [longspan.answer(TEXT, QUESTION, answerable=share) for share in (1 / 3, 0.67, 0.9)]
    assert found[0].there < found[1].there < found[2].there
    assert found[0].probability < found[1].probability < found[2].probability <= found[2].there
    assert found[1].probability == longspan.answer(TEXT, QUESTION).probability
    # The ratio of the odds of two answers is that of the shares: 0.9 / 0.1 to 0.5 / 1 is 18.
    odds = [answer.there / (1 - answer.there) for answer in found]
    assert odds[2] / odds[0] == pytest.approx(18)


@pytest.mark.parametrize("share", [0, 1, -1, 2, float("nan"), float("inf"), "x", None, [0.5]])
def test_a_share_of_answerable_questions_lies_between_0_and_1(share: Any) -> None:
    with pytest.raises(InputError, match=r"answerable"):
        longspan.answer(TEXT, QUESTION, answerable=share)
    with pytest.raises(InputError, match=r"answerable"):
        Answerer([document_of(TEXT)]).answer(QUESTION, answerable=share)


@pytest.mark.parametrize(
    "question",
    ["x" * 10_000, "what do " * 500, "Who " * 1_000, "is it the of and", "1817", "?1?"],
)
def test_odd_questions_get_some_passages(question: str) -> None:
    found = longspan.answer(TEXT, question)
    assert len(found.passages) == 2
    assert 0 <= found.probability <= found.there <= 1


def test_an_endless_question_is_refused() -> None:
    with pytest.raises(InputError, match=r"the question has 100,000 characters, more than the 10,000 that are read"):
        longspan.answer(TEXT, "x" * 100_000)


def test_a_folder_of_broken_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4\n")
    with pytest.raises(InputError, match=r"holds no document that can be read.*broken\.pdf"):
        longspan.answer(tmp_path, QUESTION)
