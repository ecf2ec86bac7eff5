"""Noise by its properties: what it may change, what it must leave, and that it repeats."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.turns import Turn, text_of
from longspan.errors import InputError
from longspan_papers.dialogue.noises import (
    NOISES,
    NoiseConfig,
    infill,
    mask_speakers,
    merge_turns,
    permute_turns,
    split_turn,
)
from longspan_papers.dialogue.noising import Noised, choose_window, disturb, noise, words_of_line

OFF = dict.fromkeys(NOISES.values(), 0.0)
SENTENCES = (
    "Yes.",
    "I think so.",
    "What do you mean?",
    "No idea at all",
    "He said “no.” Then he left.",
    "e.g. this one.",
)
TURNS = st.lists(
    st.builds(
        lambda speaker, parts: Turn(speaker, " ".join(parts)),
        st.sampled_from(("Ann", "Bob", "R2:D2", "Dr: Smith:", "")),
        st.lists(st.sampled_from((*SENTENCES, "")), max_size=5),
    ),
    min_size=1,
    max_size=24,
)
SEEDS = st.integers(0, 2**32)
CONFIGS = st.builds(
    NoiseConfig,
    window_share=st.sampled_from((0.05, 0.3, 1.0)),
    window_most=st.sampled_from((1, 9, 512)),
    split_by=st.sampled_from(("sentences", "words")),
    infill_by=st.sampled_from(("budget", "starts")),
    infill_share=st.sampled_from((0.0, 0.15, 0.5, 1.0)),
    span_mean=st.sampled_from((0.5, 3.0)),
    markers=st.booleans(),
)


def words(turns) -> list[str]:
    return [word for turn in turns for word in turn.words]


def noised(turns, seed: int, config: NoiseConfig) -> Noised:
    return noise(turns, Random(seed), config)


@given(TURNS, SEEDS, CONFIGS)
def test_only_the_window_changes_and_is_the_target(turns, seed, config) -> None:
    source, target, trace = noised(turns, seed, config)
    first, end = trace.window
    assert target == text_of(turns[first:end])
    lines = source.split("\n")
    assert lines[:first] == [turn.line for turn in turns[:first]]
    assert lines[len(lines) - len(turns) + end :] == [turn.line for turn in turns[end:]]
    assert len(lines) == len(turns) - (end - first) + len(trace.turns)
    assert noised(turns, seed, config) == (source, target, trace)


@given(TURNS, SEEDS, st.booleans())
def test_without_noise_the_dialogue_is_as_it_was(turns, seed, markers) -> None:
    source, _, trace = noised(turns, seed, NoiseConfig(**OFF, markers=markers))
    if markers:
        lines = source.split("\n")
        first, end = trace.window
        assert lines[first].startswith("[start] ")
        assert lines[end - 1].endswith(" [end]")
        lines[first] = lines[first].removeprefix("[start] ")
        lines[end - 1] = lines[end - 1].removesuffix(" [end]")
        source = "\n".join(lines)
    assert source == text_of(turns)


@given(TURNS, SEEDS, CONFIGS)
def test_the_window_is_as_long_as_it_may_be(turns, seed, config) -> None:
    first, end = choose_window(turns, Random(seed), config)
    sizes = [words_of_line(turn.line) for turn in turns]
    limit = min(config.window_most, max(1, int(config.window_share * sum(sizes))))
    assert 0 <= first < end <= len(turns)
    length = sum(sizes[first:end])
    if min(sizes) > limit:
        assert end == first + 1
    else:
        assert length <= limit
        assert end == len(turns) or length + sizes[end] > limit
        if any(size <= limit and sum(sizes[i:]) >= limit for i, size in enumerate(sizes)):
            assert sum(sizes[first:]) >= limit


@given(TURNS, SEEDS, st.sampled_from((0.0, 0.3, 1.0)))
def test_a_share_of_the_speakers_is_masked(turns, seed, share) -> None:
    found, masked = mask_speakers(turns, Random(seed), NoiseConfig(speaker_share=share))
    named = [index for index, turn in enumerate(turns) if turn.speaker]
    assert set(masked) <= set(named)
    assert abs(len(masked) - share * len(named)) < 1
    for index, (before, after) in enumerate(zip(turns, found, strict=True)):
        assert after.text == before.text
        assert after.speaker == ("[MASK_SPEAKER]" if index in masked else before.speaker)


@given(TURNS, SEEDS, st.sampled_from(("sentences", "words")))
def test_splitting_keeps_the_words_and_the_first_speaker(turns, seed, split_by) -> None:
    found, split = split_turn(turns, Random(seed), NoiseConfig(split_by=split_by))
    assert words(found) == words(turns)
    if split is None:
        assert found == turns
    else:
        chosen, count = split
        assert count >= 2
        assert len(found) == len(turns) + count - 1
        speakers = [turn.speaker for turn in found[chosen : chosen + count]]
        assert speakers == [turns[chosen].speaker] + ["[MASK_SPEAKER]"] * (count - 1)
        assert found[:chosen] + found[chosen + count :] == turns[:chosen] + turns[chosen + 1 :]


@given(TURNS, SEEDS)
def test_merging_keeps_the_words_and_drops_names(turns, seed) -> None:
    found, merged = merge_turns(turns, Random(seed), NoiseConfig())
    assert words(found) == words(turns)
    if merged is None:
        assert len(turns) == 1
    else:
        start, count = merged
        assert count >= 2
        speakers = [turn.speaker for turn in turns]
        assert [turn.speaker for turn in found] == speakers[: start + 1] + speakers[start + count :]


@given(TURNS, SEEDS, CONFIGS)
def test_infilling_hides_spans_within_turns(turns, seed, config) -> None:
    found, spots = infill(turns, Random(seed), config)
    assert [turn.speaker for turn in found] == [turn.speaker for turn in turns]
    total, hidden = len(words(turns)), sum(length for _, _, length in spots)
    if config.infill_by == "budget":
        assert config.infill_share * total - 1e-9 <= hidden < config.infill_share * total + 1
    for index, (before, after) in enumerate(zip(turns, found, strict=True)):
        own = [(first, length) for turn, first, length in spots if turn == index]
        assert all(first >= 0 and first + length <= len(before.words) for first, length in own)
        gone = [place for first, length in own for place in range(first, first + length)]
        assert len(gone) == len(set(gone))
        kept = [word for place, word in enumerate(before.words) if place not in gone]
        assert [word for word in after.words if word != config.mask] == kept
        assert after.words.count(config.mask) == len(own)


@given(TURNS, SEEDS)
def test_permuting_keeps_the_turns(turns, seed) -> None:
    found, order = permute_turns(turns, Random(seed), NoiseConfig())
    assert Counter(found) == Counter(turns)
    assert found == [turns[index] for index in order]


@given(TURNS, SEEDS, CONFIGS)
def test_exactly_one_of_splitting_and_merging(turns, seed, config) -> None:
    trace = disturb(turns, Random(seed), config, first=7)
    assert trace.split is None or trace.merged is None
    if len(turns) == 1:
        assert trace.merged is None
    assert sorted({place for start, end in trace.origins for place in range(start, end)}) == [*range(7, 7 + len(turns))]
    assert len(trace.turns) == len(trace.origins) == len(trace.order)


def test_it_does_what_it_should_on_average() -> None:
    turns = [Turn("AB"[i % 2], "one two three. four five six. seven eight nine ten.") for i in range(20)]
    paper, script = (NoiseConfig.published(name, window_share=1.0) for name in ("paper", "script"))
    traces = [disturb(turns, Random(seed), paper) for seed in range(400)]
    assert all(len(trace.masked) == 10 for trace in traces)
    assert 160 < sum(trace.split is not None for trace in traces) < 240
    assert (
        3.0
        < sum(trace.merged[1] for trace in traces if trace.merged) / sum(trace.merged is not None for trace in traces)
        < 3.4
    )
    spots = [spot for trace in traces for spot in trace.hidden]
    assert 0.03 < sum(length == 0 for _, _, length in spots) / len(spots) < 0.08  # e^−3 is 0.05
    hidden = [sum(length for *_, length in infill(turns, Random(seed), script)[1]) / 200 for seed in range(200)]
    assert 0.18 < sum(hidden) / 200 < 0.26  # the script's own: a quarter, less what the ends of turns cut off


def test_settings_by_name() -> None:
    assert NoiseConfig.published() == NoiseConfig()
    script = NoiseConfig.published("script", permute=0.0)
    assert (script.window_share, script.window_most, script.infill_by) == (0.2, 450, "starts")
    assert script.speaker_mask == script.mask
    assert NoiseConfig.published(**NoiseConfig().without("merge", "permute")).split == 1.0
    assert NoiseConfig.published(**NoiseConfig().without("split", "merge")).split == 0.0
    for wrong, sentence in (
        (lambda: NoiseConfig.published("papers"), "setting='papers' is unknown"),
        (lambda: NoiseConfig().without("speaker"), "noise 'speaker' is unknown"),
        (lambda: NoiseConfig(split=0.7), "are more than 1 together"),
        (lambda: NoiseConfig(span_mean=0), "span_mean=0 is below 0.1"),  # which never came to its end
        (lambda: NoiseConfig(mask="a b"), "a token without white space"),
        (lambda: noise([], Random(1)), "turns is empty"),
    ):
        with pytest.raises(InputError, match=sentence):
            wrong()
    turns = [Turn("Ann", "one two three four")] * 9
    for config in (NoiseConfig.published("script", span_mean=0), NoiseConfig(span_mean=0, infill_share=0)):
        assert not any(length for *_, length in noise(turns, Random(1), config).trace.hidden)


def test_a_turn_longer_than_any_window_is_one() -> None:
    turns = [Turn("Ann", "word " * 40), Turn("Bob", "word " * 40)]
    source, target, trace = noise(turns, Random(3), NoiseConfig(window_most=5, **OFF, markers=False))
    assert source == text_of(turns)
    assert target == turns[trace.window[0]].line
