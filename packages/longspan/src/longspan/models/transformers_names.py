"""The names of transformers that Longspan depends on, including those that differ between its versions.

Versions before 5.24 call the cache of a model `past_key_values`, in `forward`, in `generate` and in outputs; later ones
call it `cache`. Longspan calls it `cache` with every version and accepts `past_key_values` as well.

`IMPORTED`, `OVERRIDDEN` and `LOOKED_UP` list everything else, so that a new release of transformers is compared with
one file; a test compares them with the code and with the installed version. Classes that are found by
the name in a checkpoint are in the tables of `longspan.checkpoints`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from longspan.errors import InputError

NEW_CACHE, OLD_CACHE = "cache", "past_key_values"
CACHE = NEW_CACHE if NEW_CACHE in {field.name for field in fields(BaseModelOutputWithPast)} else OLD_CACHE
"""The name of a cache in the installed transformers."""


def cache_field(cache: Cache | None) -> dict[str, Any]:
    """Returns the cache as a field of an output of transformers."""
    return {CACHE: cache}


def cache_from(cache: Cache | None, others: dict[str, Any]) -> Cache | None:
    """Returns the cache argument under either name; removes the old one from `others`.

    Raises:
        InputError: both names were given.
    """
    old = others.pop(OLD_CACHE, None)
    if old is not None and cache is not None:
        raise InputError(
            f"{NEW_CACHE} and {OLD_CACHE} are two names of one argument, and both were given; leave one out"
        )
    return cache if old is None else old


def enable_checkpointing(model: PreTrainedModel, **options: Any) -> None:
    """Turn on activation checkpointing, which transformers before 5.23 calls gradient checkpointing.

    Args:
        model: the model. **options: options of `torch.utils.checkpoint.checkpoint`, such as `use_reentrant`; by
        default transformers' own.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(options or None)


class WithCache:
    """An output with the cache as `cache` with every version of transformers, besides its name there."""

    if TYPE_CHECKING:
        cache: Any
    elif CACHE != NEW_CACHE:

        @property
        def cache(self) -> Any:
            return getattr(self, CACHE)


IMPORTED: dict[str, tuple[str, ...]] = {
    "transformers": (
        "AttentionInterface",
        "AttentionMaskInterface",
        "AutoConfig",
        "AutoModelForQuestionAnswering",
        "AutoModelForSeq2SeqLM",
        "AutoTokenizer",
        "Cache",
        "DynamicCache",
        "EncoderDecoderCache",
        "GenerationConfig",
        "GenerationMixin",
        "LogitsProcessor",
        "PreTrainedConfig",
        "PreTrainedModel",
        "PreTrainedTokenizerFast",
        "PrinterCallback",
        "ProgressCallback",
        "SchedulerType",
        "TextStreamer",
        "Trainer",
        "TrainerCallback",
        "TrainingArguments",
        "__version__",
        "get_scheduler",
        "initialization",
        "set_seed",
    ),
    "transformers.activations": ("ACT2FN",),
    "transformers.cache_utils": ("CacheLayerMixin", "DynamicLayer", "StaticLayer"),
    "transformers.integrations": (
        "TensorBoardCallback",
        "get_available_reporting_integrations",
        "get_reporting_integration_callbacks",
    ),
    "transformers.modeling_layers": ("GradientCheckpointingLayer",),
    "transformers.modeling_outputs": (
        "BaseModelOutput",
        "BaseModelOutputWithPast",
        "BaseModelOutputWithPastAndCrossAttentions",
        "BaseModelOutputWithPooling",
        "CausalLMOutputWithPast",
        "MaskedLMOutput",
        "MultipleChoiceModelOutput",
        "QuestionAnsweringModelOutput",
        "Seq2SeqLMOutput",
        "Seq2SeqModelOutput",
        "SequenceClassifierOutput",
        "TokenClassifierOutput",
    ),
    "transformers.models.auto.modeling_auto": (
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    ),
    "transformers.pipelines": ("PIPELINE_REGISTRY",),
    "transformers.pipelines.base": ("Pipeline",),
    "transformers.trainer": ("OPTIMIZER_NAME", "SCHEDULER_NAME"),
    "transformers.trainer_utils": ("EvalLoopOutput",),
    "transformers.training_args": ("OptimizerNames",),
    "transformers.utils": ("ModelOutput", "logging"),
}
"""Module → names that are imported from it."""

OVERRIDDEN: dict[str, tuple[str, ...]] = {
    "CacheLayerMixin": (
        "get_mask_sizes",
        "get_max_length",
        "get_seq_length",
        "is_croppable",
        "lazy_initialization",
        "offload",
        "prefetch",
        "reorder_cache",
        "reset",
        "supports_early_init",
        "update",
    ),
    "DynamicLayer": ("batch_repeat_interleave", "batch_select_indices", "crop", "is_sliding"),
    "GenerationMixin": ("_expand_inputs_for_generation", "generate"),
    "Pipeline": (
        "_forward",
        "_load_feature_extractor",
        "_load_image_processor",
        "_load_processor",
        "_load_tokenizer",
        "_load_video_processor",
        "_sanitize_parameters",
        "postprocess",
        "preprocess",
    ),
    "PreTrainedConfig": ("attribute_map", "from_dict", "from_json_file", "model_type", "to_dict"),
    "PreTrainedModel": (
        "_init_weights",
        "_no_split_modules",
        "_skip_keys_device_placement",
        "_supports_sdpa",
        "_tied_weights_keys",
        "base_model_prefix",
        "config_class",
        "from_pretrained",
        "get_input_embeddings",
        "get_output_embeddings",
        "init_weights",
        "initialize_weights",
        "post_init",
        "resize_token_embeddings",
        "save_pretrained",
        "set_input_embeddings",
        "set_output_embeddings",
        "supports_gradient_checkpointing",
    ),
    "Trainer": (
        "_get_train_sampler",
        "_load_from_checkpoint",
        "_load_optimizer_and_scheduler",
        "_move_model_to_device",
        "_save_optimizer_and_scheduler",
        "compute_loss",
        "create_optimizer",
        "evaluation_loop",
        "get_batch_samples",
        "get_eval_dataloader",
        "get_train_dataloader",
        "log",
        "prediction_step",
        "save_model",
        "training_step",
    ),
    "TrainerCallback": (
        "on_epoch_begin",
        "on_evaluate",
        "on_log",
        "on_pre_optimizer_step",
        "on_save",
        "on_step_end",
        "on_train_begin",
        "on_train_end",
    ),
}
"""Class → members that classes of Longspan override; inherited ones are listed with the class that is extended."""

LOOKED_UP: dict[str, tuple[str, ...]] = {
    "transformers.generation.utils": ("_is_stateful", "create_masks_for_generate"),
    "transformers.trainer": ("accepts_loss_kwargs", "keys_to_ignore_at_inference"),
}
"""Module → names that it looks up on a model or its configuration, whose class need not have them."""
