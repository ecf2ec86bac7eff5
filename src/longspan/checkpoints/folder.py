"""The one guard where folders with models are opened: files, JSON, sizes and tensor headers, before anything is built.

It needs the standard library only, allocates nothing, and reads no weights: the first bytes of each safetensors file
name every tensor with its shape, which is enough to refuse a configuration that asks for more than there is.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from os.path import lexists
from pathlib import Path
from typing import Any, TypeGuard

from longspan.checkpoints.folder_fields import CONFIG, GENERATION, TOKENIZER, check_fields, is_whole
from longspan.errors import InputError, last_line
from longspan.settings import show

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LARGEST_JSON = 512 * 2**20
LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""What a number of each stored type takes; types that are not here are quantised."""
AGAIN = "fetch the checkpoint again"


def check_model_folder(directory: Path) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor of a model, once its folder makes sense.

    Raises:
        InputError: a file that is missing, no file, cut short or damaged; a value that no model can have; weights only
            as a pickle; shards outside of the folder; a size that the tensors do not bear out.
    """
    config_file, generation_file = directory / "config.json", directory / "generation_config.json"
    if not lexists(config_file):
        raise InputError(f"'{directory}' has no config.json; give a directory written by save_pretrained")
    config = read_json(config_file)
    check_fields(config, CONFIG, f"'{config_file}'")
    check_fields(config, GENERATION, f"'{config_file}'", finite=False)
    if lexists(generation_file):
        check_fields(read_json(generation_file), GENERATION, f"'{generation_file}'")
    tensors = _read_headers(directory)
    _check_against(config, tensors, config_file)
    return tensors


def check_tokenizer_files(directory: Path) -> None:
    """Raise `InputError` for tokenizer files of a folder that are damaged or say what no tokenizer can be.

    The model's `config.json`, where there is one, names the kind of tokenizer.
    """
    if lexists(directory / "config.json"):
        check_fields(read_json(directory / "config.json"), CONFIG, f"'{directory / 'config.json'}'")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        file = directory / name
        if lexists(file):
            plain = read_json(file)
            if name != "tokenizer.json":
                check_fields(plain, TOKENIZER, f"'{file}'", finite=False)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file, or `InputError`: no file, too large, not JSON, NaN in it, nested without end."""
    size = check_file(file)
    if size > LARGEST_JSON:
        raise InputError(f"'{file}' has {size:,} bytes, too many for a description of a model; {AGAIN}")
    try:
        plain = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InputError(f"'{file}' is damaged: it is nested too deep; {AGAIN}") from error
    except ValueError as error:  # of which broken JSON and broken UTF-8 are kinds
        raise InputError(f"'{file}' is damaged: it is not valid JSON ({last_line(error)}); {AGAIN}") from error
    if not isinstance(plain, dict):
        raise InputError(f"'{file}' is damaged: it holds no JSON object; {AGAIN}")
    return plain


def check_file(file: Path) -> int:
    """The size of a regular file, or of the one that a link leads to; `InputError` for anything else."""
    try:
        state = file.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"'{file}' cannot be read: {reason.lower()}; {AGAIN}") from error
    if not stat.S_ISREG(state.st_mode):
        kind = "a folder" if stat.S_ISDIR(state.st_mode) else "no regular file"
        raise InputError(f"'{file}' is {kind}; {AGAIN}")
    return state.st_size


