"""Run by torchrun: models whose rows are divided between the processes, beside the same models with whole rows.

Prints a JSON object, name of a case → how far loss, logits and gradients are from those of one process.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

sys.path.insert(0, str(Path(__file__).parents[4] / "tests/shared"))

from flat import flat
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.sequence_parallel import divide_sequence, part_of, whole_rows
from longspan.models.work import Choice
from longspan.ops import shards
from longspan.ops.shards import Shards
from longspan.planning.processes import check_processes, sent_for_rows
from longspan.planning.source import Planned
from longspan.stacks.block import CrossAttention

RELATIVE = {"mechanism": "full", "positions": "relative", "bias": False}
IDS = torch.randint(3, 61, (3, 53), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[1, 37:], MASK[2, :9] = 0, 0
LABELS = torch.where(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(2)) < 0.3, IDS % 5, -100)
LABELS = LABELS.masked_fill(MASK == 0, -100)
SIZES = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "dropout": 0.0}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 61, "init_std": 0.2, "num_labels": 5}
WINDOW = {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 4}
POOLED = {"mechanism": "poolingformer", "left_tokens": 3, "right_tokens": 3, "pooled_left_tokens": 9}
ETC = {"mechanism": "etc", "radius_tokens": 4, "clamp_tokens": 3, "hard_global_to_long": True}
OWNERS = torch.arange(53).expand(3, -1) // 20 - 1
"""To which of the tokens 5 and 40 each belongs, the first twenty to none."""
WRITER = {"is_encoder_decoder": True, "decoder_layers": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
WRITER |= {"decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 1}
STAR = {"intermediate_size": None}  # which it has not
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "window": (LongspanModel, {"attention": WINDOW}),
    "first global": (LongspanModel, {"attention": WINDOW, "global_tokens": "first"}),
    "positions skip padding": (
        LongspanModel,
        {"attention": WINDOW, "positions_skip_padding": True, "position_offset": 2},
    ),
    "sinusoids": (LongspanForTokenClassification, {"attention": WINDOW, "position_embedding": "sinusoidal"}),
    "linear": (LongspanForTokenClassification, {"attention": {"mechanism": "linear"}}),
    "layers": (
        LongspanForTokenClassification,
        {"attention": [{"layers": "0-1", **WINDOW}, {"layers": "2", "mechanism": "performer"}]},
    ),
    "single label": (LongspanForTokenClassification, {"attention": WINDOW, "num_labels": 1}),
    "text": (LongspanForCausalLM, {"attention": WINDOW}),
    "text of all before": (LongspanForCausalLM, {"attention": "full"}),
    "text in sums": (LongspanForCausalLM, {"attention": {"mechanism": "linear"}, "position_embedding": "sinusoidal"}),
    "text in layers": (
        LongspanForCausalLM,
        {
            "attention": [{"layers": "0", **WINDOW, "dilation": 2}, {"layers": "1-2", "mechanism": "performer"}],
            "cutoffs": [20, 40],
            "label_smoothing": 0.0,
        },
    ),
    "pools and a global": (LongspanForTokenClassification, {"attention": POOLED, "global_tokens": "first"}),
    "fusion and a global": (
        LongspanForTokenClassification,
        {"attention": {**POOLED, "mechanism": "fusion", "relative_span": 7}, "global_tokens": "first"},
    ),
    "summary tokens": (LongspanForTokenClassification, {"attention": ETC}),
    "star": (LongspanForTokenClassification, {"stack": {"stack": "star"}, **STAR}),
    "ring of a star": (
        LongspanForTokenClassification,
        {"stack": {"stack": "star", "variant": "fastnlp", "cyclic": True}, **STAR},
    ),
    "class by the relay": (LongspanForSequenceClassification, {"stack": {"stack": "star"}, **STAR}),
    "class by the first token": (LongspanForSequenceClassification, {"attention": WINDOW, "global_tokens": "first"}),
    "class by a pooler": (
        LongspanForSequenceClassification,
        {"attention": WINDOW, "pooler": True, "head": {"head": "sequence_classification", "layers": "pooler"}},
    ),
    "summaries": (LongspanForConditionalGeneration, {**WRITER, "attention": WINDOW, "global_tokens": "first"}),
    "masked tokens": (LongspanForMaskedLM, {"attention": WINDOW, "global_tokens": "first"}),
    "masked tokens, everything seen": (LongspanForMaskedLM, {"attention": "full"}),
    "everything seen, by distance": (LongspanForTokenClassification, {"attention": RELATIVE}),
    "class of everything seen": (LongspanForSequenceClassification, {"attention": "full"}),
    "summaries of everything seen": (LongspanForConditionalGeneration, {**WRITER, "attention": "full"}),
}
SHORT = 2
"""Tokens of rows of which some process gets none."""


def summed(tensors: Sequence[Tensor | None], like: Iterable[Tensor]) -> Tensor:
    """The sums over all processes, one behind the other: one exchange, for which each waits for every process."""
    total = flat(tensors, like)
    dist.all_reduce(total)
    return total


def grads_of(model: Module) -> Tensor:
    """The gradients of a whole model, one behind the other."""
    return flat([each.grad for each in model.parameters()], model.parameters())


def difference(name: str, tokens: int = 53, *, judge: int) -> float:
    """The largest distance of the loss, the states and the gradients, for the first tokens of the rows. One process,
    the judge, has the whole model read the rows, and compares; the others say 0."""
    kind, changes = CASES[name]
    torch.manual_seed(0)
    given = {name: value for name, value in {**SIZES, **changes}.items() if value is not None}
    part = kind(LongspanConfig(**given)).double()
    whole = copy.deepcopy(part) if dist.get_rank() == judge else None
    ids, mask, labels = IDS[:, :tokens], MASK[:, :tokens], LABELS[:, :tokens]
    batch, writes = {"input_ids": ids, "attention_mask": mask}, kind is LongspanForConditionalGeneration
    of_rows = writes or kind is LongspanForSequenceClassification
    if of_rows:
        # Targets as long as the sources, which are not divided for all that.
        batch["labels"] = labels if writes else torch.tensor([1, 0, 4])
    elif kind is not LongspanModel:
        batch["labels"] = labels.clamp(max=1) if changes.get("num_labels") == 1 else labels
    if name == "summary tokens":
        flags = torch.isin(torch.arange(tokens), torch.tensor([5, 40])) & mask.bool()
        owners = OWNERS[:, :tokens].clamp(max=flags.sum(1, keepdim=True) - 1)
        batch |= {"global_attention_mask": flags, "belongs_to": owners}
    options = {"only_masked": False} if kind is LongspanForMaskedLM else {}
    options |= {"output_hidden_states": True} if "cutoffs" in changes else {}  # with labels there are no logits then
    real = mask.bool()[:, :, None]

    def read(model: Any, given: dict[str, Tensor], here: Tensor) -> tuple[Tensor, Tensor]:
        output = model(**given, **options)
        states = output[0] if kind is LongspanModel else output.logits
        states = output.hidden_states[-1] if states is None else states
        loss = output.loss if kind is not LongspanModel else states.where(here, 0).square().sum()
        loss.backward()
        return loss.detach()[None], states.detach()

    divide_sequence(part)
    own = part_of(batch, whole=["labels"] * writes)
    loss, states = read(part, own, part_of({"input_ids": ids, "real": real})["real"])
    every = states if of_rows else whole_rows(states)
    sums = summed([loss, *(each.grad for each in part.parameters())], [loss, *part.parameters()])
    if whole is None:
        return 0.0
    expected, wanted = read(whole, batch, real)
    # A sum is one over all processes; the mean of a head is one of the losses of all of them.
    count = dist.get_world_size() if kind is not LongspanModel else 1
    distance = every - wanted if of_rows else (every - wanted).where(real, 0)
    apart = (sums[:1] / count - expected, distance, sums[1:] / count - grads_of(whole))
    return max(float(each.abs().max()) for each in apart)


PLANNED: dict[str, tuple[type, dict[str, Any]]] = {
    "encoder": (LongspanModel, {"attention": WINDOW, "global_tokens": "first"}),
    "encoder and decoder": (
        LongspanForConditionalGeneration,
        {**WRITER, "attention": WINDOW, "global_tokens": "first"},
    ),
    "sums and a decoder": (LongspanForConditionalGeneration, {**WRITER, "attention": {"mechanism": "linear"}}),
    "text": (LongspanForCausalLM, {"attention": WINDOW}),
    "stream": (LongspanForCausalLM, {"attention": WINDOW, "stack": {"stack": "recurrent", "memory_tokens": 5}}),
}
"""Models whose bytes are counted beside what a plan says."""


def sent_besides(name: str) -> float:
    """How many bytes the process in the middle sends in a forward pass of one row, less those that a plan counts."""
    kind, changes = PLANNED[name]
    torch.manual_seed(0)
    model, made = kind(LongspanConfig(**{**SIZES, **changes})).eval(), []
    divide_sequence(model)
    of = Shards.of

    def remembered(*arguments: Any) -> Shards:
        made.append(of(*arguments))
        return made[-1]

    batch, options = {"input_ids": IDS[:1]}, {}
    if kind is LongspanForConditionalGeneration:
        options = {"decoder_input_ids": IDS[:1, :11]}
    Shards.of = remembered  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with torch.no_grad():
            model(**part_of(batch), **options)
    finally:
        Shards.of = of
    beside = [module.processes for module in model.modules() if isinstance(module, CrossAttention)]
    sent = sum(sum(each.sent.values()) for each in (*made, *beside) if each is not None)
    processes = dist.get_world_size()
    choice = Choice(tokens=53, output_tokens=11, processes=processes, sequence=processes)
    planned = Planned(name=name, config=model.config, model_class=kind)
    check_processes(planned, choice)
    return float(sent - sent_for_rows(planned, choice)) if dist.get_rank() == processes // 2 else 0.0


SEGMENTS = (0, 23, 29, 53, 55, 63)
"""Where segments of a stream begin and end: shorter than a memory, and longer, and with fewer tokens than processes."""
PIECE = {"stack": "recurrent", "memory_tokens": 11}
COMPRESSED = {"compressed_tokens": 3, "rate": 2, "compression": "dilated"}
STREAMS: dict[str, dict[str, Any]] = {
    "Transformer-XL": {"attention": RELATIVE, "position_embedding": "none", "stack": PIECE},
    "keys of the same number": {"attention": RELATIVE, "stack": {**PIECE, "same_length": True}},
    "a window and dilated heads": {
        "attention": [{"layers": "0", **WINDOW}, {"layers": "1-2", **WINDOW, "dilation": [1, 3]}],
        "normalization": "pre",
        "stack": {**PIECE, "memory_tokens": 30},
    },
    "pools and sums": {
        "attention": [{"layers": "0", **POOLED}, {"layers": "1-2", "mechanism": "performer"}],
        "stack": PIECE,
    },
    "spans of each token": {
        "attention": {
            "mechanism": "adaptive_span",
            "span_tokens": 12,
            "ramp_tokens": 4,
            "dynamic": True,
            "span_penalty": 0.1,
        },
        "stack": {**PIECE, "memory_tokens": 13},
    },
    "states compressed by what queries gather": {
        "attention": RELATIVE,
        "position_embedding": "none",
        "stack": {**PIECE, "memory_tokens": 5, "compressed_tokens": 4},
    },
    "states compressed by what they hold": {
        "attention": WINDOW,
        "normalization": "pre",
        "stack": {**PIECE, **COMPRESSED, "compression_loss": "auto_encoding"},
    },
    "the greatest of each four": {
        "attention": "linear",
        "stack": {**PIECE, "compressed_tokens": 2, "rate": 4, "compression": "max"},
    },
}
"""Language models that read segment by segment."""


CUTS = ("even", "first", "last")
"""How segments are cut: into equal parts, or one token for each process but the first or the last."""


def part_of_segment(batch: dict[str, Tensor], cut: str) -> dict[str, Tensor]:
    """This process's part of a segment: equal ones, or one token for each but the first or the last."""
    length, rank, last = next(iter(batch.values())).shape[1], dist.get_rank(), dist.get_world_size() - 1
    if cut == "even" or length <= last:
        return part_of(batch)
    first = rank + (length - last - 1 if rank and cut == "first" else 0)
    end = length if rank == last else rank + 1 + (length - last - 1 if cut == "first" else 0)
    return {name: each[:, first:end] for name, each in batch.items()}


