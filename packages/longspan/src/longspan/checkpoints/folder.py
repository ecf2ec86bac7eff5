"""Validation of model folders: files, values and sizes are checked before anything is built.

Every wrong type or size of a field raises an error with the field's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.model_files import AGAIN, is_whole, read_header, read_json
from longspan.models.fields import FIELDS, Token
from longspan.settings import LARGEST, Count, Dropout, Range, Rule, Seed, Share, Whole, convert, show

MOST_LABELS = 100_000

Flag = bool | None
Beams = Annotated[int, Range(1, 1000)]
Name = Annotated[str, Rule(lambda text: text.isprintable() and bool(text.strip()), "a name")]
Tokens = Token | Annotated[list[Token], Rule(bool, "a token, or a list of them")] | None
Pair = Annotated[list[Count], Rule(lambda sizes: len(sizes) == 2, "a list of two numbers")]
Index = Annotated[int, Range(-1, LARGEST)]
Object = dict[str, Any] | None


def _rule(holds: Callable[[Any], bool], words: str) -> Any:
    """Returns a hint for any value that is absent or satisfies a rule."""
    return Annotated[Any, Rule(lambda value: value is None or holds(value), words)]


def _optional(hint: Any) -> Any:
    return hint | None


def _one_of(*names: Any) -> Any:
    return _optional(Literal[names])


def _are_labels(value: Any) -> bool:
    right = isinstance(value, dict) and len(value) <= MOST_LABELS
    return right and all(key.isdecimal() and len(key) < 10 and isinstance(value[key], str) for key in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(is_whole(item, 0, LARGEST) for item in value.values())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_mark(value: Any) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


_TYPES = ("float32", "float16", "bfloat16", "float64")

CONFIG: dict[str, Any] = {
    **FIELDS,
    # Published configurations may set these to null, which means a default.
    **dict.fromkeys(("tie_word_embeddings", "use_cache"), Flag),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers"), Whole),
    **dict.fromkeys(("num_layers", "num_decoder_layers"), _optional(Whole)),
    **dict.fromkeys(("d_model", "dim", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "d_kv"), Count),
    **dict.fromkeys(("num_heads", "local_radius", "relative_attention_max_distance"), Count),
    **dict.fromkeys(("encoder_attention_heads", "n_heads", "max_encoder_position_embeddings"), Count),
    "chunk_size_feed_forward": _optional(Whole),
    **dict.fromkeys(("max_relative_positions", "position_buckets"), _optional(Index)),
    **dict.fromkeys(("cls_token_id", "mask_token_id"), _optional(Token)),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), Tokens),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), _optional(Dropout)),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), _optional(Dropout)),
    **dict.fromkeys(("pooler_dropout", "cls_dropout", "encoder_layerdrop", "decoder_layerdrop"), Share | None),
    "norm_eps": FIELDS["layer_norm_eps"],
    "initializer_range": FIELDS["init_std"],
    **dict.fromkeys(("add_cross_attention", "is_decoder", "is_encoder_decoder", "position_biased_input"), Flag),
    **dict.fromkeys(("relative_attention", "output_attentions", "output_hidden_states", "return_dict"), Flag),
    **dict.fromkeys(("hidden_act", "activation_function", "pooler_hidden_act", "model_type"), Name),
    **dict.fromkeys(("longspan_version", "longspan_pattern"), _optional(Name)),
    **dict.fromkeys(("hidden_activation", "attn_implementation", "_attn_implementation"), _optional(Name)),
    "architectures": _rule(_are_names, "a list of names"),
    **dict.fromkeys(("dtype", "torch_dtype"), _one_of(*_TYPES, *(f"torch.{name}" for name in _TYPES))),
    "num_labels": _optional(Annotated[int, Range(1, MOST_LABELS)]),
    "id2label": _rule(_are_labels, f"an object of at most {MOST_LABELS} labels, from numbers to names"),
    "label2id": _rule(_are_numbers, "an object from label names to numbers"),
    "problem_type": _one_of("regression", "single_label_classification", "multi_label_classification"),
    **dict.fromkeys(("feed_forward_size", "attention_head_size", "num_hashes"), Count),
    **dict.fromkeys(("local_attn_chunk_length", "lsh_attn_chunk_length"), Count),
    **{f"{kind}_num_chunks_{side}": Whole for kind in ("local", "lsh") for side in ("before", "after")},
    **dict.fromkeys(("local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"), Dropout),
    **dict.fromkeys(("axial_pos_shape", "axial_pos_embds_dim"), Pair),
    "attn_layers": Annotated[list[Literal["local", "lsh"]], Rule(bool, "'local' or 'lsh' for each layer")],
    "axial_pos_embds": bool,
    "axial_norm_std": FIELDS["init_std"],
    "hash_seed": _optional(Seed),
    "num_buckets": _optional(Count | Annotated[list[Count], Rule(bool, "a number, or a list of them")]),
    "attention_window": Count | Annotated[list[Count], Rule(bool, "a width, or a list of one per layer")],
    **dict.fromkeys(("auto_map", "task_specific_params", "source_fields"), Object),
    "quantization_config": _rule(lambda value: False, "left out, since Longspan reads unquantised weights only"),
}
"""Fields of `config.json`."""

GENERATION: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), Beams | None),
    **dict.fromkeys(("max_length", "max_new_tokens"), Count | None),
    **dict.fromkeys(("min_length", "min_new_tokens", "top_k"), Whole | None),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), Whole | None),
    **dict.fromkeys(
        ("temperature", "repetition_penalty", "encoder_repetition_penalty"),
        _optional(Annotated[float, Range(above=0, maximum=1e6)]),
    ),
    **dict.fromkeys(("length_penalty", "diversity_penalty"), _optional(Annotated[float, Range(-1e6, 1e6)])),
    **dict.fromkeys(("top_p", "typical_p", "min_p", "epsilon_cutoff", "eta_cutoff"), Share | None),
    **dict.fromkeys(("do_sample", "use_cache", "remove_invalid_values", "renormalize_logits"), Flag),
    **dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), Flag),
    "no_repeat_ngram_ignored": _optional(Annotated[list[Whole], Rule(bool, "a list of token ids")]),
    "early_stopping": bool | Literal["never"] | None,
    "return_dict_in_generate": _rule(lambda value: value is False, "false or left out"),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), Token | None),
    # With a list, each row of a batch has its own start.
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "decoder_start_token_id"), Tokens),
}
"""Fields of `generation_config.json`."""

TOKENIZER: dict[str, Any] = {
    **{
        f"{name}_token": _rule(_is_mark, "a text, or an object with its content")
        for name in ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
    },
    **dict.fromkeys(("padding_side", "truncation_side"), _one_of("left", "right")),
    **dict.fromkeys(("tokenizer_class", "backend"), _optional(Name)),
    **dict.fromkeys(("auto_map", "added_tokens_decoder"), Object),
    # Tokenizers without a limit use 1e30.
    "model_max_length": _optional(Annotated[float, Range(1, 1e31)]),
    "model_input_names": _rule(_are_names, "a list of names"),
}
"""Fields of `tokenizer_config.json` and `special_tokens_map.json`."""


def check_fields(values: dict[str, Any], fields: Mapping[str, Any], place: str, *, finite: bool = True) -> None:
    """Raises `InputError` for the first field of `place` with an invalid value.

    Numbers that are not finite, or exceed 64 bits, are refused everywhere, unless `finite` is False.
    """
    for path, number in _numbers(values, "") if finite else ():
        if number != number or abs(number) >= 2**63:
            raise InputError(f"{place} has {path}={show(number)}, which is not a finite 64-bit number; correct it")
    for name, hint in fields.items():
        if name in values:
            convert(hint, values[name], f"{place} is wrong: {name}")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yields every number in nested data with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
"""File names of weight shards."""


def check_model_folder(directory: Path) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every tensor of a model, after validating its folder.

    Raises:
        InputError: a file is missing, not a regular file, truncated or damaged; a value is invalid; weights exist only
            as a pickle; shards are outside of the folder; or a size does not match the tensors.
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


def weight_files(directory: Path) -> set[str]:
    """Returns the names of a folder's weight files: a single file, or shards with their index."""
    return {file.name for file in directory.iterdir() if file.name in (WEIGHTS, INDEX) or SHARD.fullmatch(file.name)}


