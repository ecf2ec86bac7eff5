"""The model that a run starts from: a new one, a published one made long, a tiny random one as published ones lie on
disk (for trials), or what the stage before has left."""

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
"""`model.from: random-bart`, and so on: a class of transformers and its sizes; the vocabulary is the rows'."""

WITHOUT_DECODER: dict[str, Any] = {
    "decoder_layers": 0,
    "decoder_attention": LongspanConfig.decoder_attention,
    "is_encoder_decoder": False,
    "source_model_type": None,
    "source_fields": None,
}
"""Fields of the encoder of an encoder–decoder by itself, which transformers has no class for."""

AS_WRITER: dict[str, Any] = {
    "head": None,
    "pooler": False,
    "global_tokens": "none",
    "source_model_type": None,
    "source_fields": None,
}
"""Fields of an encoder that becomes a single stack, which reads a source and writes."""


def check_start(model: Model, tokenizer: Tokenizer) -> None:
    """Raise `InputError` where a recipe starts from a folder that is not here; a Hub name is looked up later."""
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
    """A randomly initialised model of the task's class; the tokenizer gives the vocabulary and the special tokens."""
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
    """The configuration of a new model with a vocabulary of so many entries.

    `special` are ids of special tokens, where the recipe gives none.
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
    """The task's head with the options that `model.new.head` gives it."""
    options = dict(given) if isinstance(given, Mapping) else {"head": given}
    if own is None or options.get("head") != own["head"]:
        wanted = "no head" if own is None else f"the head {own['head']!r}"
        raise InputError(f"model.new.head is {show(given)}, but the model of {task.name} has {wanted}; correct it")
    return {**own, **options}


def published_model(task: Any, model: Model, source: str | Path) -> Any:
    """A model with published weights: taken as it is, or with another attention, another stack and a longer input."""
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


def for_task(loaded: Any, task: Any, source: str | Path) -> Any:
    """The loaded model as the task's class: as it is, or its encoder below a new head (pre-training, then a task), or
    its encoder as the single stack of a prefix language model (as UniLM from BERT).

    What is new is named in a warning. Raises `InputError` where there is no encoder to take over.
    """
    from longspan.models import LongspanForPrefixLM
    from longspan.models.encoder_model import encoder_of

    model_class, fields = task.model_class(), task.model_fields()
    if (held := loaded.config.head) is not None and fields.get("head", {}).get("head") == held["head"]:
        fields["head"] = {**held, **fields["head"]}
    known = {name: value for name, value in fields.items() if getattr(loaded.config, name) != value}
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
    """An encoder's blocks and embeddings as those of one stack; its output layer is the table of the tokens."""
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
    """Give a published model embeddings for the task's new tokens, drawn as at initialisation; whether it needed any.

    A vocabulary that lacks more than these tokens is left alone: such a tokenizer belongs to another model.
    """
    needed = 0 < entries - model.config.vocab_size <= len(task.new_tokens())
    if needed:
        model.resize_token_embeddings(entries, mean_resizing=False)
    return needed


def write_random(name: str, folder: Path, tokenizer: Any, seed: int) -> Path:
    """Save one of `RANDOM` and `tokenizer`, as published ones lie on disk."""
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
    """Give a model the weights that the stage in the folder `before` has left.

    Raises:
        InputError: it has others.
    """
    from longspan.checkpoints.loading import load_model

    try:
        model.load_state_dict(load_model(before).state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the weights of the stage in {str(before)!r} do not fit the next one ({reason}); a stage may change "
            "windows, lengths and dropout, but nothing that is trained"
        ) from None
