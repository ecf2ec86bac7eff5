"""The initial model of a run: a new one, a published one that is lengthened, a tiny random one in a published format
(for trials), or that of the previous stage.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.checkpoints.sources import RUNS, is_path
from longspan.errors import InputError, one_sentence
from longspan.models.configuration import LongspanConfig
from longspan.settings import show
from longspan.tasks import RECIPE
from longspan.training.sections import Model, Tokenizer
from longspan.training.shipped import shipped_recipes

logger = logging.getLogger(__name__)

BART = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 4, "max_position_embeddings": 256}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
ROBERTA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ROBERTA |= {"max_position_embeddings": 66, "type_vocab_size": 1}
RANDOM: dict[str, tuple[str, dict[str, int]]] = {
    "random-bart": ("BartForConditionalGeneration", BART),
    "random-roberta": ("RobertaForMaskedLM", ROBERTA),
}
"""`model.from: random-bart`, and so on: a class of transformers and its sizes; the vocabulary is that of the rows."""

WITHOUT_DECODER: dict[str, Any] = {
    "decoder_layers": 0,
    "decoder_attention": LongspanConfig.decoder_attention,
    "is_encoder_decoder": False,
    "source_model_type": None,
    "source_fields": None,
}
"""Fields of the encoder of an encoder-decoder, for which transformers has no class."""

AS_WRITER: dict[str, Any] = {
    "head": None,
    "pooler": False,
    "global_tokens": "none",
    "source_model_type": None,
    "source_fields": None,
}
"""Fields of an encoder that is converted to a prefix language model."""


def check_start(model: Model, tokenizer: Tokenizer) -> None:
    """Raises `InputError` if a recipe starts from a local folder that does not exist; a Hub name is looked up later."""
    for key, source in (("model.from", model.source), ("tokenizer.from", tokenizer.source)):
        if source is None or source in RANDOM or not is_path(source):
            continue
        folder = Path(os.path.expanduser(source))
        if (folder / RECIPE).is_file() and not (folder / "config.json").is_file():
            raise InputError(
                f"{key} is {show(source)}, but the run in {show(source)} has not ended; finish it with `longspan train "
                "… --resume`"
            )
        if not folder.exists():
            first, _, name = source.partition("/")
            known = first == RUNS and name in shipped_recipes()
            first = f"train recipe {name!r} first: `longspan train {name}`" if known else "put a model there"
            raise InputError(f"{key} is {show(source)}, which is not here; {first}, or set {key} to another folder")


def new_model(task: Any, model: Model, tokenizer: Any) -> Any:
    """Returns a randomly initialised model of the task's class; the tokenizer defines the vocabulary
    and special tokens.
    """
    given = (model.new or {}).get("vocab_size")
    if given is not None and given != len(tokenizer):
        raise InputError(
            f"model.new.vocab_size is {given} but the tokenizer has {len(tokenizer)} entries; leave it out"
        )
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    if {**task.model_fields(), **(model.new or {})}.get("pseudo_masks"):
        special["mask_token_id"] = tokenizer.mask_token_id
    return task.model_class()(new_config(task, model, len(tokenizer), special))


def new_config(task: Any, model: Model, entries: int, special: Mapping[str, int | None] | None = None) -> Any:
    """Returns the configuration of a new model with a vocabulary of `entries` entries.

    `special` are ids of special tokens, unless the recipe sets them.
    """
    from longspan.models import LongspanConfig

    fields, new = task.model_fields(), dict(model.new or {})
    if new.get("head") is not None:
        new["head"] = _head(fields.get("head"), new["head"], task)
    options = {**(special or {}), **fields, **new, "vocab_size": entries}
    if model.max_tokens is not None:
        options.setdefault("max_position_embeddings", model.max_tokens)
    if model.attention is not None:
        options["attention"] = model.attention
    if model.stack is not None:
        options["stack"] = model.stack
    with one_sentence("model.new is no configuration of a model"):
        return LongspanConfig(**options)


def _head(own: dict[str, Any] | None, given: Any, task: Any) -> dict[str, Any]:
    """Returns the task's head with the options of `model.new.head`."""
    options = dict(given) if isinstance(given, Mapping) else {"head": given}
    if own is None or options.get("head") != own["head"]:
        wanted = "no head" if own is None else f"the head {own['head']!r}"
        raise InputError(f"model.new.head is {show(given)}, but the model of {task.name} has {wanted}; correct it")
    return {**own, **options}


def published_model(task: Any, model: Model, source: str | Path) -> Any:
    """Returns a model with published weights: unchanged, or with another attention, another stack and a
    longer input.
    """
    from longspan.checkpoints.decomposing import restacked
    from longspan.checkpoints.lengthening.lengthen import lengthen
    from longspan.checkpoints.loading import load_model
    from longspan.checkpoints.sources import load_any

    changes: dict[str, Any] = {"attention": model.attention, "max_tokens": model.max_tokens}
    given = {name: value for name, value in changes.items() if value is not None}
    if given:
        given["new_positions"] = model.new_positions
    loaded = for_task(lengthen(load_any(source), **given) if given else load_model(source), task, source)
    if model.stack is None:
        return loaded
    stacked: Any = restacked(loaded, model.stack)
    if stacked.stack_report.new:
        logger.warning("some weights are new and must be trained: %s", stacked.stack_report)
    return stacked


