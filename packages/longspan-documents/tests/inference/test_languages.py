"""Texts whose words the bundled encoder does not know, and scripts without spaces: summaries, answers, lengths."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import longspan
from counted import exponent, lines_run
from longspan.cli import main
from longspan.data.text.sentences import count_of, count_words, split_words
from longspan_documents.inference.answer import BY_WORDS
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.plain_encoder import plain_encoder
from longspan_documents.inference.results import asks_in_english
from longspan_documents.inference.summarize import NOT_KNOWN
from longspan_documents.serve.requests import Answered
from longspan_documents.serve.worker import JobRunner
from longspan_documents.text.reading import document_of, sentences_of

# The same story in each: a town repairs the roof of its library. The first two sentences and the last two are about
# nothing. With it a question in its words, and the words of the sentence that answers.
STORIES = {
    "zh": (
        """今天早上天气很好。很多人走在路上。市图书馆建于一九五二年，藏书四十万册。
去年冬天，图书馆的屋顶漏水，三千册旧书被水泡坏。市议会在三月决定修理图书馆的屋顶，费用是两百万元。
修理工作由当地的建筑公司承担，预计九月完工。在此期间，读者可以到中学的礼堂借书。
王馆长说，旧书将送到省里的修复中心。修复中心每个月能处理两百册旧书。
有些居民认为费用太高，希望先修学校的操场。市长回答说，图书馆的屋顶关系到所有藏书的安全。
最后，议会以十七票对四票通过了修理计划。你明天会来吗？大家都很高兴！""",
        "修理屋顶的费用是多少？",
        "两百万元",
    ),
    "ja": (
        """今朝はとても天気がよかった。多くの人が道を歩いていた。市立図書館は一九五二年に建てられた。
去年の冬、図書館の屋根から水が漏れ、三千冊の古い本が濡れた。
市議会は三月に図書館の屋根を修理することを決め、費用は二億円である。
工事は地元の建設会社が引き受け、九月に終わる予定だ。その間、読者は中学校の講堂で本を借りられる。
館長の田中さんは、古い本を県の修復センターに送ると話した。修復センターは毎月二百冊の古い本を直す。
費用が高すぎると考える住民もいる。市長は、図書館の屋根はすべての本の安全にかかわると答えた。
最後に議会は十七対四で修理の計画を承認した。明日も来ますか？みんな喜んでいた！""",
        "修理の費用はいくらですか？",
        "二億円",
    ),
    "ru": (
        """Сегодня утром была хорошая погода. Много людей шло по улице. Городская библиотека построена в 1952 году.
Прошлой зимой крыша библиотеки протекла, и три тысячи старых книг намокли. В марте городской совет решил починить
крышу библиотеки, расходы составят два миллиона рублей. Работу выполнит местная строительная компания. В это время
читатели могут брать книги в зале школы. Директор отправит старые книги в центр реставрации. Центр реставрации
восстанавливает двести старых книг в месяц. Некоторые жители считают расходы слишком большими. Мэр ответил, что от
крыши библиотеки зависит сохранность всех книг. В конце совет принял план семнадцатью голосами. Вы придёте завтра?
Все были рады!""",
        "Какие расходы на крышу библиотеки?",
        "два миллиона",
    ),
    "ar": (
        """كان الطقس جميلا هذا الصباح. سار كثير من الناس في الشارع. بنيت مكتبة المدينة عام 1952.
في الشتاء الماضي تسرب الماء من سقف المكتبة فابتلت ثلاثة آلاف كتاب قديم.
قرر مجلس المدينة في مارس إصلاح سقف المكتبة وتبلغ التكلفة مليوني دينار. ستنفذ شركة بناء محلية العمل.
في هذه الأثناء يستعير القراء الكتب في قاعة المدرسة. قال المدير إن الكتب القديمة سترسل إلى مركز الترميم.
يرمم مركز الترميم مئتي كتاب قديم كل شهر. يرى بعض السكان أن التكلفة مرتفعة.
أجاب رئيس البلدية أن سقف المكتبة يحمي جميع الكتب. وافق المجلس في النهاية على خطة الإصلاح بسبعة عشر صوتا.
هل ستأتي غدا؟ كان الجميع سعداء!""",
        "كم تبلغ تكلفة إصلاح سقف المكتبة؟",
        "مليوني دينار",
    ),
    "hi": (
        """आज सुबह मौसम बहुत अच्छा था। बहुत से लोग सड़क पर चल रहे थे। नगर का पुस्तकालय १९५२ में बना।