def _read_headers(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor in the files that hold the weights."""
    if lexists(directory / WEIGHTS):
        return read_header(directory / WEIGHTS)
    if lexists(directory / INDEX):
        return _read_shards(directory)
    files = sorted(directory.glob("*.safetensors"))
    if files:
        raise InputError(
            f"'{directory}' holds {files[0].name} but neither {WEIGHTS} nor {INDEX}; give a directory written by "
            "save_pretrained"
        )
    pickles = [path for ending in ("bin", "pt", "pth", "ckpt") for path in sorted(directory.glob(f"*.{ending}"))]
    if pickles:
        raise InputError(
            f"'{directory}' holds its weights only as a pickle ({pickles[0].name}), which is never loaded because "
            "it can run code; convert it to safetensors first: in a sandbox without network, load it with PyTorch and "
            "write its tensors with safetensors.torch.save_file"
        )
    raise InputError(f"'{directory}' holds no *.safetensors file; give a directory written by save_pretrained")


def _read_shards(directory: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of the files that the index names, after a look that each has those that it is said to have."""
    index = directory / INDEX
    invalid = f"'{index}' is not a valid index of safetensors shards"
    try:
        plain = read_json(index)
    except InputError as error:
        raise InputError(f"{invalid}; {AGAIN}") from error
    names = plain.get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{invalid}; {AGAIN}")
    if not isinstance(plain.get("metadata", {}), dict):
        raise InputError(f"{invalid}: metadata is no object; {AGAIN}")
    shards = sorted(set(names.values()))
    for name in shards:
        if name != Path(name).name or not name.isprintable() or not name.endswith(".safetensors"):
            raise InputError(f"'{index}' names the shard {show(name)}, which is no file of this folder; {AGAIN}")
        if not lexists(directory / name):
            raise InputError(f"'{directory / name}' is named by the index but is missing; {AGAIN}")
    held = {name: read_header(directory / name) for name in shards}
    for tensor, name in names.items():
        if tensor not in held[name]:
            raise InputError(f"'{directory / name}' lacks {show(tensor)}, which the index says it has; {AGAIN}")
    return {tensor: shape for shapes in held.values() for tensor, shape in shapes.items()}


def read_header(file: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor of a safetensors file.

    Raises:
        InputError: the header is cut short, too large or no JSON; a tensor's type, shape or place is not as the format
            has it; bytes are missing or left over.
    """
    size, damaged = check_file(file), f"'{file}' is damaged or cut short"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise InputError(f"{damaged} (its header does not fit into it); {AGAIN}")
        try:
            header = json.loads(opened.read(length).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{damaged} (its header is not JSON); {AGAIN}") from error
    if not isinstance(header, dict):
        raise InputError(f"{damaged} (its header is no object); {AGAIN}")
    header.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_places(file, header)):
        if start != end:
            raise InputError(f"{damaged} (tensor {show(name)} is not where it should be); {AGAIN}")
        end = stop
    if end != size - 8 - length:
        raise InputError(f"{damaged} (its tensors take {end:,} bytes, it has {size - 8 - length:,}); {AGAIN}")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _places(file: Path, header: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """First byte, byte after the last, and name of each tensor, once its entry makes sense."""
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        kind, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if isinstance(kind, str) and kind not in BYTES:
            raise InputError(f"'{file}' stores {show(name)} as {show(kind)}; Longspan reads unquantised weights only")
        if not isinstance(kind, str) or not _counts(shape) or not _counts(place) or len(place) != 2:
            raise InputError(f"'{file}' is damaged or cut short (what it says of {show(name)} is no tensor); {AGAIN}")
        if place[1] - place[0] != math.prod(shape) * BYTES[kind]:
            raise InputError(f"'{file}' is damaged or cut short ({show(name)} does not have its size); {AGAIN}")
        yield place[0], place[1], name


def _counts(numbers: Any) -> TypeGuard[list[int]]:
    """Whether these are sizes or places: whole numbers from 0."""
    return isinstance(numbers, list) and all(is_whole(number, 0, 2**62) for number in numbers)


LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers")
WIDTHS = (
    *("hidden_size", "d_model", "dim", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"),
    *("feed_forward_size", "attention_head_size"),
)
INDEXING = ("pad_token_id", "decoder_start_token_id", "forced_bos_token_id")
"""Tokens that are looked up by their number."""


def _check_against(config: dict[str, Any], tensors: dict[str, tuple[int, ...]], file: Path) -> None:
    """Refuse sizes that the tensors cannot bear out, before anything is built: bounds here, shapes later."""
    # A size that is a little wrong is named with its tensor when the model is loaded; these no machine could hold.
    widest = 1024 + 8 * max((side for shape in tensors.values() for side in shape), default=0)
    for names, most, held in ((LAYERS, len(tensors), "tensors"), ((*WIDTHS, "vocab_size"), widest, "rows")):
        for name in names:
            value = config.get(name)
            if value is not None and value > most:
                raise InputError(f"'{file}' says {name}={value}, but the weights beside it have nowhere as many {held}")
    if config.get("vocab_size") is not None:
        for name in INDEXING:
            token = config.get(name)
            if token is not None and token >= config["vocab_size"]:
                raise InputError(
                    f"'{file}' says {name}={token}, but vocab_size={config['vocab_size']}; give a token that exists"
                )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
