"""Published models without a transformers class: reading and writing of folders of plain JSON and safetensors.

`load_model` and `from_transformers` open such a folder like any other. `save_published` writes one.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan.checkpoints.folder import INDEX, WEIGHTS, check_model_folder
from longspan.checkpoints.mapping import transfer, translations
from longspan.errors import InputError, one_sentence
from longspan.files import new_folder, whole_folder
from longspan.model_files import read_json
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanPreTrainedModel
from longspan.settings import show

PLAIN = {"transfo-xl": "longspan.checkpoints.architectures.transfo_xl"}
"""`model_type` → the module that defines the format, imported on demand, with `complete`, `read`, `write`, `unpack`,
`pack` and `PAIRS`."""


def read_plain_folder(folder: Path) -> LongspanForCausalLM:
    """Loads the model in a folder whose `model_type` is in `PLAIN`, in evaluation mode, with the files' dtype.

    Raises:
        InputError: files are missing or damaged, or do not match the configuration.
    """
    shapes = check_model_folder(folder)
    config_json = read_json(folder / "config.json")
    known: Any = import_module(PLAIN[config_json["model_type"]])
    what = f"the config.json of model '{folder}' is not usable"
    with one_sentence(what):
        config = known.complete(config_json)
        fields = known.read(config)
        used = {*known.write(LongspanConfig(**fields)), "dtype", "torch_dtype", "transformers_version", "n_token"}
        rest = {name: value for name, value in config_json.items() if name not in used}
        native = LongspanConfig(**fields, source_model_type=config_json["model_type"], source_fields=rest or None)
    _check_size(folder, native, sum(torch.Size(shape).numel() for shape in shapes.values()))
    tensors = known.unpack(_tensors(folder), config)
    model: Any = LongspanForCausalLM(native)  # no type checker follows transformers' wrapped `to`
    dtypes = {tensor.dtype for tensor in tensors.values()}
    model.to(dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32)
    unfilled = transfer(tensors, model.state_dict(), known.PAIRS)
    if unfilled:
        raise InputError(
            f"the weights of model '{folder}' lack {min(unfilled)!r} as Longspan calls it; they do not fit config.json"
        )
    damaged = [name for name, tensor in model.named_parameters() if not bool(tensor.isfinite().all())]
    if damaged:
        raise InputError(f"the weights of model '{folder}' are damaged: {damaged[0]} holds NaN or infinity")
    return model.eval()


def is_plain_folder(folder: Path) -> bool:
    """Whether a folder contains such a model."""
    file = folder / "config.json"
    return file.is_file() and read_json(file).get("model_type") in PLAIN


def save_published(
    model: LongspanPreTrainedModel, folder: str | Path, *, names: Literal["transformers", "original"] = "transformers"
) -> None:
    """Writes a model in the published format: config.json and model.safetensors, in a new folder.

    Args:
        model: a `LongspanForCausalLM` that the format of Transformer-XL can represent.
        folder: must not exist, or be empty.
        names: those of transformers 4 (`TransfoXLLMHeadModel`), or of the authors' PyTorch code.

    Raises:
        InputError: the model has something that the format cannot represent.
    """
    if not isinstance(model, LongspanForCausalLM):
        raise InputError(f"model={type(model).__name__} is no LongspanForCausalLM, which the format holds; give one")
    if names not in ("transformers", "original"):
        raise InputError(f"names={show(names)} is unknown; choose 'transformers' or 'original'")
    known: Any = import_module(PLAIN["transfo-xl"])
    written = {**(model.config.source_fields or {}), **known.write(model.config)}
    _check_says_everything(model.config, known.read(known.complete(written)))
    state = model.state_dict()
    renamed = {theirs: tensor for name, tensor in state.items() for theirs in translations(name, known.PAIRS)}
    packed = known.pack(renamed, known.complete(written), original=names == "original")
    target = new_folder(Path(folder))
    with whole_folder(target) as partial:
        (partial / "config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
        # Tied tensors are written under every name, as copies, which readers of both formats expect.
        save_file(
            {name: tensor.detach().cpu().clone().contiguous() for name, tensor in packed.items()},
            partial / WEIGHTS,
            metadata={"format": "pt"},
        )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of all files of a checked folder."""
    with one_sentence(f"the weights of model '{folder}' cannot be read"):
        if (folder / WEIGHTS).is_file():
            return load_file(folder / WEIGHTS)
        shards = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        return {name: tensor for shard in shards for name, tensor in load_file(folder / shard).items()}


def _check_size(folder: Path, config: LongspanConfig, held: int) -> None:
    """Raises `InputError` for a configuration with far more numbers than the files, before anything is allocated."""
    with torch.device("meta"):
        wanted = sum(parameter.numel() for parameter in LongspanForCausalLM(config).parameters())
    if wanted > 4 * held + 2**24:
        raise InputError(
            f"the weights of model '{folder}' do not fit its config.json, which asks for {wanted:,} numbers where the "
            f"files hold {held:,}"
        )


def _check_says_everything(config: LongspanConfig, fields: dict[str, Any]) -> None:
    """Raises `InputError` for fields that are not equal when read back."""
    back = LongspanConfig(**fields)
    for name in (*fields, "embedding_projection", "label_smoothing", "type_vocab_size"):
        ours, theirs = getattr(config, name), getattr(back, name)
        if name == "tie_projections":
            clusters = len(back.cutoffs or []) + 1
            ours = [ours] * clusters if isinstance(ours, bool) else ours
        if name == "attention":
            ours, theirs = (
                [side.layer_attention(layer).to_dict() for layer in range(config.num_hidden_layers)]
                for side in (config, back)
            )
        if ours != theirs:
            raise InputError(
                f"{name}={show(ours)} cannot be represented by the published format, which has {show(theirs)}"
            )