def streamed(name: str, cut: str, *, training: bool, judge: int) -> float:
    """The largest distance of losses, logits, memories, and the sum of all gradients of a stream, as `difference`."""
    torch.manual_seed(0)
    sizes = {**SIZES, "max_position_embeddings": 71, **STREAMS[name]}
    part, count = LongspanForCausalLM(LongspanConfig(**sizes)).double().train(training), dist.get_world_size()
    whole = copy.deepcopy(part) if dist.get_rank() == judge else None
    divide_sequence(part)
    ids = torch.randint(3, 61, (2, 64), generator=torch.Generator().manual_seed(3))
    labels = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)) < 0.7, ids, -100)
    memories: dict[Any, Any] = {part: None} if whole is None else {part: None, whole: None}
    differences: list[Tensor] = []
    for first, end in pairwise(SEGMENTS):
        batch = {"input_ids": ids[:, first:end], "shift_labels": labels[:, first + 1 : end + 1]}
        outputs: dict[Any, Any] = {}
        for model, memory in memories.items():
            given = batch if model is whole else part_of_segment(batch, cut)
            with torch.set_grad_enabled(training):
                outputs[model] = output = model(**given, cache=memory, use_cache=True)
            if training:
                output.loss.backward()
            assert all(each.get_seq_length() == end for each in output.cache.layers)
        memories = {model: output.cache for model, output in outputs.items()}
        total, logits = outputs[part].loss.detach().clone(), whole_rows(outputs[part].logits)
        dist.all_reduce(total)
        if whole is None:
            continue
        differences += [total / count - outputs[whole].loss, logits - outputs[whole].logits]
        if training:  # else one process holds keys and values
            pairs = zip(memories[part].layers, memories[whole].layers, strict=True)
            differences += [ours.hidden - theirs.hidden for ours, theirs in pairs]
    if training:
        sums = summed([each.grad for each in part.parameters()], part.parameters())
        differences += [] if whole is None else [sums / count - grads_of(whole)]
    return max((float(each.detach().abs().max()) for each in differences), default=0.0)


