"""Opening what comes with the package, without transformers: plain networks and the tokenizers library.

Importing transformers takes longer than reading a short document, and what it does for folders of others (downloads,
sharded or converted weights, a dozen kinds of tokenizer) is not needed for a folder of our own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from longspan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from longspan.models.fields import ModelFields

Network = TypeVar("Network", bound="nn.Module")


def open_bundled(folder: Path, network: type[Network]) -> tuple[Network, BundledTokenizer]:
    """The network of a bundled folder in float32 and evaluation mode, and its tokenizer.

    Args:
        folder: with config.json, model.safetensors, tokenizer.json and tokenizer_config.json.
        network: a class that is built from `ModelFields`, whose weights have the names of the file.

    Raises:
        InputError: a file is missing, damaged or does not fit the others.
    """
    try:
        config = _read_config(folder)
        model = _load(folder / "model.safetensors", network, config)
        tokenizer = BundledTokenizer(folder)
    except (InputError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        # These files were sealed with the package: whatever is wrong with them, the remedy is the same.
        reason = " ".join(str(error).split())[:200].rstrip(". ")
        raise InputError(f"the bundled model in {folder} is damaged ({reason}); install the package again") from error
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the bundled model in {folder} knows {config.vocab_size} tokens but its tokenizer has {len(tokenizer)}; "
            "install the package again"
        )
    return model, tokenizer


def _read_config(folder: Path) -> ModelFields:
    from longspan.models.fields import ModelFields, fields_of_file

    known = {field.name for field in fields(ModelFields)}
    with fields_of_file(json.loads((folder / "config.json").read_text(encoding="utf-8"))) as stored:
        config = ModelFields(**{name: value for name, value in stored.items() if name in known})
        config.settle()
    return config


def _load(file: Path, network: type[Network], config: ModelFields) -> Network:
    """The network with the weights of the file; it is built on no device, so that nothing is drawn or allocated."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = restored(load_file(file))
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error
    broken = next((name for name, weight in weights.items() if not bool(weight.isfinite().all())), None)
    if broken is not None:
        raise ValueError(f"{file.name} holds no finite numbers in {broken}")
    with torch.device("meta"), _undrawn():
        model = network(config)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


SCALE = ".scale"
"""What the name of a matrix in 8 bits is followed by in that of its scales."""


def in_eight_bits(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix `(R, C)` as whole numbers from −127 to 127, int8, and a scale for each row, `(R, 1)` float16.

    Symmetric and row by row, as the rows of a table of words differ in size: an entry is off by at most half a
    127th of the largest of its row, and of the scale's own rounding.
    """
    import torch

    scale = (matrix.abs().amax(1, keepdim=True) / 127).half().clamp(min=6e-8)
    return (matrix / scale.float()).round().clamp(-127, 127).to(torch.int8), scale


def restored(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are stored, in half precision or 8 bits, in float32."""
    return {
        name: weight.float() * stored[name + SCALE].float() if name + SCALE in stored else weight.float()
        for name, weight in stored.items()
        if not name.endswith(SCALE)
    }


def _undrawn() -> Any:
    """A mode in which modules are built without drawing their weights, which costs imports and random numbers."""
    from torch.overrides import TorchFunctionMode

    class Undrawn(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if getattr(func, "__module__", None) == "torch.nn.init":
                return args[0] if args else given["tensor"]
            return func(*args, **given)

    return Undrawn()


class BundledTokenizer:
    """A tokenizer.json with what transformers' tokenizers say of it, as far as summaries ask."""

    is_fast = True
    pad_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    cls_token_id: int | None
    sep_token_id: int | None

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            self.backend = Tokenizer.from_str(text)
        except Exception as error:
            raise ValueError(f"tokenizer.json: {error}") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        for kind in ("pad_token", "bos_token", "eos_token", "unk_token", "cls_token", "sep_token"):
            setattr(self, f"{kind}_id", self.backend.token_to_id(names[kind]) if names.get(kind) else None)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        """Every token, the added ones too, with its id."""
        return self.backend.get_vocab(with_added_tokens=True)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        **ignored: Any,
    ) -> Mapping[str, Any]:
        """`input_ids` (and `offset_mapping`) of one text, or lists of them for several; nothing is cut or padded."""
        self.backend.encode_special_tokens = split_special_tokens
        single = isinstance(text, str)
        encodings = self.backend.encode_batch([text] if single else list(text), add_special_tokens=add_special_tokens)
        encoded: dict[str, Any] = {"input_ids": [encoding.ids for encoding in encodings]}
        if return_offsets_mapping:
            encoded["offset_mapping"] = [encoding.offsets for encoding in encodings]
        return {name: values[0] for name, values in encoded.items()} if single else encoded