def check_tokenizer_files(directory: Path) -> None:
    """Raises `InputError` for tokenizer files that are damaged or have invalid values.

    The model's `config.json`, if any, names the class of the tokenizer.
    """
    if lexists(directory / "config.json"):
        check_fields(read_json(directory / "config.json"), CONFIG, f"'{directory / 'config.json'}'")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        file = directory / name
        if lexists(file):
            plain = read_json(file)
            if name != "tokenizer.json":
                check_fields(plain, TOKENIZER, f"'{file}'", finite=False)


def _read_headers(directory: Path) -> dict[str, tuple[int, ...]]:
    """Returns name → shape of every tensor in the weight files."""
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
    """Returns the tensors of the files in the index, after checking that each file has those assigned to it."""
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
    surplus = sorted(
        file.name for file in directory.iterdir() if SHARD.fullmatch(file.name) and file.name not in shards
    )
    if surplus:
        raise InputError(
            f"'{directory / surplus[0]}' is not in the index of its folder, so the files are of two models; remove "
            f"those of one of them, or {AGAIN}"
        )
    held = {name: read_header(directory / name) for name in shards}
    for tensor, name in names.items():
        if tensor not in held[name]:
            raise InputError(f"'{directory / name}' lacks {show(tensor)}, which it has according to the index; {AGAIN}")
    for name, shapes in held.items():
        for tensor in shapes:
            if (other := names.get(tensor, name)) != name:
                raise InputError(
                    f"'{directory / name}' contains {show(tensor)}, which is in {other} according to the index; {AGAIN}"
                )
    return {tensor: shape for shapes in held.values() for tensor, shape in shapes.items()}


LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers", "num_layers", "num_decoder_layers")
WIDTHS = (
    *("hidden_size", "d_model", "dim", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"),
    *("feed_forward_size", "attention_head_size", "d_ff", "d_kv"),
)
INDEXING = ("pad_token_id", "decoder_start_token_id", "forced_bos_token_id")
"""Fields with tokens that are looked up by id."""


def _check_against(config: dict[str, Any], tensors: dict[str, tuple[int, ...]], file: Path) -> None:
    """Raises `InputError` for sizes far beyond the tensors, before anything is built; exact shapes are checked
    later."""
    # Slightly wrong sizes are reported with their tensor when the model is loaded; these could not be allocated.
    widest = 1024 + 8 * max((side for shape in tensors.values() for side in shape), default=0)
    for names, most, held in ((LAYERS, len(tensors), "tensors"), ((*WIDTHS, "vocab_size"), widest, "rows")):
        for name in names:
            value = config.get(name)
            if value is not None and value > most:
                raise InputError(f"'{file}' has {name}={value}, but the weights in its folder have fewer {held}")
    if config.get("vocab_size") is not None:
        for name in INDEXING:
            token = config.get(name)
            if token is not None and token >= config["vocab_size"]:
                raise InputError(
                    f"'{file}' has {name}={token}, but vocab_size={config['vocab_size']}; give a token that exists"
                )
