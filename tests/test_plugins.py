"""Patterns, mechanisms, heads, tasks and readers of one's own: registered here, or brought by an installed package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import ModelOutput

import longspan
from closeness import check_outputs, check_weights
from forked import forked
from longspan import imports
from longspan.attention import Attention, AttentionConfig, LongformerConfig, ProjectedAttention
from longspan.attention.config import Reach
from longspan.attention.layers import receptive_field
from longspan.attention.support import supports
from longspan.checkpoints.sources import load_any
from longspan.cli import main
from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError
from longspan.imports import added
from longspan.models import model_with
from longspan.models.heads import HEADS, HeadSpec
from longspan.models.heads.base import LongspanWithHead
from longspan.patterns import First, Pattern, PerHead, Window, parse
from longspan.patterns.text import _parsed
from longspan.settings import Range
from longspan.tasks import TASKS, task_class
from longspan.tasks.base import Task
from longspan_documents.questions.rows import plain_row
from longspan_documents.summaries.extraction import Extraction
from longspan_papers.natural_questions.reading import read_questions


@dataclass(frozen=True)
class EveryThird(Pattern):
    """A query sees the keys a multiple of `step` away."""

    step: int = 3

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index) % self.step == 0


@dataclass(frozen=True, kw_only=True)
class HalfConfig(LongformerConfig):
    """A window to the left only."""

    mechanism: ClassVar[str] = "half"
    right_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class BesidesConfig(AttentionConfig):
    """The five answers that make a mechanism, and that it has a causal form."""

    mechanism: ClassVar[str] = "besides"
    source: ClassVar[str] = "ours"
    causal: ClassVar[bool] = True
    side: int = 2

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return 1.0 + self.side * (1 if causal else 2)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        place = torch.arange(len(needed))
        offset = place - place[:, None]
        return (((offset.abs() <= self.side) & ((offset <= 0) | (not causal))) & needed[:, None]).any(0)

    def build(self, *, width: int, heads: int, causal: bool = False) -> Attention:
        module = ProjectedAttention(self, width=width, heads=heads, causal=causal)
        module.pattern = Window(self.side, 0 if causal else self.side)
        return module


@dataclass(frozen=True, kw_only=True)
class Headline(Extraction):
    name: ClassVar[str] = "headline"


@dataclass(frozen=True, kw_only=True)
class Mood(HeadSpec):
    """How a document feels, in so many degrees."""

    head: ClassVar[str] = "mood"
    model: ClassVar[str] = "LongspanForMood"
    degrees: Annotated[int, Range(2, 100)] = 3


class LongspanForMood(LongspanWithHead):
    spec = Mood

    def add_layers(self, config: Any) -> None:
        self.mood = torch.nn.Linear(config.states_width, self.options.degrees)

    def predict(self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None) -> ModelOutput:
        logits = self.mood(encoded.last_hidden_state[:, 0])
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]


def letters(split: str) -> Iterator[SummaryRow]:
    for number in range(3):
        text = f"Letter {number} of {split}. It was short. It was kind."
        yield SummaryRow(id=str(number), pieces=(text,), references=("It was kind.",))


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """What every test takes back of its own registrations, less what was read from them."""
    yield
    _parsed.cache_clear()
    imports._loaded.clear()


@pytest.mark.parametrize("length", [1, 5, 37, 131])
@pytest.mark.parametrize("combined", [False, True])
def test_a_pattern_with_a_predicate_alone_attends_on_every_backend(length: int, combined: bool) -> None:
    longspan.register(EveryThird)
    pattern = EveryThird(5) | Window(2, 0) if combined else EveryThird()
    query, key, value = (torch.randn(2, 3, length, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.arange(length).expand(2, -1) < torch.tensor([[length], [max(1, length // 2)]])
    # By hand, not by the library's own dense mask.
    offset = torch.arange(length)[:, None] - torch.arange(length)[None]
    seen = (offset % 5 == 0) | ((offset >= 0) & (offset <= 2)) if combined else offset % 3 == 0
    seen = seen & mask[:, None, None]
    scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(~seen, -torch.inf)
    wanted = scores.softmax(-1).nan_to_num(0.0) @ value
    expected = torch.autograd.grad(wanted.square().sum(), (query, key, value), retain_graph=True)
    for backend in ("reference", "blocked", "auto"):
        found = longspan.attend(query, key, value, pattern=pattern, key_mask=mask, backend=backend)
        torch.testing.assert_close(found, wanted)
        if not combined:
            continue  # rows that see nothing have no gradient in the formula by hand
        gradients = torch.autograd.grad(found.square().sum(), (query, key, value))
        for got, want in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got, want)


def test_a_pattern_is_read_back_from_its_text() -> None:
    longspan.register(EveryThird)
    pattern = PerHead([EveryThird(4), EveryThird(2) & First(7)])
    assert str(pattern) == "per_head(every_third(4), every_third(2) & first(7))"
    assert parse(str(pattern)) == pattern
    assert parse("every_third") == EveryThird()


def test_a_pattern_serves_unmodified_encoders(tmp_path: Path) -> None:
    from transformers import AutoModel, BertConfig, BertModel

    longspan.register(EveryThird)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=50, **sizes)).eval()
    ids = torch.randint(5, 50, (1, 20))
    longspan.use_attention(model, EveryThird())
    states = model(ids).last_hidden_state
    changed = ids.clone()
    changed[0, 1::3] = 4
    assert torch.equal(model(changed).last_hidden_state[0, ::3], states[0, ::3])
    model.save_pretrained(tmp_path / "saved")
    again = AutoModel.from_pretrained(tmp_path / "saved", attn_implementation="longspan").eval()
    torch.testing.assert_close(again(ids).last_hidden_state, states)


def test_a_mechanism_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    longspan.register(HalfConfig)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    attention = {"mechanism": "half", "left_tokens": 3}
    model = longspan.LongspanModel(longspan.LongspanConfig(vocab_size=40, attention=attention, **sizes)).eval()
    model.save_pretrained(tmp_path)
    again = longspan.LongspanModel.from_pretrained(tmp_path).eval()
    assert isinstance(again.config.layer_attention(1), HalfConfig)
    ids = torch.randint(5, 40, (2, 17))
    check_weights(again, model)
    check_outputs(again(ids).last_hidden_state, model(ids).last_hidden_state)


def test_five_answers_make_a_mechanism_of_encoders_and_decoders(capsys: pytest.CaptureFixture[str]) -> None:
    longspan.register(BesidesConfig)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    config = longspan.LongspanConfig(vocab_size=40, attention={"mechanism": "besides"}, **sizes)
    ids = torch.randint(5, 40, (2, 17))
    changed = ids.clone()
    changed[:, 11] = 4
    with torch.no_grad():
        encoder = longspan.LongspanModel(config).eval()
        before, after = (encoder(each).last_hidden_state for each in (ids, changed))
        moved = (before != after).any(-1).any(0).nonzero().flatten().tolist()
        assert moved == [7, 8, 9, 10, 11, 12, 13, 14, 15]  # two layers, two tokens to each side
        decoder = longspan.LongspanForCausalLM(
            longspan.LongspanConfig(vocab_size=40, attention="besides", **sizes)
        ).eval()
        before, after = (decoder(each, use_cache=False).logits for each in (ids, changed))
    assert (before != after).any(-1).any(0).nonzero().flatten().tolist() == [11, 12, 13, 14, 15]
    layer = config.layer_attention(0)
    assert layer.costs(length=10, width=12, heads=2).scores == 50
    assert layer.reach() == Reach()
    assert layer.lengthening().widened == layer
    assert layer.shared_tables() is None
    assert not supports(layer, "prefix", causal=True)
    assert "besides" in layer.describe()
    assert receptive_field([layer], length=7, token=3)[1].tolist() == [False, True, True, True, True, True, False]
    main(["mechanisms"])
    assert "besides" in capsys.readouterr().out


def test_a_head_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    longspan.register(Mood)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    config = longspan.LongspanConfig(vocab_size=40, head={"head": "mood", "degrees": 5}, **sizes)
    model = model_with("mood")(config)
    assert type(model) is LongspanForMood
    ids, labels = torch.randint(5, 40, (2, 17)), torch.tensor([1, 4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(ids, labels=labels).loss
    before.backward()
    optimizer.step()
    assert model.eval()(ids, labels=labels).loss < before
    model.save_pretrained(tmp_path)
    for again in (load_any(tmp_path).eval(), LongspanForMood.from_pretrained(tmp_path).eval()):
        assert type(again) is LongspanForMood
        assert again.options == Mood(degrees=5)
        check_weights(again, model)
        check_outputs(again(ids).logits, model(ids).logits)
    with pytest.raises(InputError, match="'moood', which is unknown; did you mean 'mood'"):
        longspan.LongspanConfig(head="moood", **sizes)
    with pytest.raises(InputError, match="degrees"):
        longspan.LongspanConfig(head={"head": "mood", "degrees": 1}, **sizes)


@pytest.mark.parametrize("table", ["heads", "tasks"])
def test_what_a_system_adds_could_have_been_registered(table: str) -> None:
    entered = {"heads": HEADS, "tasks": TASKS}[table]
    names = [entry.name for entry in added(table)]
    assert "coreference" in names
    for name in names:
        assert longspan.register(entered[name]) is entered[name]


def test_a_head_without_its_model_class_says_so() -> None:
    longspan.register(_named("Lost", Mood, head="lost", model="LongspanForLost"))
    with pytest.raises(InputError, match=r"LongspanForLost, which .*test_plugins does not have; define it there"):
        model_with("lost")


def test_tasks_and_readers_are_found_by_name() -> None:
    longspan.register(Headline)
    longspan.register(letters)
    longspan.register(lambda split: iter([plain_row("One passage.", "what?")]), name="asked")
    assert task_class("headline") is Headline
    assert [row.source for row in read_rows("letters", "validation", limit=2)] == [
        f"Letter {number} of validation. It was short. It was kind." for number in (0, 1)
    ]
    assert len(list(Headline().read("letters", "train", None))) == 3
    assert [row.question for row in read_questions(["asked", "asked"], limit=5)] == ["what?", "what?"]
    with pytest.raises(InputError, match="row 1 of reader 'asked' is a QuestionRow; this task reads SummaryRow"):
        list(read_rows("asked"))


@dataclass(frozen=True)
class Blank(Pattern):
    pass


@dataclass(frozen=True)
class Half(Pattern):
    share: float = 0.5

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index < query_index * self.share


class Loose(Pattern):
    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index == query_index


@dataclass(frozen=True, kw_only=True)
class Nameless(Task):
    """A task that does not say what it is called."""


@dataclass(frozen=True, kw_only=True)
class Shouting(HalfConfig):
    mechanism: ClassVar[str] = "HALF!"


@dataclass(frozen=True, kw_only=True)
class Reaching(HalfConfig):
    mechanism: ClassVar[str] = "reaching"

    reach: int = 8  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def _named(name: str, base: type, **values: Any) -> type:
    return dataclass(frozen=True)(type(name, (base,), {"__module__": __name__, **values}))


REFUSED = {
    "nothing registrable": (lambda: longspan.register(3), "register got 3"),
    "a class of another kind": (lambda: longspan.register(dict), "derived from Pattern"),
    "no predicate": (lambda: longspan.register(Blank), "does not define visible"),
    "a share": (lambda: longspan.register(Half), "whole numbers"),
    "no dataclass": (lambda: longspan.register(Loose), "no frozen dataclass"),
    "no task name": (lambda: longspan.register(Nameless), "has no 'name'"),
    "a name with a mark": (lambda: longspan.register(Shouting), "'HALF!' cannot be used"),
    "a field that hides a method": (
        lambda: longspan.register(Reaching),
        "field 'reach' of mechanism Reaching hides AttentionConfig.reach; rename it",
    ),
    "a taken pattern": (lambda: longspan.register(_named("Window", EveryThird)), "there is a pattern 'window' already"),
    "per_head": (lambda: longspan.register(_named("PerHead", EveryThird)), "there is a pattern 'per_head' already"),
    "a keyword": (lambda: longspan.register(_named("Lambda", EveryThird)), "'lambda' cannot be used"),
    "twice": (
        lambda: [longspan.register(_named("Twice", EveryThird)) for _ in range(2)],
        "there is a pattern 'twice' already",
    ),
    "a taken mechanism": (
        lambda: longspan.register(type("Other", (LongformerConfig,), {})),
        "no frozen dataclass",
    ),
    "no head name": (lambda: longspan.register(_named("Plain", HeadSpec)), "head Plain has no 'head'"),
    "a taken head": (
        lambda: longspan.register(_named("Coref", Mood, head="coreference")),
        "there is a head 'coreference' already",
    ),
    "a taken model class": (
        lambda: longspan.register(_named("Twin", Mood, head="twin", model="LongspanForCoreference")),
        "as has the head 'coreference'",
    ),
    "a taken Auto class": (
        lambda: longspan.register(_named("Label", Mood, head="label", auto="AutoModelForSequenceClassification")),
        "has auto = 'AutoModelForSequenceClassification', as has the head 'sequence_classification'",
    ),
    "a name for a pattern": (lambda: longspan.register(EveryThird, name="third"), "name='third' is for readers"),
    "a data set": (lambda: longspan.register(letters, name="patents"), "there is a reader 'patents' already"),
    "a lambda without a name": (lambda: longspan.register(lambda split: iter(())), "'<lambda>' cannot be used"),
    "a path": (lambda: longspan.register(letters, name="../letters"), "cannot be used"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_registered_is_refused_in_one_sentence(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_registering_the_same_thing_again_is_nothing_new() -> None:
    assert longspan.register(longspan.register(EveryThird)) is EveryThird


def test_an_unregistered_pattern_is_named_where_its_text_is_needed() -> None:
    query = torch.randn(1, 1, 9, 4)
    longspan.attend(query, query, query, pattern=EveryThird(), backend="reference")
    with pytest.raises(InputError, match=r"EveryThird is not registered.*longspan.register\(EveryThird\)"):
        longspan.attend(query, query, query, pattern=First(1) | EveryThird(), backend="blocked")


PACKAGE = """
from dataclasses import dataclass
from typing import ClassVar

