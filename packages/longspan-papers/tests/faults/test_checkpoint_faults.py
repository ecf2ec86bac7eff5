"""Checkpoint folders that are broken, hostile or simply wrong: every verb that opens one refuses them in a sentence."""

from __future__ import annotations

import json
import math
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from longspan.checkpoints.folder import check_model_folder
from longspan.errors import InputError
from longspan.model_files import read_header, read_json

NULL = "<null>"
"""What the harness writes as null."""
TEXT = "A first sentence stands here. A second one follows it. A third ends it."
SUMMARIZE = ["summarize", "a.txt", "--model", "model"]
ANSWER = ["answer", "a.txt", "What stands here?", "--model", "model"]
LENGTHEN = ["lengthen", "./model", "--attention", "longformer", "--max-tokens", "128", "--output", "out"]
EVALUATE = ["evaluate", "model", "--data", "synthetic"]
TRAIN = ["train", "recipe.yaml", "--output", "run"]
VERBS = {
    "summarize": {"run": SUMMARIZE, "checkpoint": "bart", "files": {"a.txt": TEXT}},
    "answer": {"run": ANSWER, "checkpoint": "reader", "files": {"a.txt": TEXT}},
    "lengthen": {"run": LENGTHEN, "checkpoint": "roberta"},
    "evaluate": {"run": EVALUATE, "checkpoint": "bart"},
    "train": {"run": TRAIN, "checkpoint": "scorer", "recipe": {"model": {"from": "model"}, "tokenizer": None}},
}
BART = VERBS["summarize"]
ROBERTA = VERBS["lengthen"]
READER = VERBS["answer"]
SCORER = {"run": SUMMARIZE, "checkpoint": "scorer", "files": {"a.txt": TEXT}}

READS: list[dict[str, Any]] = [{"answer_types": wrong} for wrong in (3, "x", NULL)]
READS += [{"loss_weights": wrong} for wrong in ([1], "abcd", 7)]
# Field by field: a checkpoint, a field of its config.json, values that no model can have.
CONFIG_FIELDS: list[tuple[str, dict[str, Any], str, list[Any]]] = [
    ("bart", BART, "d_model", [NULL, "x", 0, -1, 10**9, 1.5, [], float("nan")]),
    ("bart", BART, "vocab_size", ["300", 0, 10**12, 10**23]),
    ("bart", BART, "encoder_layers", [-1, 10**9, True, {}]),
    ("bart", BART, "decoder_attention_heads", [0, 10**9, "", 2.0]),
    ("bart", BART, "decoder_ffn_dim", [0, 10**9, [64]]),
    ("bart", BART, "max_position_embeddings", [0, -64, 10**9, "x"]),
    ("bart", BART, "pad_token_id", [-1, 300, "1", 1.0]),
    ("bart", BART, "decoder_start_token_id", [300, -1, [2]]),
    ("bart", BART, "dropout", ["", -0.1, 7, float("inf")]),
    ("bart", BART, "activation_function", ["gleu", "", 3, NULL]),
    ("bart", BART, "tie_word_embeddings", ["yes", 1]),
    ("bart", BART, "num_labels", [0, 10**9]),
    ("bart", BART, "id2label", [[], {"x": "y"}, {"0": 1}]),
    ("roberta", ROBERTA, "architectures", ["RobertaForMaskedLM", [7], ["os.system"], {}]),
    ("roberta", ROBERTA, "model_type", [NULL, 7, "", "llama", "../x", "9" * 5000]),
    ("roberta", ROBERTA, "dtype", ["float99", "float8_e4m3fn", 16, "", "__class__"]),
    ("roberta", ROBERTA, "torch_dtype", ["int8", []]),
    ("roberta", ROBERTA, "quantization_config", [{"quant_method": "bitsandbytes"}, {}, "x"]),
    ("roberta", ROBERTA, "attn_implementation", [7, "", "kernels-community/flash", {}]),
    ("roberta", ROBERTA, "hidden_act", [True, "swoosh"]),
    ("roberta", ROBERTA, "num_attention_heads", [5, 0]),
    ("roberta", ROBERTA, "layer_norm_eps", [0, -1, "1e-5"]),
    ("roberta", ROBERTA, "position_embedding_type", ["relative_key", 3]),
    ("roberta", ROBERTA, "is_decoder", [True, "no"]),
    ("roberta", ROBERTA, "chunk_size_feed_forward", [-1, "x"]),
    ("roberta", ROBERTA, "auto_map", [7, []]),
    ("roberta", ROBERTA, "per_layer_config", [1.5]),
    ("reader", READER, "hidden_size", [0, 10**9, "x"]),
    ("reader", READER, "attention", ["nothing", 7, [], {"mechanism": "full", "left": 3}, [["full"]]]),
    ("reader", READER, "max_global_tokens", [-1, "all"]),
    ("reader", READER, "head", ["nothing", 7, {}, *({"head": "natural_questions", **wrong} for wrong in READS)]),
    ("reader", READER, "head", [{"head": "sentence_scoring", "layers": wrong} for wrong in (10**9, -1)]),
]
GENERATION_FIELDS = {
    "num_beams": [0, -1, 10**9, "x", 1.5, []],
    "max_length": [0, "20", 1.5],
    "length_penalty": ["x", []],
    "no_repeat_ngram_size": [-1, "x"],
    "early_stopping": ["sometimes", 7],
    "eos_token_id": ["x", [[2]], -1],
    "do_sample": ["yes"],
    "temperature": [0, "hot"],
    "return_dict_in_generate": [True],
}
TOKENIZER_FIELDS = {
    "tokenizer_class": [7, []],
    "pad_token": [7, {"a": 1}],
    "added_tokens_decoder": [7, {"x": 3}],
    "model_max_length": ["long", -1],
    "padding_side": ["top"],
    "model_input_names": ["input_ids", 7],
    "auto_map": [7],
}
TOKENIZER_PARTS = {
    "model": [NULL, {}, 7],
    "normalizer": [True],
    "added_tokens": [[7], "x"],
    "decoder": ["x"],
    "version": [7],
}


