"""The task from a recipe to its official prediction file, and what it refuses."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanForNaturalQuestions
from longspan.training.evaluate import evaluate
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train
from longspan_documents.questions.made_up import synthetic_questions
from longspan_documents.questions.rows import Annotation, Place, QuestionRow, Span, plain_row
from longspan_papers.natural_questions.metric import AnswerLabel, annotations_of, natural_questions_scores
from longspan_papers.natural_questions.task import NaturalQuestions, rows_of

RECIPE = """
name: tiny-questions
task: {name: natural_questions, max_tokens: 128, stride: 61, max_candidates: 7, max_answer_tokens: 11}
data: {train: synthetic, validation: synthetic, train_rows: 5, validation_rows: 3}
model:
  new: {hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 3, intermediate_size: 40, init_std: 0.1}
  attention: {mechanism: poolingformer, left_tokens: 8, right_tokens: 8, pooled_left_tokens: 31}
  max_tokens: 128
tokenizer: {train: 400}
optimisation: {steps: 2, batch_size: 4, micro_batch_size: 2, log_every: 1, evaluate_every: 2, best_by: long_f1}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    (folder / "tiny.yaml").write_text(RECIPE)
    train(load_recipe(folder / "tiny.yaml"), folder / "run")
    shutil.rmtree(folder / "run/checkpoints")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """The trained model in a folder of its own."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_from_the_recipe_to_the_official_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", "synthetic", "--limit", "5", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["task"]) == (5, "natural_questions")
    scores = report["scores"]
    assert {"long_f1", "long_threshold", "short_f1", "short_threshold", "probability_threshold"} <= set(scores)
    assert "one annotator" in report["flavour"]

    # The official file, read back and scored again, gives the scores of the report.
    official = json.loads((run / "evaluation/synthetic-validation-predictions-nq.json").read_text())
    rows = synthetic_questions(5, seed=1)
    assert [entry["example_id"] for entry in official["predictions"]] == [row.id for row in rows]
    predicted = [
        AnswerLabel(
            long=Place(**entry["long_answer"]),
            short=tuple(Place(**place) for place in entry["short_answers"]),
            yes_no=entry["yes_no_answer"].lower(),
            long_score=entry["long_answer_score"],
            short_score=entry["short_answers_score"],
        )
        for entry in official["predictions"]
    ]
    again = natural_questions_scores([annotations_of(row) for row in rows], predicted)
    assert again == pytest.approx({name: scores[name] for name in again})

    # The readable lines agree with it: text and bytes are the same place.
    lines = [json.loads(one) for one in (run / "evaluation/synthetic-validation.jsonl").read_text().splitlines()]
    for entry, row, one in zip(official["predictions"], rows, lines, strict=True):
        place = entry["long_answer"]
        assert row.text.encode()[place["start_byte"] : place["end_byte"]].decode() == one["long"]
        assert one["short"][0] in one["long"]
        assert one["prediction"] == one["short"][0]
        assert one["gold"][0]["candidate"] == row.annotations[0].candidate


@pytest.mark.slow
def test_it_learns(recipe: Path, tmp_path: Path) -> None:
    """Made-up facts: far beyond always naming the first passage, or none, after a minute."""
    changes = ["task.max_tokens=256", "task.stride=128", "task.max_candidates=16", "task.match_types=true"]
    changes += ["data.train_rows=256", "data.validation_rows=24", "model.max_tokens=256", "model.new.hidden_size=63"]
    changes += ["optimisation.steps=60", "optimisation.batch_size=8", "optimisation.micro_batch_size=8"]
    changes += ["optimisation.evaluate_every=30", "optimisation.learning_rate=1e-3"]
    result = train(load_recipe(recipe, changes), tmp_path / "run")
    rows = synthetic_questions(24, seed=1)
    first = [AnswerLabel(long=Place(**row.original(row.candidates[0]))) for row in rows]
    baseline = natural_questions_scores([annotations_of(row) for row in rows], first)["long_f1"]
    assert baseline < 15
    assert result.best["eval_long_f1"] > 40


def test_the_batch_changes_nothing(run: Path, tmp_path: Path) -> None:
    one = evaluate(run, "synthetic", limit=4, output=tmp_path / "one")
    many = evaluate(run, "synthetic", limit=4, batch_size=5, output=tmp_path / "many")
    assert one.predictions == many.predictions
    assert one.scores == pytest.approx(many.scores, abs=1e-4)


def test_the_run_keeps_what_answering_needs(run: Path) -> None:
    tokenizer, config = load_tokenizer(run), LongspanForNaturalQuestions.from_pretrained(run).config
    assert tokenizer.convert_tokens_to_ids("[Candidate=7]") == tokenizer.convert_tokens_to_ids("[Candidate=1]") + 6
    assert (config.global_tokens, config.head["answer_types"], config.vocab_size) == ("question", 2, len(tokenizer))
    history = json.loads((run / "metrics.json").read_text())["history"]
    assert any("eval_long_f1" in entry and entry["eval_loss"] > 0 for entry in history)


def test_by_loss_and_with_every_option(recipe: Path, tmp_path: Path) -> None:
    changes = ["optimisation.best_by=loss", "task.answer_types=5", "task.null_paragraph=true", "task.match_types=true"]
    changes += ["task.markers=false", "task.top_level_only=false", "task.max_candidates=null"]
    result = train(load_recipe(recipe, changes), tmp_path / "run")
    assert result.best["eval_loss"] > 0
    config = LongspanForNaturalQuestions.from_pretrained(tmp_path / "run").config
    assert (config.head["answer_types"], config.head["null_paragraph"], config.type_vocab_size) == (5, True, 3)
    assert evaluate(tmp_path / "run", "synthetic", limit=2).report["rows"] == 2


def test_from_a_pre_trained_encoder(recipe: Path, tmp_path: Path) -> None:
    """Its vocabulary grows by the markers; everything else of the encoder is kept."""
    tokenizer = train_tokenizer((row.text for row in synthetic_questions(3, seed=0)), 400)
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    config = LongspanConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)
    pretrained = LongspanForMaskedLM(config)
    pretrained.save_pretrained(tmp_path / "mlm")
    tokenizer.save_pretrained(tmp_path / "mlm")
    text = recipe.read_text()
    start, end = text.index("model:"), text.index("optimisation:")
    recipe.write_text(f"{text[:start]}model: {{from: {tmp_path / 'mlm'}}}\n{text[end:]}")
    train(load_recipe(recipe, ["optimisation.learning_rate=1e-12"]), tmp_path / "run")
    model = LongspanForNaturalQuestions.from_pretrained(tmp_path / "run")
    table = model.get_input_embeddings().weight
    assert len(table) == len(tokenizer) + 5 * 7
    torch.testing.assert_close(table[: len(tokenizer)], pretrained.get_input_embeddings().weight)
    ours, theirs = model.model.encoder.layers[0], pretrained.model.encoder.layers[0]
    torch.testing.assert_close(ours.attention.query.weight, theirs.attention.query.weight)


def test_without_a_recipe_the_model_says_what_it_reads(recipe: Path, run: Path, tmp_path: Path) -> None:
    (run / "recipe.yaml").unlink()
    with pytest.raises(InputError, match="marker tokens"):  # trained with fewer than the default
        evaluate(run, "synthetic", limit=1)
    train(load_recipe(recipe, ["task.max_candidates=48", "optimisation.steps=1"]), tmp_path / "other")
    (tmp_path / "other/recipe.yaml").unlink()
    assert evaluate(tmp_path / "other", "synthetic", limit=1).report["task"] == "natural_questions"


def test_fitted() -> None:
    head = {"head": "natural_questions", "answer_types": 5, "null_paragraph": True}
    config = LongspanConfig(max_position_embeddings=300, head=head, type_vocab_size=3)
    task = NaturalQuestions().fitted(config)
    assert (task.max_tokens, task.stride, task.answer_types, task.null_paragraph) == (300, 150, 5, True)
    task.check_model(config)


def test_question_tokens_are_global_in_every_batch(run: Path, tmp_path: Path) -> None:
    task = NaturalQuestions(max_tokens=128, stride=61, max_candidates=7)
    tokenizer = load_tokenizer(run)
    dataset = task.dataset(synthetic_questions(2, seed=3), tokenizer, training=True, seed=0, folder=tmp_path)
    batch = task.collator(tokenizer)([dataset[0], dataset[len(dataset) - 1]])
    assert set(task.losses().labels) <= set(batch)
    for ids, flags in zip(batch["input_ids"], batch["global_attention_mask"], strict=True):
        before = ids.tolist().index(tokenizer.sep_token_id or tokenizer.eos_token_id)
        assert flags.tolist() == [place <= before for place in range(len(ids))]


def test_rows_are_limited_over_all_sources() -> None:
    task = NaturalQuestions()
    sources = task.read("synthetic", "train", 5) + task.read("synthetic", "validation", 5)
    assert [row.id for row in rows_of(sources)] == [f"synthetic-0-{index}" for index in range(5)]
    assert task.read("synthetic", "train", 0) == []
    first = next(task.corpus(sources))
    row = synthetic_questions(1, seed=0)[0]
    assert first == f"{row.question}\n{row.text}"


def odd_rows() -> list[QuestionRow]:
    """One token; an answer across a chunk's border; yes; no passages; a question as long as the document."""
    text = "\n\n".join(" ".join(f"w{place}" for place in range(start, start + 40)) for start in (0, 40))
    row = plain_row(text, "where is it")
    crossing = Span(text.index("w5 "), text.index("w39"))
    notes = [
        ("one", plain_row("x", "what"), (Annotation(candidate=0, short=(Span(0, 1),)),)),
        ("cut", row, (Annotation(candidate=0, short=(crossing,)), Annotation(candidate=1))),
        ("yes", row, (Annotation(candidate=1, yes_no="yes"), Annotation())),
        ("long", plain_row("a b c", " ".join(["why"] * 9)), (Annotation(candidate=0),)),
    ]
    rows = [
        QuestionRow(id=name, question=one.question, text=one.text, candidates=one.candidates, annotations=said)
        for name, one, said in notes
    ]
    return [*rows, QuestionRow(id="none", question="what", text="x y", candidates=(), annotations=(Annotation(),))]