import longspan
from longspan import imports
from longspan.attention import Attention, AttentionConfig, LongformerConfig, ProjectedAttention
from longspan.attention.layers import receptive_field
from longspan.data.summaries.rows import SummaryRow
from longspan.patterns import Pattern
from longspan_documents.summaries.extraction import Extraction


@longspan.register
@dataclass(frozen=True)
class Diagonal(Pattern):
    width: int

    def visible(self, query_index, key_index):
        return (query_index - key_index).abs() <= self.width


@longspan.register
@dataclass(frozen=True, kw_only=True)
class HalfConfig(LongformerConfig):
    mechanism: ClassVar[str] = "half"
    right_tokens: int = 0


@longspan.register
@dataclass(frozen=True, kw_only=True)
class Headline(Extraction):
    name: ClassVar[str] = "headline"


@longspan.register
def letters(split):
    for number in range(6):
        sentences = [f"Letter {number} came in {split}.", "It was a long and very kind letter.", "Nobody answered it."]
        yield SummaryRow(id=str(number), pieces=(" ".join(sentences),), references=("It was very kind.",))
"""
RECIPE = """
name: own
task: {name: headline}
data: {train: [letters], validation: [letters]}
model:
  new: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  attention: {mechanism: half, left_tokens: 4}
tokenizer: {train: 300}
optimisation: {steps: 2, batch_size: 2, log_every: 1, evaluate_every: 2}
"""


def install(folder: Path, code: str, package: str = "letterbox") -> None:
    """A package as pip installs it: its code, and the metadata that announces its entry point."""
    (folder / f"{package}.py").write_text(code, encoding="utf-8")
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[longspan.plugins]\nall = {package}\n", encoding="utf-8")


def command(*arguments: str, site: Path) -> subprocess.CompletedProcess[str]:
    """Run `longspan` in a process of its own that finds packages in `site`."""
    script = site.parent / "command.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(site)!r})\nfrom longspan.cli import main\nsys.exit(main())\n"
    )
    return forked(1, script, *arguments)


@pytest.mark.slow
def test_an_installed_package_serves_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.chdir(tmp_path)
    install(site, PACKAGE)
    drawn = command("draw", "diagonal(3) | first(1)", "--tokens", "32", "--out", "own.png", site=site)
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "own.png").stat().st_size > 1000
    listed = command("mechanisms", "--json", site=site)
    assert "half" in [row["name"] for row in json.loads(listed.stdout)]
    (tmp_path / "own.yaml").write_text(RECIPE, encoding="utf-8")
    trained = command("train", "own.yaml", "--output", "run", site=site)
    assert trained.returncode == 0, trained.stderr
    (tmp_path / "note.txt").write_text(
        "One day it rained. Then it shone. People went out. They sang.", encoding="utf-8"
    )
    summary = command("summarize", "note.txt", "--model", "run", site=site)
    assert summary.returncode == 0, summary.stderr
    assert summary.stdout.strip()
    without = command("summarize", "note.txt", "--model", "run", site=tmp_path / "nowhere")
    assert without.returncode == 2
    assert without.stderr.count("\n") == 1
    assert "half" in without.stderr


BROKEN = {
    "cannot be imported": "import no_such_module_at_all",
    "raises": "raise RuntimeError('two\\nlines')",
    "exits": "raise SystemExit(0)",
    "has an error": "def (",
    "registers a taken name": "import longspan\nfrom longspan.patterns import Window, Pattern\n"
    "from dataclasses import dataclass\n@longspan.register\n@dataclass(frozen=True)\nclass Window(Pattern):\n"
    "    def visible(self, q, k): return q == k\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_named_in_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = "broken_" + name.replace(" ", "_")
    install(tmp_path, BROKEN[name], package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # and it is not silently passed over the second time
        assert main(["draw", "no_such_pattern(3)"]) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert package in error
        assert "repair or uninstall" in error
    # What the library has itself does not need it.
    assert main(["draw", "window(3)", "--tokens", "16", "--out", "window.png"]) == 0