पिछली सर्दी में पुस्तकालय की छत से पानी टपका और तीन हज़ार पुरानी किताबें भीग गईं।
नगर परिषद ने मार्च में पुस्तकालय की छत की मरम्मत का निर्णय लिया, जिसका खर्च बीस लाख रुपये है।
मरम्मत का काम एक स्थानीय कंपनी करेगी। तब तक पाठक विद्यालय के सभागार से किताबें ले सकते हैं।
निदेशक ने कहा कि पुरानी किताबें मरम्मत केंद्र भेजी जाएँगी। मरम्मत केंद्र हर महीने दो सौ पुरानी किताबें ठीक करता है।
कुछ निवासी मानते हैं कि खर्च बहुत अधिक है। महापौर ने उत्तर दिया कि पुस्तकालय की छत से सभी किताबों की सुरक्षा जुड़ी है।
अंत में परिषद ने मरम्मत की योजना सत्रह मतों से स्वीकार की। क्या आप कल आएँगे? सब लोग खुश थे!""",
        "छत की मरम्मत का खर्च कितना है?",
        "बीस लाख",
    ),
    # Thai ends a sentence with a space, or with the paragraph.
    "th": (
        """เช้านี้อากาศดีมาก

ผู้คนจำนวนมากเดินอยู่บนถนน

ห้องสมุดของเมืองสร้างขึ้นในปี 2495 และมีหนังสือสี่แสนเล่ม

ฤดูหนาวปีที่แล้วหลังคาห้องสมุดรั่ว หนังสือเก่าสามพันเล่มเปียกน้ำ

สภาเมืองตัดสินใจในเดือนมีนาคมว่าจะซ่อมหลังคาห้องสมุด โดยมีค่าใช้จ่ายสองล้านบาท

บริษัทก่อสร้างในท้องถิ่นจะซ่อมหลังคาให้เสร็จในเดือนกันยายน

ระหว่างนั้นผู้อ่านยืมหนังสือได้ที่หอประชุมของโรงเรียน

หนังสือเก่าจะถูกส่งไปยังศูนย์ซ่อมหนังสือของจังหวัด

ศูนย์ซ่อมหนังสือซ่อมหนังสือเก่าได้เดือนละสองร้อยเล่ม

ชาวเมืองบางคนคิดว่าค่าใช้จ่ายสูงเกินไป

นายกเทศมนตรีตอบว่าหลังคาห้องสมุดเกี่ยวข้องกับความปลอดภัยของหนังสือทุกเล่ม

สภาอนุมัติแผนซ่อมหลังคาด้วยคะแนนสิบเจ็ดต่อสี่

คุณจะมาพรุ่งนี้ไหม

