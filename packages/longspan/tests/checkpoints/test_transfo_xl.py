"""Transformer-XL's published format: parity with the formulas written out, the names of both codes, mistakes.

Everything is computed here over whole segments with an explicit relative shift, in float64, from the file's tensors.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from closeness import check_outputs, check_weights
from longspan.checkpoints import from_transformers, save_published, to_transformers
from longspan.checkpoints.loading import load_model
from longspan.errors import InputError
from longspan.models import LongspanForCausalLM

BASE: dict[str, Any] = {
    "model_type": "transfo-xl", "architectures": ["TransfoXLLMHeadModel"], "vocab_size": 53, "cutoffs": [11, 19, 37],
    "d_model": 24, "d_embed": 24, "n_head": 3, "d_head": 8, "d_inner": 29, "n_layer": 3, "div_val": 2, "mem_len": 13,
    "clamp_len": 7, "same_length": True, "untie_r": True, "dropout": 0.1, "tie_weight": True, "pre_lnorm": False,
    "tie_projs": [False, True, True, True], "adaptive": True, "eos_token_id": 0, "sample_softmax": -1,
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "wt103": {},
    "shared biases": {"untie_r": False, "same_length": False, "clamp_len": -1},
    "one width": {"div_val": 1},
    "one width projected": {"div_val": 1, "d_embed": 16},
    "enwik8": {"adaptive": False, "div_val": 1, "untie_r": False, "tie_projs": [False], "clamp_len": 0},
    "nothing tied": {"tie_weight": False, "tie_projs": [False] * 4},
    "odd memory": {"mem_len": 5, "same_length": False},
}


def tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random tensors by the names of transformers 4, large enough that every mistake shows."""
    edges = [0, *(config["cutoffs"] if config["adaptive"] else []), config["vocab_size"]]
    clusters, width, embed = len(edges) - 1, config["d_model"], config["d_embed"]
    divided, inner = config["div_val"] > 1, config["n_head"] * config["d_head"]
    found: dict[str, Tensor] = {}

    def make(name: str, *shape: int, scale: float = 0.3) -> Tensor:
        found[name] = torch.randn(*shape, dtype=torch.double) * scale
        return found[name]

    widths = [embed // config["div_val"] ** i for i in range(clusters)]
    counts = [b - a for a, b in pairwise(edges)]
    for i in range(clusters if divided else 1):
        rows = counts[i] if divided else config["vocab_size"]
        table = make(f"transformer.word_emb.emb_layers.{i}.weight", rows, widths[i])
        out = f"crit.out_layers.{i}"
        make(f"{out}.bias", rows)
        found[f"{out}.weight"] = table.clone() if config["tie_weight"] else make(f"{out}.weight", rows, widths[i])
    projected = divided or embed != width
    for i in range(clusters if divided else int(projected)):
        make(f"transformer.word_emb.emb_projs.{i}", width, widths[i])
    for i in range(clusters if projected else 0):
        source = found[f"transformer.word_emb.emb_projs.{i if divided else 0}"]
        own = make(f"crit.out_projs.{i}", width, widths[i])
        found[f"crit.out_projs.{i}"] = source.clone() if config["tie_projs"][i] else own
    if clusters > 1:
        make("crit.cluster_weight", clusters - 1, embed)
        make("crit.cluster_bias", clusters - 1)
    for name in ("r_w_bias", "r_r_bias"):
        if not config["untie_r"]:
            make(f"transformer.{name}", config["n_head"], config["d_head"])
    for i in range(config["n_layer"]):
        at = f"transformer.layers.{i}.dec_attn"
        make(f"{at}.qkv_net.weight", 3 * inner, width)
        make(f"{at}.r_net.weight", inner, width)
        make(f"{at}.o_net.weight", width, inner)
        for name in ("r_w_bias", "r_r_bias"):
            own = make(f"{at}.{name}", config["n_head"], config["d_head"])
            found[f"{at}.{name}"] = own if config["untie_r"] else found[f"transformer.{name}"].clone()
        ff = f"transformer.layers.{i}.pos_ff"
        for part in (at, ff):
            make(f"{part}.layer_norm.weight", width)
            make(f"{part}.layer_norm.bias", width)
        make(f"{ff}.CoreNet.0.weight", config["d_inner"], width)
        make(f"{ff}.CoreNet.0.bias", config["d_inner"])
        make(f"{ff}.CoreNet.3.weight", width, config["d_inner"])
        make(f"{ff}.CoreNet.3.bias", width)
    found["transformer.pos_emb.inv_freq"] = torch.ones(width // 2, dtype=torch.double)
    return found


def embed(found: dict[str, Tensor], config: dict[str, Any], ids: Tensor) -> Tensor:
    edges = [0, *(config["cutoffs"] if config["adaptive"] else []), config["vocab_size"]]
    rows = []
    for word in ids.flatten().tolist():
        cluster = sum(word >= edge for edge in edges[1:-1]) if config["div_val"] > 1 else 0
        row = found[f"transformer.word_emb.emb_layers.{cluster}.weight"][word - edges[cluster]]
        projection = found.get(f"transformer.word_emb.emb_projs.{cluster}")
        rows.append(row if projection is None else projection @ row)
    return torch.stack(rows).view(*ids.shape, -1) * config["d_model"] ** 0.5


def attend(found: dict[str, Tensor], config: dict[str, Any], layer: int, new: Tensor, memory: Tensor) -> Tensor:
    """`(B, T, E)` behind a memory `(B, M, E)`: `((q + u)·k + shift((q + v)·(W R))) / √D`."""
    at, heads = f"transformer.layers.{layer}.dec_attn", config["n_head"]
    both, queries, keys = torch.cat([memory, new], 1), new.shape[1], memory.shape[1] + new.shape[1]
    query, key, value = (both @ part.T for part in found[f"{at}.qkv_net.weight"].chunk(3))
    query, key, value = (part.unflatten(-1, (heads, -1)) for part in (query[:, -queries:], key, value))
    distances = torch.arange(keys - 1, -1, -1, dtype=torch.double)
    if config["clamp_len"] > 0:
        distances = distances.clamp(max=config["clamp_len"])
    frequencies = 10000 ** -(torch.arange(0, config["d_model"], 2, dtype=torch.double) / config["d_model"])
    angles = distances[:, None] * frequencies
    rows = torch.cat([angles.sin(), angles.cos()], 1) @ found[f"{at}.r_net.weight"].T
    content = torch.einsum("bihd,bjhd->bhij", query + found[f"{at}.r_w_bias"], key)
    position = torch.einsum("bihd,jhd->bhij", query + found[f"{at}.r_r_bias"], rows.unflatten(-1, (heads, -1)))
    shifted = functional.pad(position, (1, 0)).reshape(*position.shape[:2], keys + 1, queries)[:, :, 1:]
    scores = (content + shifted.reshape(position.shape)) / config["d_head"] ** 0.5
    place, other = torch.arange(queries)[:, None], torch.arange(keys)
    hidden = other > place + memory.shape[1]
    if config["same_length"]:
        beyond = keys - config["mem_len"]
        hidden |= other <= place - (queries - beyond if beyond > 0 else queries)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    context = torch.einsum("bhij,bjhd->bihd", weights, value).flatten(2)
    return context @ found[f"{at}.o_net.weight"].T


def norm(found: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    centred = hidden - hidden.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * found[f"{name}.weight"] + found[f"{name}.bias"]


def segment(found: dict[str, Tensor], config: dict[str, Any], ids: Tensor, memories: list[Tensor]) -> Tensor:
    """Last states of a segment; the memories, one per layer, are changed."""
    hidden = embed(found, config, ids)
    for layer in range(config["n_layer"]):
        past, name = memories[layer], f"transformer.layers.{layer}"
        memories[layer] = torch.cat([past, hidden], 1)[:, -config["mem_len"] :]
        hidden = norm(found, f"{name}.dec_attn.layer_norm", hidden + attend(found, config, layer, hidden, past))
        up, down = f"{name}.pos_ff.CoreNet.0", f"{name}.pos_ff.CoreNet.3"
        inner = (hidden @ found[f"{up}.weight"].T + found[f"{up}.bias"]).clamp(min=0)
        written = inner @ found[f"{down}.weight"].T + found[f"{down}.bias"]
        hidden = norm(found, f"{name}.pos_ff.layer_norm", hidden + written)
    return hidden


def logarithms(found: dict[str, Tensor], config: dict[str, Any], states: Tensor) -> Tensor:
    """Log-probabilities of all words; the logit of cluster i is the i-th behind the shortlist."""
    edges = [0, *(config["cutoffs"] if config["adaptive"] else []), config["vocab_size"]]
    parts, first = [], None
    for i, (start, stop) in enumerate(pairwise(edges)):
        divided = config["div_val"] > 1
        name, low, high = (f"crit.out_layers.{i}", 0, stop - start) if divided else ("crit.out_layers.0", start, stop)
        weight, bias = found[f"{name}.weight"][low:high], found[f"{name}.bias"][low:high]
        seen = states @ found[f"crit.out_projs.{i}"] if f"crit.out_projs.{i}" in found else states
        if i == 0 and len(edges) > 2:
            weight = torch.cat([weight, found["crit.cluster_weight"]])
            bias = torch.cat([bias, found["crit.cluster_bias"]])
        within = (seen @ weight.T + bias).log_softmax(-1)
        first = within if first is None else first
        parts.append(within[..., : edges[1]] if i == 0 else within + first[..., edges[1] + i - 1, None])
    return torch.cat(parts, -1)


def write(folder: Path, config: dict[str, Any], found: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors")
    return folder


def original(found: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """The same by the names of the authors' code: biases once, the logit of cluster i the i-th from the end."""
    plain = {name.removeprefix("transformer."): tensor for name, tensor in found.items()}
    if not config["untie_r"]:
        plain = {
            name: tensor for name, tensor in plain.items() if not name.endswith(("attn.r_w_bias", "attn.r_r_bias"))
        }
    for name in ("crit.cluster_weight", "crit.cluster_bias"):
        if name in plain:
            plain[name] = plain[name].flip(0)
    return plain


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_equal_to_the_formulas_over_several_segments(form: str, tmp_path: Path) -> None:
    config = BASE | FORMS[form]
    found = tensors(config)
    model = load_model(write(tmp_path / "model", config, found))
    assert isinstance(model, LongspanForCausalLM)
    assert model.dtype == torch.double
    memories = [torch.empty(2, 0, 24, dtype=torch.double) for _ in range(config["n_layer"])]
    cache = None
    for length in (5, 8, 1, 11):
        ids = torch.randint(0, 53, (2, length))
        expected = logarithms(found, config, segment(found, config, ids, memories))
        output = model(ids, cache=cache, use_cache=True)
        cache = output.cache
        assert torch.allclose(output.logits.log_softmax(-1), expected, atol=1e-10)
        # Memory of keys and values reads the same as one of states; the loss is that of the whole table.
    labels = torch.randint(0, 53, (2, 11))
    loss = model(ids, labels=labels).loss
    empty = [torch.empty(2, 0, 24, dtype=torch.double) for _ in range(config["n_layer"])]
    alone = logarithms(found, config, segment(found, config, ids, empty))
    assert torch.allclose(loss, functional.nll_loss(alone[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


UNTIED = [form for form in FORMS if (BASE | FORMS[form])["untie_r"]]


@pytest.mark.parametrize("form", UNTIED)
def test_biases_of_each_layer_have_no_original_names(form: str, tmp_path: Path) -> None:
    config = BASE | FORMS[form]
    model = load_model(write(tmp_path / "model", config, tensors(config)))
    with pytest.raises(InputError, match="share_biases=False gives each layer biases"):
        save_published(model, tmp_path / "back", names="original")


@pytest.mark.parametrize(
    ("names", "form"),
    [("transformers", form) for form in FORMS] + [("original", form) for form in FORMS if form not in UNTIED],
)
@torch.no_grad()
def test_there_and_back(form: str, names: Any, tmp_path: Path) -> None:
    config = BASE | FORMS[form]
    found = tensors(config)
    given = found if names == "transformers" else original(found, config)
    model = load_model(write(tmp_path / "model", config, given))
    same = load_model(write(tmp_path / "same", config, found))
    ids = torch.randint(0, 53, (2, 9))
    check_weights(model, same)
    check_outputs(model(ids).logits, same(ids).logits)
    save_published(model, tmp_path / "back", names=names)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == {name for name in given if "inv_freq" not in name}
    assert all(torch.equal(tensor, given[name]) for name, tensor in back.items())
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {name: said[name] for name in config if name not in ("clamp_len", "cutoffs", "adaptive")} == {
        name: value for name, value in config.items() if name not in ("clamp_len", "cutoffs", "adaptive")
    }
    check_outputs(load_model(tmp_path / "back")(ids).logits, model(ids).logits)


def test_ours_saves_loads_writes_and_is_no_class_of_transformers(tmp_path: Path) -> None:
    model = from_transformers(write(tmp_path / "model", BASE, tensors(BASE)))
    model.save_pretrained(tmp_path / "ours")
    again = load_model(tmp_path / "ours")
    ids = torch.randint(0, 53, (1, 9))
    check_weights(again, model)
    check_outputs(again(ids).logits, model(ids).logits)
    written = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    cache, expected = None, ids
    for _ in range(20):  # token by token with a memory, as `generate` does after the prompt
        new = expected if cache is None else expected[:, -1:]
        with torch.no_grad():
            output = model(new, cache=cache, use_cache=True)
        cache = output.cache
        expected = torch.cat([expected, output.logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, expected)
    with pytest.raises(InputError, match=r"transformers 5 has no class for 'transfo-xl'.*save_published"):
        to_transformers(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_lnorm": True}, "pre_lnorm=True.*not supported"),
        ({"attn_type": 2}, "attn_type=2.*another kind of positions"),
        ({"d_head": 7}, "n_head=3 heads of d_head=7"),
        ({"cutoffs": [19, 11, 37]}, "cutoffs=.*must increase"),
        ({"cutoffs": [11, 19, 53]}, "cutoffs=.*below vocab_size=53"),
        ({"d_inner": 31}, "feed_forward"),
        ({"n_layer": 4}, "lack"),
        ({"untie_r": False}, "differ, but its config.json says that they are one"),
        ({"tie_projs": [True] * 4}, "differ, but its config.json says that they are one"),
        ({"d_model": "wide"}, "d_model"),
        pytest.param(
            *({"d_inner": 1_000_000, "n_layer": 900}, "asks for .* numbers where the files hold"),
            marks=pytest.mark.slow,
        ),
        (
            {"d_inner": 1_000_000, "d_model": 8192, "d_head": 2730, "n_layer": 900},
            "d_model=8192, but the weights in its folder have fewer rows",
        ),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", BASE | changes, tensors(BASE))
    with pytest.raises(InputError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_pickles_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "model.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match=r"model\.pt.*never loaded.*convert it to safetensors first: in a sandbox"):
        load_model(tmp_path)


def test_what_the_format_cannot_say(tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "model", BASE, tensors(BASE)))
    model.config.activation_function = "gelu"
    with pytest.raises(InputError, match="activation_function='gelu' cannot be represented"):
        save_published(model, tmp_path / "back")
