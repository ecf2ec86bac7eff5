"""Files of a sentence-transformers model: pooling, layers after it, prompts, longest input, similarity.

``` modules.json                        the modules in order: Transformer, Pooling, Dense, LayerNorm, Dropout, Normalize
sentence_bert_config.json           the longest text in tokens; whether texts are lower-cased 1_Pooling/config.json
how states become one vector 2_Dense/config.json, model.safetensors     a layer after the pooling
config_sentence_transformers.json   prompts by name, the default prompt, the similarity ```

A folder without these files is a plain encoder: mean pooling and cosine similarity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from longspan.checkpoints.pooling import MODULES, SETTINGS, TEXT, checkpoint_file, kind_of, modules_in
from longspan.errors import InputError, one_sentence
from longspan.model_files import read_header, read_json
from longspan.settings import show

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

SWITCHES: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of older files, in the order in which several pooled vectors are concatenated."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "Tanh": nn.Tanh,
    "Identity": nn.Identity,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}
PASSAGE_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompt for passages; the first existing one is used."""


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """Processing of texts before an encoder, and of its states after it.

    Attributes:
        modes: pooling modes; several vectors are concatenated.
        layers: layers after the pooling, in order.
        normalised: whether the last module normalises vectors to length 1.
        with_prompt: whether the tokens of a prompt are pooled too.
        max_tokens: longest input, including special tokens; None if the files do not define it.
        lower: whether texts are lower-cased.
        prompts: prompts by name.
        default_prompt: the name of the prompt for texts that are neither questions nor passages.
        similarity: the similarity function of two vectors.
    """

    modes: tuple[Mode, ...] = ("mean",)
    layers: tuple[nn.Module, ...] = ()
    normalised: bool = False
    with_prompt: bool = True
    max_tokens: int | None = None
    lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: Similarity = "cosine"

    def on(self, device: torch.device) -> SentenceModules:
        """Returns a copy with its layers on a device."""
        return replace(self, layers=tuple(layer.to(device) for layer in self.layers))

    def prompt(self, purpose: Literal["question", "passage"] | None) -> str:
        """Returns the prompt of a text, chosen as in sentence-transformers for queries, documents and other texts."""
        names = {"question": ("query",), "passage": PASSAGE_PROMPTS, None: ()}[purpose]
        name = next((name for name in names if name in self.prompts), self.default_prompt)
        return "" if name is None else self.prompts.get(name, "")

    def pool(self, states: Tensor, real: Tensor) -> Tensor:
        """Pools states `(B, T, E)` with a mask `(B, T)` of real tokens, contiguous in each row → vectors `(B, D)`.

        With m real tokens and i their positions from 1, counting states before them (padding on the left, or an
        excluded prompt): mean Σh/m, root mean Σh/√m, weighted mean Σi·h/Σi, maximum, first, last.
        """
        weights = real.to(states.dtype)[..., None]
        count = weights.sum(1).clamp(min=1e-9)
        places = torch.arange(1, states.shape[1] + 1, dtype=states.dtype, device=states.device)[:, None] * weights
        rows, first = torch.arange(len(states), device=states.device), real.int().argmax(1)
        last = states.shape[1] - 1 - real.flip(1).int().argmax(1)
        pooled: dict[Mode, Callable[[], Tensor]] = {
            "cls": lambda: states[rows, first],
            "max": lambda: states.masked_fill(weights == 0, float("-inf")).amax(1),
            "mean": lambda: (states * weights).sum(1) / count,
            "mean_sqrt_len_tokens": lambda: (states * weights).sum(1) / count.sqrt(),
            "weightedmean": lambda: (states * places).sum(1) / places.sum(1).clamp(min=1e-9),
            "lasttoken": lambda: states[rows, last],
        }
        vectors = torch.cat([pooled[mode]() for mode in self.modes], dim=-1)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors


def is_sentence_encoder(source: str | Path) -> bool:
    """Whether the module list of a folder contains a pooling, as in sentence encoders; Hub names are not looked up."""
    file = Path(os.path.expanduser(source)) / MODULES
    return os.path.isfile(file) and any(str(module.get("type", "")).endswith("Pooling") for module in modules_in(file))


def sentence_modules(source: str | Path) -> SentenceModules:
    """Reads the files of a folder, or of a Hub name.

    Raises:
        InputError: a file is damaged, or names an unknown module, pooling, activation or similarity.
    """
    text = _json_of_model(source, TEXT)
    about = _json_of_model(source, SETTINGS)
    most = text.get("max_seq_length")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InputError(f"{TEXT} of model '{source}' has max_seq_length={show(most)}; give a number of tokens")
    prompts, default = about.get("prompts") or {}, about.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise InputError(f"{SETTINGS} of model '{source}' has prompts={show(prompts)}; give a text for each name")
    if default is not None and default not in prompts:
        raise InputError(f"{SETTINGS} of model '{source}' has no prompt named {show(default)}, its default; add it")
    similarity = about.get("similarity_fn_name") or "cosine"
    if similarity not in get_args(Similarity):
        known = ", ".join(get_args(Similarity))
        raise InputError(f"model '{source}' compares vectors by {show(similarity)}; known are {known}")
    return SentenceModules(
        max_tokens=most,
        lower=bool(text.get("do_lower_case")),
        prompts={name: prompt for name, prompt in prompts.items() if prompt is not None},
        default_prompt=default,
        similarity=similarity,
        **_modules(source),
    )


