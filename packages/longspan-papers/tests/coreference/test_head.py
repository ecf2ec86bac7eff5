"""Span ranking against an oracle in loops: every span, every antecedent, losses and gradients; batches and pieces."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCoreference
from longspan.models.pieces import cut
from longspan_papers.coreference import ranking
from longspan_papers.coreference import spans as span_vectors
from longspan_papers.coreference.ranking import bucket
from longspan_papers.coreference.spans import without_crossing

WORDS, WIDTH = 11, 3
# Words of one to three tokens behind a first token that belongs to none; sentences of four, five and two words.
WORD_IDS = torch.tensor([[-1, 0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 8, 9, 10, 10, -1]])
SENTENCES = torch.tensor([[-1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, -1]])
SPEAKERS = torch.tensor([[-1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1]])
IDS = torch.randint(3, 37, WORD_IDS.shape, generator=torch.Generator().manual_seed(0))
GIVEN = {"word_ids": WORD_IDS, "sentence_ids": SENTENCES, "speaker_ids": SPEAKERS}
LABELS = torch.tensor([[[0, 1, 7], [4, 4, 7], [9, 10, 7], [2, 2, 3], [6, 8, 3], [5, 5, 9], [3, 4, 3], [-1, -1, -1]]])
"""Two clusters, one mention alone, and one mention over two sentences, which cannot be found."""


def make(**head) -> LongspanForCoreference:
    torch.manual_seed(1)
    options = {"span_width": WIDTH, "spans_per_word": 0.7, "antecedents": 3, "hidden_width": 7, "feature_width": 5}
    config = LongspanConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        attention={"mechanism": "full"},
        dropout=0.0,
        init_std=0.3,
        head={"head": "coreference", "dropout": 0.0, **options, **head},
    )
    return LongspanForCoreference(config).double().eval()


def oracle(model: LongspanForCoreference, hidden: torch.Tensor, labels: list[list[int]] | None):
    """Kept spans, antecedents with their scores, and the loss, as the formulas of the module read."""
    options = model.options

    def of_word(word: int, ids: torch.Tensor) -> int:
        return int(ids[0, WORD_IDS[0] == word][0])

    words = [hidden[WORD_IDS[0] == word].mean(0) for word in range(WORDS)]
    spans = [
        (start, end)
        for start, end in product(range(WORDS), repeat=2)
        if 0 <= end - start < WIDTH and of_word(start, SENTENCES) == of_word(end, SENTENCES)
    ]

    def vector(start: int, end: int) -> torch.Tensor:
        inside = torch.stack(words[start : end + 1])
        weights = torch.stack([model.spans.attention(word)[0] for word in inside]).softmax(0)
        mean = sum(weight * word for weight, word in zip(weights, inside, strict=True))
        return torch.cat([words[start], words[end], mean, model.spans.widths.weight[end - start]])

    def score(span: tuple[int, int]) -> torch.Tensor:
        return model.mention_scorer(vector(*span))

    kept = sorted(sorted(spans, key=lambda span: -score(span).item())[: math.ceil(options.spans_per_word * WORDS)])
    vectors, mention = [vector(*span) for span in kept], [score(span) for span in kept]

    def pairs(vectors: list[torch.Tensor]) -> list[dict[int, torch.Tensor]]:
        found = []
        for i, g in enumerate(vectors):
            coarse, whole = {}, {}
            for j in range(i):
                distance = bucket(torch.tensor(i - j))
                product_ = vectors[j] @ model.coarse(g) / math.sqrt(len(g))
                coarse[j] = product_ + mention[i] + mention[j] + model.prior(distance)[0]
                one, other = (of_word(kept[k][0], SPEAKERS) for k in (i, j))
                speaker = torch.tensor(0 if -1 in (one, other) else 1 if one == other else 2)
                network = model.pair_scorer
                features = torch.cat([network.distance(distance), network.speaker(speaker)])
                joint = torch.cat([g, vectors[j], g * vectors[j], features])
                parts = (network.left, network.right, network.both, network.features)
                weight = torch.cat([part.weight for part in parts], 1)
                whole[j] = coarse[j] + network.rest((weight @ joint + network.left.bias).relu())
            best = sorted(coarse, key=lambda j: -coarse[j].item())[: options.antecedents]
            found.append({j: whole[j] for j in best})
        return found

    found = pairs(vectors)
    for _ in range(options.refinements):
        refined = []
        for g, scores in zip(vectors, found, strict=True):
            chances = torch.stack([torch.zeros_like(mention[0]), *scores.values()]).softmax(0)
            mean = chances[0] * g + sum(c * vectors[j] for c, j in zip(chances[1:], scores, strict=True))
            share = model.gate(torch.cat([g, mean])).sigmoid()
            refined.append(share * g + (1 - share) * mean)
        vectors = refined
        found = pairs(vectors)
    if labels is None:
        return kept, found, None
    cluster = {(start, end): number for start, end, number in labels if (start, end) in spans}
    losses = []
    for span, scores in zip(kept, found, strict=True):
        chances = torch.stack([torch.zeros_like(mention[0]), *scores.values()]).softmax(0)
        right = [1 + n for n, j in enumerate(scores) if span in cluster and cluster.get(kept[j]) == cluster[span]]
        losses.append(-chances[right or [0]].sum().log())
    loss = torch.stack(losses).mean()
    if options.singletons:
        wrong = [m for m, span in zip(mention, kept, strict=True) if span not in cluster]
        terms = [-score(span).sigmoid().log() for span in cluster] + [-(-m).sigmoid().log() for m in wrong]
        loss = loss + torch.stack(terms).mean()
    return kept, found, loss


@pytest.mark.parametrize(
    "head",
    [{}, {"singletons": True, "hidden_layers": 2}, {"refinements": 2}, {"antecedents": 50}, {"spans_per_word": 9.0}],
)
def test_it_is_the_oracle_in_outputs_loss_and_gradients(head: dict) -> None:
    model = make(**head)
    output = model(IDS, **GIVEN, labels=LABELS)
    hidden = model.model(IDS).last_hidden_state[0]
    kept, pairs, loss = oracle(model, hidden, LABELS[0, :-1].tolist())
    count = len(kept)
    assert [
        *zip(output.mention_starts[0, :count].tolist(), output.mention_ends[0, :count].tolist(), strict=True)
    ] == kept
    assert (output.mention_starts[0, count:] == -1).all()
    for row, scores in enumerate(pairs):
        there = output.antecedents[0, row] >= 0
        assert output.antecedents[0, row, there].tolist() == list(scores)
        found = output.antecedent_scores[0, row, 1:][there].double()
        # Scores are made in float32, whatever the model's precision.
        torch.testing.assert_close(
            found, torch.stack([*scores.values(), found.new_zeros(())])[:-1], atol=1e-4, rtol=1e-5
        )
    torch.testing.assert_close(output.loss.double(), loss, atol=1e-5, rtol=1e-5)
    weights = dict(model.named_parameters())
    wanted = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    actual = torch.autograd.grad(output.loss, list(weights.values()), allow_unused=True)
    for name, one, other in zip(weights, wanted, actual, strict=True):
        if one is None:
            assert other is None or not other.any(), name
        else:
            torch.testing.assert_close(other, one, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_pieces_of_spans_and_mentions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(spans_per_word=2.0, refinements=1, singletons=True)

    def run() -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        output = model(IDS, **GIVEN, labels=LABELS)
        return dict(output), torch.autograd.grad(output.loss, [*model.parameters()], allow_unused=True)

    whole, gradients = run()
    monkeypatch.setattr(ranking, "MENTIONS_AT_ONCE", 3)
    monkeypatch.setattr(ranking, "WORDS_AT_ONCE", 4)
    pieces, others = run()
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients, others, strict=True):
        if one is not None:
            torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)
    assert span_vectors.WORDS_AT_ONCE == 256


def test_a_batch_is_the_mean_of_its_documents() -> None:
    model = make(singletons=True)
    short = {name: value[:, :8] for name, value in GIVEN.items()}
    one = model(IDS, **GIVEN, labels=LABELS)
    two = model(IDS[:, :8], **short, labels=LABELS[:, [0, 3]])

    def filled(value: torch.Tensor, filler: int) -> torch.Tensor:
        return torch.cat([value, value.new_full((1, IDS.shape[1] - value.shape[1]), filler)], 1)

    batch = {name: torch.cat([GIVEN[name], filled(short[name], -1)]) for name in GIVEN}
    mask = torch.cat([torch.ones_like(IDS), filled(torch.ones_like(IDS[:, :8]), 0)])
    labels = torch.full((2, LABELS.shape[1], 3), -1)
    labels[0], labels[1, :2] = LABELS[0], LABELS[0, [0, 3]]
    both = model(torch.cat([IDS, filled(IDS[:, :8], 1)]), mask, **batch, labels=labels)
    torch.testing.assert_close(both.loss, (one.loss + two.loss) / 2)
    for name, value in two.items():
        if name != "loss":
            shared = both[name][1][tuple(slice(size) for size in value.shape[1:])]
            torch.testing.assert_close(shared, value[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1])
def test_almost_nothing_has_no_mentions_and_no_loss(tokens: int) -> None:
    model = make()
    ids = torch.zeros(1, tokens, dtype=torch.long)
    output = model(ids, word_ids=ids - 1, labels=torch.full((1, 0, 3), -1))
    assert output.loss == 0
    assert (output.mention_starts == -1).all()
    one = model(ids, word_ids=ids, labels=torch.zeros(1, 1, 3, dtype=torch.long))
    assert one.loss == 0
    assert (one.mention_starts >= 0).sum() == tokens


def test_no_two_kept_spans_cross() -> None:
    scores = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(3))
    reach = torch.arange(9)[:, None] + torch.arange(4) < 9
    scores = scores.masked_fill(~reach, float("-inf"))
    places, kept = without_crossing(scores, torch.tensor([20, 5]), 20)
    for row in range(2):
        taken: list[tuple[int, int]] = []
        for index in scores[row].flatten().argsort(descending=True).tolist():
            start, end = index // 4, index // 4 + index % 4
            clash = any(a < start <= b < end or start < a <= end < b for a, b in taken)
            if end < 9 and not clash and len(taken) < (20, 5)[row]:
                taken.append((start, end))
        found = places[row, kept[row]]
        assert [(index // 4, index // 4 + index % 4) for index in found.tolist()] == taken
    model = make(crossing=False, spans_per_word=9.0)
    output = model(IDS, **GIVEN, labels=LABELS)
    spans = zip(output.mention_starts[0].tolist(), output.mention_ends[0].tolist(), strict=True)
    spans = [pair for pair in spans if pair[0] >= 0]
    assert len(spans) >= WORDS
    assert not [(one, other) for one, other in product(spans, repeat=2) if one[0] < other[0] <= one[1] < other[1]]
    output.loss.backward()


def test_segments_do_not_see_each_other_and_end_with_sentences() -> None:
    model = make(segment_tokens=9)
    assert cut(SENTENCES[0].tolist(), 9) == [(0, 8), (8, 17), (17, 18)]
    changed = IDS.clone()
    changed[0, 9] = 36 - changed[0, 9]
    inputs = {"input_ids": IDS, "attention_mask": None}
    before, after = (model.encode({**inputs, "input_ids": ids}, GIVEN).last_hidden_state[0] for ids in (IDS, changed))
    same = (before == after).all(-1)
    assert same[:8].all()
    assert same[17:].all()
    assert not same[8:17].any()
    torch.testing.assert_close(before[8:17], model.model(IDS[:, 8:17]).last_hidden_state[0])
    mask = torch.ones_like(IDS)
    mask[:, 12:] = 0
    short = model.encode({**inputs, "attention_mask": mask}, GIVEN).last_hidden_state[0]
    torch.testing.assert_close(short[8:12], model.model(IDS[:, 8:12]).last_hidden_state[0])
    assert not short[12:].any()
    # What is longer than the model has positions for is read in segments of that many.
    longer = torch.arange(150)[None] % 30 + 3
    output = make()(longer, word_ids=torch.arange(150)[None])
    assert output.mention_starts.max() > 128
    assert cut([0] * 20, 9) == [(0, 9), (9, 18), (18, 20)]
    with pytest.raises(InputError, match="output_hidden_states is set, but a document of more than 9 tokens"):
        model(IDS, **GIVEN, output_hidden_states=True)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return made


def test_memory_grows_with_the_mentions_kept_and_not_with_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MENTIONS_AT_ONCE", 4)
    model = make(antecedents=2).float()
    sizes = []
    for words in (149, 298):
        hidden = torch.randn(1, words, 16)
        ids = torch.arange(words)[None]
        encoded = type("Encoded", (), {"last_hidden_state": hidden})()
        with Largest() as seen:
            model.predict(encoded, None, word_ids=ids, labels=torch.tensor([[[0, 1, 0], [5, 5, 0]]])).loss.backward()
        sizes.append(seen.elements)
    assert sizes[1] <= 2.05 * sizes[0]
    assert sizes[1] < 0.7 * 298 * 298


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "word_ids is missing"),
        ({"word_ids": WORD_IDS[:, 1:]}, "word_ids has shape"),
        ({"word_ids": WORD_IDS, "labels": LABELS[0]}, r"labels has shape \(8, 3\); give \(documents, mentions, 3\)"),
        ({"word_ids": WORD_IDS, "max_words": 5}, "word_ids counts 11 words but max_words=5"),
    ],
)
def test_wrong_inputs(given: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()(IDS, **given)


def test_buckets() -> None:
    wanted = {0: 0, 1: 1, 4: 4, 5: 5, 7: 5, 8: 6, 15: 6, 16: 7, 31: 7, 32: 8, 63: 8, 64: 9, 9999: 9}
    assert bucket(torch.tensor(list(wanted))).tolist() == list(wanted.values())