def unchanged_model(task: Any, model: Model, source: str | Path, entries: int) -> Any:
    """Returns a model with the configuration of a local folder and new weights, for those of the folder to be read in
    their place; None if they do not fit as they are, so that `published_model` has to change them.

    `entries` is the size of the tokenizer's vocabulary. Raises `InputError` if the folder is damaged.
    """
    from transformers import GenerationConfig

    from longspan.checkpoints.folder import check_model_folder
    from longspan.model_files import read_json

    folder, model_class = Path(os.path.expanduser(source)), task.model_class()
    changes = (model.attention, model.max_tokens, model.stack)
    if any(change is not None for change in changes) or not (folder / "config.json").is_file():
        return None
    plain = read_json(folder / "config.json")
    named = plain.get("model_type"), plain.get("architectures")
    if named != (LongspanConfig.model_type, [model_class.__name__]):
        return None
    check_model_folder(folder)
    with one_sentence(f"model {str(source)!r} cannot be loaded"):
        config = LongspanConfig.from_pretrained(folder)
        if _changed_fields(task, config) or 0 < entries - config.vocab_size <= len(task.new_tokens()):
            return None
        built = model_class(config)
        if (folder / "generation_config.json").is_file():
            built.generation_config = GenerationConfig.from_pretrained(folder)
    return built


def _changed_fields(task: Any, config: Any) -> dict[str, Any]:
    """Returns the fields of a task's model that a configuration has otherwise."""
    fields = task.model_fields()
    if (held := config.head) is not None and fields.get("head", {}).get("head") == held["head"]:
        fields["head"] = {**held, **fields["head"]}
    return {name: value for name, value in fields.items() if getattr(config, name) != value}


def for_task(loaded: Any, task: Any, source: str | Path) -> Any:
    """Converts the loaded model to the task's class: unchanged, with its encoder below a new head (pre-training, then a
    task), or with its encoder as the stack of a prefix language model (as UniLM from BERT).

    New weights are listed in a warning. Raises `InputError` if there is no encoder to convert.
    """
    from longspan.models import LongspanForPrefixLM
    from longspan.models.encoder_model import encoder_of

    model_class, known = task.model_class(), _changed_fields(task, loaded.config)
    if isinstance(loaded, model_class) and not known:
        return loaded
    encoder = encoder_of(loaded)
    if task.takes_encoders and loaded.config.is_encoder_decoder:
        encoder, known = loaded, {**known, **WITHOUT_DECODER}
    elif encoder is None:
        raise InputError(
            f"model.from is {str(source)!r}, a {type(loaded).__name__}; this task needs a {model_class.__name__}"
        )
    elif issubclass(model_class, LongspanForPrefixLM):
        return _as_writer(loaded, encoder, model_class, known)
    config = type(loaded.config).from_dict({**loaded.config.to_dict(), **known})
    model = model_class(config)
    prefix = "model." if encoder is loaded else ""
    weights = {f"{prefix}{name}": value for name, value in loaded.state_dict().items()}
    own = model.state_dict()
    taken = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict(taken, strict=False)
    if new := sorted(name for name in own if name not in taken):
        logger.warning("these weights are new and must be trained: %s", ", ".join(new))
    model.new_weights = tuple(new)
    model.report = getattr(loaded, "report", None)
    return model


def _as_writer(loaded: Any, encoder: Any, model_class: Any, known: Mapping[str, Any]) -> Any:
    """Converts an encoder's blocks and embeddings to a prefix language model; its output layer is the token table."""
    from longspan.attention import Attention
    from longspan.attention.features.starts import warm_start

    config = type(loaded.config).from_dict({**loaded.config.to_dict(), **AS_WRITER, **known})
    model = model_class(config)
    weights = {name.replace("encoder.", "decoder.", 1): value for name, value in encoder.state_dict().items()}
    weights["lm_head.weight"] = weights["decoder.embeddings.token.weight"]
    own = model.state_dict()
    model.load_state_dict({name: value for name, value in weights.items() if name in own}, strict=False)
    new = {name for name in own if name not in weights}
    for place, module in model.named_modules():
        if isinstance(module, Attention):
            missing = [name.removeprefix(f"{place}.") for name in new if name.startswith(f"{place}.")]
            started = warm_start(module, missing, config.init_std)
            new -= {f"{place}.{name}" for name, start in started.items() if start == "from_local"}
    if new:
        logger.warning("these weights are new and must be trained: %s", ", ".join(sorted(new)))
    model.new_weights = tuple(sorted(new))
    model.report = getattr(loaded, "report", None)
    return model


def make_room(model: Any, entries: int, task: Any) -> bool:
    """Adds embeddings for the task's new tokens to a published model, initialised randomly; returns whether
    it needed any.

    A vocabulary that lacks more than these tokens is not changed: such a tokenizer belongs to another model.
    """
    needed = 0 < entries - model.config.vocab_size <= len(task.new_tokens())
    if needed:
        model.resize_token_embeddings(entries, mean_resizing=False)
    return needed


def write_random(name: str, folder: Path, tokenizer: Any, seed: int) -> Path:
    """Saves one of `RANDOM` and `tokenizer` in the format of published models."""
    import torch
    import transformers

    kind, sizes = RANDOM[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model_class(model_class.config_class(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def go_on(model: Any, before: Path) -> None:
    """Loads the weights of the stage in the folder `before` into a model.

    Raises:
        InputError: its weights are different.
    """
    from longspan.checkpoints.loading import load_model

    try:
        model.load_state_dict(load_model(before).state_dict())
    except RuntimeError as error:
        raise _unfit(before, " ".join(str(error).split())[:300]) from None


def go_on_in_parts(model: Any, before: Path) -> None:
    """Reads the weights of the stage in the folder `before` into a sharded model; errors as in `go_on`."""
    from longspan.training.distributed_checkpoints import read_weights

    try:
        read_weights(model, before)
    except InputError as error:
        raise _unfit(before, str(error)) from None


def _unfit(before: Path, reason: str) -> InputError:
    return InputError(
        f"the weights of the stage in {str(before)!r} do not fit the next one ({reason}); a stage may change "
        "windows, lengths and dropout, but nothing that is trained"
    )