def shown(value: Any) -> str:
    return "null" if value is NULL else repr(value)[:24]


def field_cases() -> dict[str, dict[str, Any]]:
    cases = {}
    for name, verb, field, values in CONFIG_FIELDS:
        for value in values:
            cases[f"{name}: {field}={shown(value)}"] = {
                **verb,
                "edit": {"model/config.json": {field: value}},
                "says": "",
            }
    for field, values in GENERATION_FIELDS.items():
        for value in values:
            edit = {"model/generation_config.json": {field: value}}
            cases[f"generation: {field}={shown(value)}"] = {**BART, "edit": edit, "says": field}
    for field, values in TOKENIZER_FIELDS.items():
        for value in values:
            edit = {"model/tokenizer_config.json": {field: value}}
            cases[f"tokenizer config: {field}={shown(value)}"] = {**SCORER, "edit": edit, "says": "tokenizer"}
    for field, values in TOKENIZER_PARTS.items():
        for value in values:
            edit = {"model/tokenizer.json": {field: value}}
            cases[f"tokenizer: {field}={shown(value)}"] = {**SCORER, "edit": edit, "says": "tokenizer"}
    return cases


@pytest.mark.parametrize("case", field_cases().values(), ids=field_cases())
def test_a_value_that_no_model_can_have(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_fault(**case)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 400, f"{grown:.0f} MB were allocated before it was refused"


def write(name: str, data: bytes | str) -> Callable[[Path], object]:
    whole = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(whole)


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return prepare


def cut(name: str, keep: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def header(changes: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """The safetensors file with another header over the same bytes."""

    def prepare(folder: Path) -> None:
        file = folder / "model/model.safetensors"
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        plain = json.loads(data[8 : 8 + length])
        changes(plain)
        text = json.dumps(plain).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return prepare


def first(plain: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in plain.items() if name != "__metadata__")


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        file = folder / "model/model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return prepare


def filled(value: float) -> Callable[[Path], None]:
    """One weight of the last tensor is `value`."""
    return weights(lambda tensors: tensors[sorted(tensors)[-1]].view(-1)[:1].fill_(value))


def index(plain: Any) -> Callable[[Path], None]:
    """The weights as a shard with this index."""

    def prepare(folder: Path) -> None:
        (folder / "model/model.safetensors").rename(folder / "model/model-00001-of-00001.safetensors")
        text = plain if isinstance(plain, str) else json.dumps(plain)
        (folder / "model/model.safetensors.index.json").write_text(text)

    return prepare


def fresh(name: str) -> Callable[[Path], object]:
    """Another kind of thing of that name."""
    makers: dict[str, Callable[[Path], object]] = {
        "folder": Path.mkdir,
        "loop": lambda path: path.symlink_to(path.name),
        "nowhere": lambda path: path.symlink_to("nowhere"),
        "device": lambda path: path.symlink_to("/dev/zero"),
        "pipe": os.mkfifo,
    }
    return makers[name]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda folder: (folder / "model/config.json").unlink(), "has no config.json"),
    "config.json is cut short": (cut("model/config.json", 100), "not valid JSON"),
    "config.json is empty": (write("model/config.json", ""), "not valid JSON"),
    "config.json is a list": (write("model/config.json", "[]"), "no JSON object"),
    "config.json is Latin-1": (write("model/config.json", b'{"a": "\xe9"}'), "not valid JSON"),
    "config.json nests without end": (write("model/config.json", '{"a":' * 100_000), "nested too deep"),
    "config.json has a number of 10,000 digits": (write("model/config.json", '{"a": 1' + "0" * 10_000 + "}"), "JSON"),
    "generation_config.json is broken": (write("model/generation_config.json", "{"), "generation_config.json"),
    "generation_config.json has NaN": (write("model/generation_config.json", '{"top_p": NaN}'), "NaN is no number"),
    "generation_config.json is a number": (write("model/generation_config.json", "3"), "no JSON object"),
    "the weights are empty": (write("model/model.safetensors", b""), "damaged or cut short"),
    "the weights are 7 bytes": (cut("model/model.safetensors", 7), "damaged or cut short"),
    "the header is cut short": (cut("model/model.safetensors", 500), "damaged or cut short"),
    "the last byte is missing": (cut("model/model.safetensors", -1), "damaged or cut short"),
    "a header of 2^63 bytes": (write("model/model.safetensors", b"\xff" * 7 + b"\x7f{}"), "damaged or cut short"),
    "a header of nothing": (write("model/model.safetensors", bytes(64)), "damaged or cut short"),
    "a header that is a list": (write("model/model.safetensors", struct.pack("<Q", 2) + b"[]"), "no object"),
    "a shape of 2^60": (header(lambda plain: first(plain).update(shape=[2**60])), "does not have its size"),
    "a negative shape": (header(lambda plain: first(plain).update(shape=[-1, 32])), "no tensor"),
    "a shape of words": (header(lambda plain: first(plain).update(shape="x")), "no tensor"),
    "offsets that overlap": (header(lambda plain: first(plain).update(data_offsets=[4, 4], shape=[0])), "damaged"),
    "offsets of one number": (header(lambda plain: first(plain).update(data_offsets=[0])), "no tensor"),
    "quantised weights": (header(lambda plain: first(plain).update(dtype="F8_E4M3")), "unquantised"),
    "a tensor without a type": (header(lambda plain: first(plain).pop("dtype")), "no tensor"),
    "a weight is NaN": (filled(float("nan")), "NaN or infinity"),
    "a weight is infinite": (filled(float("inf")), "NaN or infinity"),
    "a tensor is missing": (weights(lambda tensors: tensors.pop(sorted(tensors)[-1])), "is missing"),
    "a tensor nobody knows": (weights(lambda tensors: tensors.update(stray=torch.ones(2))), "stray has no place"),
    "a tensor has another shape": (
        weights(lambda tensors: tensors.update({sorted(tensors)[-1]: torch.ones(3, 5)})),
        "has shape (3, 5)",
    ),
    "no weights": (lambda folder: (folder / "model/model.safetensors").unlink(), "no *.safetensors"),
    "weights under another name": (
        lambda folder: (folder / "model/model.safetensors").rename(folder / "model/x.safetensors"),
        "neither model.safetensors nor",
    ),
    "a pickle": (
        lambda folder: (folder / "model/model.safetensors").rename(folder / "model/pytorch_model.bin"),
        "only as a pickle",
    ),
    "the index is broken": (index("{"), "not a valid index"),
    "the index is a list": (index([]), "not a valid index"),
    "the index names no files": (index({"weight_map": {}}), "not a valid index"),
    "the index names numbers": (index({"weight_map": {"a": 7}}), "not a valid index"),
    "the index has no object of metadata": (
        index({"metadata": 7, "weight_map": {"a": "model-00001-of-00001.safetensors"}}),
        "metadata is no object",
    ),
    "a shard that is missing": (index({"weight_map": {"a": "model-2.safetensors"}}), "is missing"),
    "a shard above the folder": (index({"weight_map": {"a": "../model.safetensors"}}), "no file of this folder"),
    "a shard anywhere": (index({"weight_map": {"a": "/etc/passwd"}}), "no file of this folder"),
    "a shard with a control character": (index({"weight_map": {"a": "a\x1b.safetensors"}}), "no file of this folder"),
    "a shard without the tensor": (index({"weight_map": {"a": "model-00001-of-00001.safetensors"}}), "lacks 'a'"),
    **{
        f"{name} is a {kind}": (instead(f"model/{name}", fresh(kind)), name)
        for name in ("config.json", "model.safetensors")
        for kind in ("folder", "loop", "nowhere", "device", "pipe")
    },
}  # fmt: skip
TOKENIZER_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "the tokenizer is broken": (write("model/tokenizer.json", "{"), "tokenizer.json"),
    "the tokenizer is empty": (write("model/tokenizer.json", ""), "tokenizer.json"),
    "the tokenizer is an empty object": (write("model/tokenizer.json", "{}"), "tokenizer"),
    "the tokenizer is a folder": (instead("model/tokenizer.json", fresh("folder")), "is a folder"),
    "the tokenizer is a loop": (instead("model/tokenizer.json", fresh("loop")), "tokenizer.json"),
    "the tokenizer's settings are a list": (write("model/tokenizer_config.json", "[]"), "no JSON object"),
    "the tokenizer's settings nest": (write("model/tokenizer_config.json", '{"a":' * 100_000), "nested too deep"),
    "the tokenizer's settings are a device": (instead("model/tokenizer_config.json", fresh("device")), "regular file"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder(damage: tuple[Callable[[Path], object], str], check_fault: Callable[..., str]) -> None:
    prepare, says = damage
    check_fault(**ROBERTA, prepare=prepare, says=says)


@pytest.mark.parametrize("damage", TOKENIZER_DAMAGE.values(), ids=TOKENIZER_DAMAGE)
def test_a_damaged_tokenizer(damage: tuple[Callable[[Path], object], str], check_fault: Callable[..., str]) -> None:
    prepare, says = damage
    check_fault(**SCORER, prepare=prepare, says=says)


@pytest.mark.parametrize("name", ["the last byte is missing", "a weight is NaN", "config.json is a list"])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_looks(name: str, verb: dict[str, Any], check_fault: Callable[..., str]) -> None:
    prepare, says = DAMAGE[name]
    check_fault(**verb, prepare=prepare, says=says)


def test_the_guard_needs_no_torch_and_reads_every_shape(made_checkpoints: dict[str, Path]) -> None:
    shapes = check_model_folder(made_checkpoints["scorer"])
    tensors = load_file(made_checkpoints["scorer"] / "model.safetensors")
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert sum(map(math.prod, shapes.values())) == sum(tensor.numel() for tensor in tensors.values())
    assert read_json(made_checkpoints["scorer"] / "config.json")["model_type"] == "longspan"


def test_a_file_with_every_type_is_read(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind): torch.zeros(3, 2, dtype=kind) for kind in kinds} | {
        "scalar": torch.zeros(()),
        "none": torch.zeros(0),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    assert read_header(tmp_path / "a.safetensors") == {name: tuple(value.shape) for name, value in tensors.items()}
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes() + b"x")
    with pytest.raises(InputError, match="damaged or cut short"):
        read_header(tmp_path / "b.safetensors")