ทุกคนดีใจมาก""",
        "ค่าใช้จ่ายซ่อมหลังคาเท่าไร",
        "สองล้านบาท",
    ),
}
SENTENCES = 14
HAN, KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff]")


in_each_language = pytest.mark.parametrize("language", list(STORIES))


@in_each_language
def test_end_marks_of_every_script_end_sentences(language: str) -> None:
    assert len(sentences_of(document_of(STORIES[language][0]))) == SENTENCES


@in_each_language
def test_a_summary_is_not_the_beginning(language: str) -> None:
    """All of these texts had one vector, so that every sentence repeated the first one that was chosen."""
    summary = longspan.summarize(STORIES[language][0], sentences=4)
    assert summary.note is not None
    assert NOT_KNOWN in summary.note
    starts = [sentence.start for sentence in summary.document]
    picked = [starts.index(sentence.start) for sentence in summary.sentences]
    assert picked != [0, 1, 2, 3]
    assert not {0, 1, SENTENCES - 1} & set(picked)
    scores = [round(sentence.score or 0, 2) for sentence in summary.document]
    assert max(scores) < 1
    assert len(set(scores)) > SENTENCES / 2


@in_each_language
def test_a_text_without_known_words_has_no_vectors(language: str) -> None:
    text, question, _ = STORIES[language]
    texts = [sentence.text for sentence in sentences_of(document_of(text))]
    for encoder in (bundled_encoder(), plain_encoder()):
        assert not np.any(encoder.embed_document(texts, [0, 5]))
        assert not np.any(encoder.embed([question]))
        assert encoder.embed_document(texts, [0, 5]).shape == (SENTENCES + 2, encoder.dimensions)


@in_each_language
def test_a_question_in_the_words_of_the_text_finds_its_answer(language: str) -> None:
    text, question, words = STORIES[language]
    paragraphs = [sentence.text for sentence in sentences_of(document_of(text))]
    found = longspan.answer(["\n\n".join(paragraphs[:4]), *paragraphs[4:]], question)
    assert words in found.passages[0].text
    assert words in found.text
    assert (found.sure, found.answered, found.probability, found.note) == ("unsure", True, None, BY_WORDS)
    assert [passage.probability for passage in found.passages] == [None] * 3
    scores = [score for (passage,) in found.scores[1:] for score in [passage.score]]
    assert max(score for score in scores if score is not None) == 1  # shares of the best score


@pytest.mark.parametrize("wanted", [20, 40])
def test_words_of_a_summary_are_words_where_there_are_no_spaces(wanted: int) -> None:
    """1.6 Chinese characters are a word, and 3.5 of other scripts."""
    text = longspan.summarize(STORIES["zh"][0], words=wanted).text
    assert 0.8 * wanted <= len(HAN.findall(text)) / 1.6 <= 1.1 * wanted
    text = longspan.summarize(STORIES["ja"][0], words=wanted).text
    assert 0.7 * wanted <= len(HAN.findall(text)) / 1.6 + len(KANA.findall(text)) / 3.5 <= 1.1 * wanted


def test_words_are_counted_by_spaces_or_characters() -> None:
    assert count_words("A state-of-the-art method, in 2 parts") == 6
    assert count_words("") == count_words(" \n") == 0
    assert count_words("长文档的摘要很有用。") == math.ceil(9 / 1.6)
    assert count_words("とても") == 1
    assert count_words("とてもよい") == 2  # 5 / 3.5
    assert count_words("用 Rust 写 state-of-the-art 程序") == math.ceil(2 + 4 / 1.6)
    assert count_words("ภาษาไทย") == math.ceil(7 / 3.5)  # seven characters, none of them a combining mark
    assert count_words("Русский язык") == 2
    assert count_words("한국어 문장") == 2
    assert count_of(split_words("A state-of-the-art method")) == 6
    assert count_of(split_words("长文档的摘要很有用。")) == math.ceil(9 / 1.6)


def test_passages_of_chinese_are_as_long_as_others() -> None:
    """They have about 60 to 120 words, and up to 30 more at the end; so up to 240 Chinese characters, not 150."""
    passages = longspan.chunks("\n\n".join([STORIES["zh"][0].replace("\n", "")] * 4))
    lengths = [len(HAN.findall(passage.text)) for passage in passages]
    assert 150 < max(lengths) <= 240
    assert np.mean(lengths) > 120
    assert all(passage.words == math.ceil(length / 1.6) for passage, length in zip(passages, lengths, strict=True))


def test_a_question_in_another_language_than_the_text_gets_no_likelihood() -> None:
    english = "The roses were planted by Anna in 1907.\n\nThe oak is older than the house.\n\nThe pond is deep."
    found = longspan.answer(english, "谁种了玫瑰？")
    assert (found.sure, found.answered, found.probability, found.note) == ("unsure", False, None, BY_WORDS)
    assert found.text == "no answer found"
    found = longspan.answer(english, "Anna 1907 年种了什么？")
    assert "Anna" in found.passages[0].text
    assert found.answered
    assert found.probability is None
    found = longspan.answer(STORIES["zh"][0], "How much does the roof cost?")
    assert (found.sure, found.answered, found.note) == ("unsure", False, BY_WORDS)


def test_a_mixed_text_is_judged_by_the_share_of_its_words() -> None:
    english = "The library has a roof that is old and that the council repairs. " * 6
    chinese = STORIES["zh"][0].replace("\n", "")
    tokenizer = bundled_encoder().tokenizer
    words, characters = 13 * 6, len(HAN.findall(chinese))
    share = characters / 1.6 / (characters / 1.6 + words)
    assert tokenizer.unknown_share(english + chinese) == pytest.approx(share, abs=0.05)  # a few are in the vocabulary
    assert NOT_KNOWN in (longspan.summarize(english + chinese).note or "")
    assert NOT_KNOWN not in (longspan.summarize(english * 4 + chinese).note or "")
    assert tokenizer.unknown_share(english) == 0
    assert tokenizer.unknown_share("Čeština, français, Größe: 12,5 % (2019)") == 0


def test_emoji_alone_have_no_meaning() -> None:
    emoji = "🎉🎂🎈 🥳🎁 🎊🎉 🍰🕯️"
    assert NOT_KNOWN in (longspan.summarize(emoji).note or "")
    found = longspan.answer(emoji, "what is celebrated?")
    assert (found.answered, found.sure, found.note) == (False, "unsure", BY_WORDS)


def test_an_explicit_threshold_is_applied_in_every_language() -> None:
    text, question, _ = STORIES["zh"]
    assert longspan.answer(text, question, threshold=0.0).answered
    assert not longspan.answer(text, question, threshold=1.0).answered


def test_an_index_of_english_leaves_other_languages_to_words(tmp_path: Path) -> None:
    english = "The roses were planted by Anna in 1907, and the garden belongs to the town since then. " * 3
    text, question, words = STORIES["zh"]
    index = longspan.index([document_of(english, name="en"), document_of(text, name="zh")], tmp_path / "index")
    found = index.answer(question)
    assert words in found.passages[0].text
    assert (found.sure, found.probability, found.note) == ("unsure", None, BY_WORDS)
    found = index.answer("Who planted the roses?")
    assert found.passages[0].file == "en"
    assert found.probability is not None
    assert found.note is None
    alone = longspan.index(document_of(text, name="zh"), tmp_path / "alone")
    assert words in alone.answer(question).text
    assert alone.answer(question).note == BY_WORDS


def test_the_commands_give_the_note_and_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, question, words = STORIES["zh"]
    file = tmp_path / "story.txt"
    file.write_text(text, encoding="utf-8")
    assert main(["answer", str(file), question]) == 0
    printed = capsys.readouterr()
    assert words in printed.out
    assert "probability" not in printed.out
    assert "probability" not in printed.err
    assert f"note: {BY_WORDS}" in printed.err
    assert main(["answer", str(file), "谁是贝多芬", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["probability"], record["sure"], record["note"]) == (None, "unsure", BY_WORDS)
    assert [passage["probability"] for passage in record["passages"]] == [None]
    assert main(["answer", str(file), "Beethoven"]) == 0
    assert "No answer found. The nearest passages:" in capsys.readouterr().out
    assert main(["summarize", str(file), "-n", "2"]) == 0
    assert NOT_KNOWN in capsys.readouterr().err


def test_a_map_and_the_api_give_the_note_and_no_number(tmp_path: Path) -> None:
    text, question, words = STORIES["ja"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    longspan.map_documents("answer", rows, tmp_path / "answers", question=question, workers=0)
    longspan.map_documents("summarize", rows, tmp_path / "summaries", sentences=3, workers=0)
    (answered,) = parquet.read_table(tmp_path / "answers").to_pylist()
    assert words in answered["answer"]
    assert (answered["sure"], answered["probability"], answered["note"]) == ("unsure", None, BY_WORDS)
    assert {passage["probability"] for passage in answered["passages"]} == {None}
    (summary,) = parquet.read_table(tmp_path / "summaries").to_pylist()
    assert NOT_KNOWN in summary["note"]

    runner = JobRunner(lambda **progress: None)
    document = {"id": None, "name": "the text", "text": text}
    assert NOT_KNOWN in runner.summarize(document, {"sentences": 3}, scores=False)["notes"][-1]
    (found,) = runner.answer([document], [question], {"top": 2})
    assert Answered(**found).probability is None
    assert (found["sure"], found["notes"]) == ("unsure", [BY_WORDS])
    kana, han = len(KANA.findall(text)), len(HAN.findall(text))
    assert abs(runner.read(document)["words"] - (kana / 3.5 + han / 1.6)) < 2


@pytest.mark.slow
def test_a_long_run_without_spaces_takes_work_in_proportion() -> None:
    """A sentence is cut at 600 characters; nothing compares all characters or sentences with all others."""
    long = "图书馆的屋顶漏水" * 12_500
    assert len(long) == 100_000
    assert count_words(long) == 62_500
    assert bundled_encoder().tokenizer.unknown_share(long) > 0.9
    assert max(len(sentence.text) for sentence in sentences_of(document_of(long))) <= 600
    for work in (lambda text: longspan.summarize(text, sentences=2), lambda text: longspan.answer(text, "屋顶")):
        work(long[:1_000])  # imports
        assert exponent(lines_run(work, long[:25_000]), lines_run(work, long), 4) < 1.1


@pytest.mark.parametrize("question", ["Was kostet es?", "Qui a gagné ?", "¿Quién lo vio?", "Chi ha vinto?", "谁赢了？"])
def test_a_short_question_in_another_language_gets_no_likelihood(question: str) -> None:
    assert not asks_in_english(question)
    found = longspan.answer("Anna won the race. It cost ten euros.", question)
    assert len(found.passages) == 1
    assert found.probability is None


@pytest.mark.parametrize("question", ["Who is Le Pen?", "Los Angeles population", "Was it over?", "copper price", "x"])
def test_names_and_key_words_count_as_english(question: str) -> None:
    assert asks_in_english(question)


def test_questions_asked_in_four_languages_and_in_english() -> None:
    folder = Path(__file__).parents[4] / "benchmarks" / "questions"
    foreign, english = [], []
    for line in (folder / "multilingual.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        (foreign if row["asked"] == row["language"] else english).append(row["question"])
    assert len(foreign) == 142
    assert list(filter(asks_in_english, foreign)) == ["Cache-t-on au monde les défauts des programmes ?"]  # "t", "on"
    assert len(english) == 77
    assert all(map(asks_in_english, english))