def written() -> dict[str, float]:
    """How many tokens of what is generated differ from those of one process; the largest distance between logits of the
    processes where training drops some of their states; and whether other targets are refused."""
    torch.manual_seed(0)
    config = LongspanConfig(**{**SIZES, **WRITER, "attention": WINDOW, "dropout": 0.3, "attention_dropout": 0.3})
    whole = LongspanForConditionalGeneration(config).double().eval()
    part, batch = copy.deepcopy(whole), {"input_ids": IDS, "attention_mask": MASK}
    divide_sequence(part)
    wrong = 0.0
    for options in ({}, {"num_beams": 3}):
        options |= {"max_new_tokens": 9, "do_sample": False}
        expected, found = whole.generate(**batch, **options), part.generate(**part_of(batch), **options)
        wrong += float((found != expected).sum()) if found.shape == expected.shape else torch.inf
    torch.manual_seed(dist.get_rank())
    logits = part.train()(**part_of(batch), decoder_input_ids=IDS[:, :7]).logits.detach()
    every = whole_rows(logits[:, None])
    try:
        part(**part_of(batch), decoder_input_ids=IDS[:, :7] + dist.get_rank())
        refused = 0.0
    except InputError:
        refused = 1.0
    return {
        "tokens generated": wrong,
        "processes apart": float((every - logits[:, None]).abs().max()),
        "other targets": 1 - refused,
    }


def main() -> None:
    dist.init_process_group("gloo")
    shards.PAIRS = 64  # so that decoders read their sources some queries at a time
    processes, judges = dist.get_world_size(), cycle(range(dist.get_world_size()))
    found = {name: difference(name, judge=next(judges)) for name in CASES} | written()
    found |= {f"{name}, {SHORT} tokens": difference(name, SHORT, judge=next(judges)) for name in CASES}
    # Each stream trains under one of the cuts, and each cut is trained with some of the streams.
    for (number, name), (trained, cut) in product(enumerate(STREAMS), enumerate(CUTS)):
        training = number % len(CUTS) == trained
        found[f"{name}, {cut}, {training}"] = streamed(name, cut, training=training, judge=next(judges))
    for name in PLANNED:
        difference_there = torch.tensor(sent_besides(name))
        dist.all_reduce(difference_there)
        found[f"bytes of {name}"] = abs(float(difference_there))
    every: list[Any] = [None] * processes
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps({name: max(each[name] for each in every) for name in found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