@pytest.mark.parametrize("kinds", [2, 5])
def test_odd_rows_train_and_evaluate(kinds: int, tmp_path: Path) -> None:
    task = NaturalQuestions(max_tokens=64, stride=29, markers=False, answer_types=kinds, keep_negatives=1.0)
    tokenizer = train_tokenizer((row.text for row in odd_rows()), 300)
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    config = LongspanConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, attention="longformer", **sizes, **task.model_fields()
    )
    model = task.model_class()(config)
    dataset = task.dataset(odd_rows(), tokenizer, training=True, seed=0, folder=tmp_path)
    batch = task.collator(tokenizer)([dataset[index] for index in range(len(dataset))])
    assert (batch["paragraph_labels"] >= 0).any()
    assert (batch["start_positions"] == 0).any()
    loss = model(**batch).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    outcome = task.evaluate(model, tokenizer, odd_rows(), batch_size=3)
    assert [one["id"] for one in outcome.lines] == ["one", "cut", "yes", "long", "none"]
    assert outcome.lines[-1]["candidate"] is None
    assert outcome.lines[-1]["long_score"] is None
    json.dumps([outcome.scores, outcome.lines, outcome.files], allow_nan=False)


@pytest.mark.parametrize(
    ("task", "config", "words"),
    [
        (NaturalQuestions(), {"max_position_embeddings": 512}, "task.max_tokens is 4096"),
        (NaturalQuestions(answer_types=5), {}, "task.answer_types is 5 but the model's is 2"),
        (NaturalQuestions(match_types=True), {"type_vocab_size": 2}, "type_vocab_size=3"),
        (NaturalQuestions(match_types=True, passage_types=True), {"type_vocab_size": 3}, "task.passage_types needs"),
    ],
)
def test_models_that_do_not_fit(task: NaturalQuestions, config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        task.check_model(LongspanConfig(**config))
    NaturalQuestions().check_model(LongspanConfig(max_position_embeddings=512, position_embedding="sinusoidal"))


def test_mistakes_before_anything_is_written(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-data"):
        NaturalQuestions().read("no-such-data", "train", None)
    with pytest.raises(InputError, match="on_error"):
        NaturalQuestions().read("synthetic", "train", None, on_error="ignore")
    with pytest.raises(InputError, match="max_tokens=16"):
        train(load_recipe(recipe, ["task.max_tokens=16", "task.stride=3"]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_corrupt_row_is_counted_or_named(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = {
        "example_id": 7,
        "question_text": "what is it",
        "document_text": "<P> it is a thing </P>",
        "long_answer_candidates": [{"start_token": 0, "end_token": 6, "top_level": True}],
        "annotations": [
            {
                "annotation_id": 1,
                "long_answer": {"start_token": 0, "end_token": 6, "candidate_index": 0},
                "short_answers": [{"start_token": 3, "end_token": 5}],
                "yes_no_answer": "NONE",
            }
        ],
    }
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(f"{json.dumps(record)}\n{json.dumps({**record, 'annotations': 3})}\n{json.dumps(record)}\n")
    with pytest.raises(InputError, match="line 2"):
        evaluate(run, str(path))
    result = evaluate(run, str(path), on_error="skip")
    assert result.report["rows"] == 2
    assert "1 corrupt record" in caplog.text
    found = json.loads((run / "evaluation/rows-validation-predictions-nq.json").read_text())["predictions"][0]
    assert (found["example_id"], found["long_answer"]["start_token"], found["long_answer"]["end_token"]) == (7, 0, 6)
    assert found["long_answer"]["start_byte"] == -1


@pytest.mark.parametrize("data", ["natural-questions-sample", "natural-questions-original", "tydiqa-gold"])
def test_real_rows(data: str, run: Path, data_folder: Path) -> None:
    result = evaluate(run, data, limit=1, batch_size=16)
    assert result.report["rows"] == 1
    name = "passage_f1" if data == "tydiqa-gold" else "long_f1"
    assert 0 <= result.scores[name] <= 100
    (official,) = result.files
    content = official.read_text()
    if data == "tydiqa-gold":
        entry = json.loads(content.splitlines()[0])
        assert set(entry["minimal_answer"]) == {"start_byte_offset", "end_byte_offset"}
        assert isinstance(entry["example_id"], int)
    else:
        assert json.loads(content)["predictions"][0]["long_answer"]["start_token"] >= 0