def _modules(source: str | Path) -> dict[str, Any]:
    """Returns the fields of `SentenceModules` from the module list."""
    listed = checkpoint_file(source, MODULES)
    if listed is None:
        return {}
    fields: dict[str, Any] = {}
    layers: list[nn.Module] = []
    for number, module in enumerate(modules_in(listed)):
        kind, place = kind_of(module), str(module.get("path", ""))
        if number == 0 and kind == "Transformer":
            continue
        config = _json_of_model(source, f"{place}/config.json") if place else {}
        if kind == "Pooling":
            fields |= {"modes": _modes(config, source), "with_prompt": config.get("include_prompt") is not False}
        elif kind in ("Dense", "LayerNorm"):
            layers.append(_dense(source, place, config) if kind == "Dense" else _layer_norm(source, place, config))
        elif kind == "Normalize":
            fields["normalised"] = True
        elif kind != "Dropout":
            raise InputError(
                f"model '{source}' is a sentence encoder with the module {kind!r}, which is not known here; give one "
                "of a transformer, a pooling, dense layers and a normalisation"
            )
    return fields | {"layers": tuple(layers)}


def _modes(config: Mapping[str, Any], source: str | Path) -> tuple[Mode, ...]:
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for switch, mode in SWITCHES.items() if config.get(switch) is True] or "mean"
    modes = [named] if isinstance(named, str) else list(named) if isinstance(named, list | tuple) else [named]
    if not modes or any(mode not in get_args(Mode) for mode in modes):
        raise InputError(
            f"model '{source}' pools by {' and '.join(map(show, modes)) or 'nothing'}; known are "
            f"{', '.join(get_args(Mode))}"
        )
    return cast(tuple[Mode, ...], tuple(modes))


def _dense(source: str | Path, place: str, config: Mapping[str, Any]) -> nn.Module:
    """Returns a linear layer and an activation, with a residual connection if the file defines one."""
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise InputError(f"model '{source}' has a dense layer over its tokens in {place}; give one without it")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    kind = name.rpartition(".")[2]
    if not name.startswith("torch.nn.") or kind not in ACTIVATIONS:
        raise InputError(f"model '{source}' has the activation {show(name)}; known are {', '.join(ACTIVATIONS)}")
    weights = _weights(source, place)
    outputs, inputs = weights["linear.weight"].shape if "linear.weight" in weights else (0, 0)
    layer = Dense(inputs, outputs, "linear.bias" in weights, ACTIVATIONS[kind](), config.get("use_residual") is True)
    return _filled(layer, weights, f"the dense layer of model '{source}' in {place}")


class Dense(nn.Module):
    """A linear layer from width I to O, an activation, and with `around` a residual connection, projected if I ≠ O."""

    def __init__(self, inputs: int, outputs: int, bias: bool, activation: nn.Module, around: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation = activation
        self.around = around
        if around and inputs != outputs:
            self.residual = nn.Linear(inputs, outputs, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(B, I)` → `(B, O)`."""
        made = self.activation(self.linear(vectors))
        return made + (getattr(self, "residual", nn.Identity())(vectors) if self.around else 0)


class LayerNorm(nn.Module):
    """A layer normalisation with the parameter names of the files."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(B, D)` → `(B, D)`."""
        return self.norm(vectors)


def _layer_norm(source: str | Path, place: str, config: Mapping[str, Any]) -> nn.Module:
    weights = _weights(source, place)
    width = len(weights.get("norm.weight", ()))
    return _filled(LayerNorm(width), weights, f"the layer normalisation of model '{source}' in {place}")


def _filled(layer: nn.Module, weights: Mapping[str, Tensor], what: str) -> nn.Module:
    with one_sentence(f"{what} does not fit its weights"):
        layer.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return layer.eval().requires_grad_(False)


def _weights(source: str | Path, place: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    file = checkpoint_file(source, f"{place}/model.safetensors")
    if file is None:
        raise InputError(
            f"model '{source}' has no {place}/model.safetensors; save its weights as safetensors (pickles are not read)"
        )
    read_header(file)
    return load_file(file)


def _json_of_model(source: str | Path, name: str) -> dict[str, Any]:
    """Returns the content of a small JSON file of the model; empty if it does not exist."""
    file = checkpoint_file(source, name)
    return {} if file is None else read_json(file)
