"""Published models of any architecture in transformers, unconverted, with their tokenizers: safetensors only.

`longspan.checkpoints.sources` loads those that Longspan converts; sentence encoders and rerankers have many more
architectures, and are run unconverted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from longspan.checkpoints.attention_interface import use_recorded
from longspan.checkpoints.folder import check_model_folder
from longspan.checkpoints.loading import load_tokenizer
from longspan.checkpoints.sources import check_finite, check_path, check_reachable
from longspan.devices import torch_device, torch_dtype
from longspan.errors import InputError, one_sentence
from longspan.progress import without_file_bars, without_loading_notes

Head = Literal["states", "labels", "sequences", "texts"]
_LOADERS = {
    "states": "AutoModel",
    "labels": "AutoModelForSequenceClassification",
    "sequences": "AutoModelForSeq2SeqLM",
    "texts": "AutoModelForCausalLM",
}


def load_published(
    source: str | Path, head: Head, *, device: str | None = None, dtype: str | None = None
) -> tuple[Any, Any]:
    """Loads a model in evaluation mode, and its tokenizer.

    Args:
        source: a folder, or a Hub name.
        head: its output: "states" of its encoder, without a head, scores of "labels", "sequences" written by an
            encoder-decoder, or "texts" continued by a language model.
        device: a PyTorch device name; None is the CPU.
        dtype: dtype of its weights; None is float32.

    Raises:
        InputError: the model is missing, damaged, needs remote code, has weights only as a pickle, lacks some, or is an
            encoder-decoder without a separate encoder class; the device or dtype does not exist.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    where, numbers = torch_device(device), torch_dtype(dtype)
    path = Path(os.path.expanduser(source))
    check_path(path, "model")
    if path.is_dir():
        check_model_folder(path)
    elif path.exists():
        raise InputError(f"model '{path}' is a file; give the directory that holds config.json and model.safetensors")
    else:
        check_reachable(str(source))
    name = str(path) if path.is_dir() else str(source)
    with one_sentence(f"model '{name}' cannot be loaded"), without_loading_notes(), without_file_bars():
        config: Any = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        loader: Any = getattr(transformers, _LOADERS[head])
        halves = {**MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES, "longt5": "LongT5EncoderModel"}
        half = str(halves.get(config.model_type, ""))
        if head == "states" and half.endswith("EncoderModel"):  # the encoder of an encoder-decoder
            loader = getattr(transformers, half)
        elif head == "states" and getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"model '{name}' is a {_name_of(config)}, which writes text and does not embed; give an encoder"
            )
        model, info = loader.from_pretrained(
            name, config=config, use_safetensors=True, output_loading_info=True, dtype=numbers
        )
    lacking = sorted(key for key in info["missing_keys"] if "pooler" not in key.split(".") or head == "labels")
    if lacking:
        what = "is no model with labels" if head == "labels" else "does not fit its config.json"
        raise InputError(f"model '{name}' is a {_name_of(config)} and {what}: {lacking[0]} is missing")
    check_finite(model, name)
    model = model.to(device=where, dtype=numbers).eval().requires_grad_(False)
    use_recorded(model, name)
    return model, load_tokenizer(source)


def _name_of(config: Any) -> str:
    return (config.architectures or [config.model_type])[0]


def longest_text(model: Any, tokenizer: Any) -> int | None:
    """Returns the longest input of a model in tokens, including special ones; None if it is unbounded.

    Models of RoBERTa's kind start their positions after the padding id.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    offset = 0 if padding is None else 1 + padding
    bounds = [tokenizer.model_max_length, *([positions - offset] if isinstance(positions, int) else [])]
    return min((int(bound) for bound in bounds if 0 < bound < 10**9), default=None)
