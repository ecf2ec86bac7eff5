"""Base classes of generative models: the model without its head, and transformers' `generate()` with
Longspan's states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import LongTensor, Tensor, nn
from torch.nn import functional
from transformers import Cache, GenerationMixin, LogitsProcessor
from transformers.modeling_outputs import Seq2SeqModelOutput

from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveHead
from longspan.models.cache import room_of
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.inputs import Seq2SeqInputs, expand_inputs, refuse_attentions, refuse_others
from longspan.models.losses import token_loss, with_stack_loss
from longspan.models.outputs import DecoderOutput
from longspan.models.pretrained import CheckpointedBlock, LongspanPreTrainedModel
from longspan.models.transformers_names import CACHE, NEW_CACHE, cache_field, cache_from

ONLY_BESIDE_ENCODER = (
    *("global_attention_mask", "token_type_ids", "importance", "belongs_to", "encoder_outputs"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds"),
)
"""Arguments of a model with an encoder that have no effect without one."""


class LongspanTrunk(LongspanPreTrainedModel):
    """The encoder and the decoder of a model, or the decoder of a decoder-only model.

    `model.base_model` of a generative class is one, with the modules of the model itself; `from_pretrained` loads one
    from the folder of such a model. The names of its weights are the same in both.

    Args:
        config: fields of the model.
        decoder: the decoder of an existing model, to be shared; `None` creates one.
        encoder: the encoder for it.
    """

    def __init__(self, config: LongspanConfig, decoder: Decoder | None = None, encoder: Encoder | None = None) -> None:
        super().__init__(config)
        self.shares = decoder is not None
        if config.is_encoder_decoder:
            self.encoder = Encoder(config, block=CheckpointedBlock) if encoder is None else encoder
            table = "embeddings.token.weight"
            self._tied_weights_keys = {f"decoder.{table}": f"encoder.{table}"}
        self.decoder = Decoder(config, source=config.is_encoder_decoder) if decoder is None else decoder
        self.post_init()

    def init_weights(self) -> None:
        """As transformers; weights of another model are not changed."""
        if not self.shares:
            super().init_weights()

    @expand_inputs(Seq2SeqInputs)
    def forward(self, inputs: Seq2SeqInputs, **others: Any) -> DecoderOutput | Seq2SeqModelOutput | tuple[Any, ...]:
        """Returns the decoder's final states `(B, T, E)` in `last_hidden_state`.

        A decoder-only model processes `input_ids` causally, and does not accept the arguments that begin with
        `decoder_`; an encoder-decoder needs `decoder_input_ids` `(B, T)` or `decoder_inputs_embeds`.

        Raises:
            InputError: decoder inputs without an encoder, or none with one.
        """
        cache = cache_from(inputs.cache, others)
        refuse_others(others)
        refuse_attentions(inputs.output_attentions, self.config.output_attentions)
        use_cache, output_hidden_states = inputs.use_cache, inputs.output_hidden_states
        if not self.config.is_encoder_decoder:
            if any(getattr(inputs, name) is not None for name in ONLY_BESIDE_ENCODER):
                raise InputError("a decoder without an encoder reads input_ids causally; leave out the other inputs")
            decoded = self.decoder(
                inputs.input_ids, inputs.attention_mask, cache, use_cache, output_hidden_states, inputs.inputs_embeds
            )
            return self.finish(decoded, inputs.return_dict)
        if inputs.decoder_input_ids is None and inputs.decoder_inputs_embeds is None:
            raise InputError("give decoder_input_ids or decoder_inputs_embeds (neither given)")
        encoded: Any = inputs.encoder_outputs
        if encoded is None:
            encoded = self.encoder(**inputs.for_encoder())
        source, source_mask = self.decoder.source_of(encoded, inputs.attention_mask)
        decoded = self.decoder(
            inputs.decoder_input_ids,
            inputs.decoder_attention_mask,
            cache,
            use_cache,
            output_hidden_states,
            inputs.decoder_inputs_embeds,
            source=source,
            source_mask=source_mask,
        )
        output = Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            **cache_field(decoded.cache),
            decoder_hidden_states=decoded.hidden_states,
            encoder_last_hidden_state=encoded[0],
            encoder_hidden_states=getattr(encoded, "hidden_states", None),
        )
        return self.finish(output, inputs.return_dict)


class LongspanWriter(LongspanPreTrainedModel, GenerationMixin):
    """A decoder and a language-model head, with `generate()`."""

    accepts_loss_kwargs = True  # the Trainer passes `num_items_in_batch`
    decoder: Decoder
    lm_head: nn.Linear | AdaptiveHead
    own_ngrams: ClassVar[bool] = False
    """Whether to always replace the repetition block for n-grams; that of transformers excludes a prompt
    passed as embeddings.
    """

    def post_init(self) -> None:
        """As transformers; also sets whether assisted decoding is supported."""
        self._is_stateful = self.stays_written()
        super().post_init()

    def stays_written(self) -> bool:
        """Whether a state cannot be rolled back, or there is none, so that transformers refuses assisted decoding."""
        if not self.decoder.keeps_state:
            return True
        stack = self.decoder.layers
        return not all(stack.new_state(step).is_croppable for step in range(len(stack.applied)))

    @property
    def model(self) -> LongspanTrunk:
        """The model without its head, with the same modules: transformers' `base_model`."""
        encoder = getattr(self, "encoder", None)
        trunk = self.__dict__.get("_trunk")
        if trunk is None or trunk.decoder is not self.decoder or getattr(trunk, "encoder", None) is not encoder:
            trunk = LongspanTrunk(self.config, self.decoder, encoder)
            self.__dict__["_trunk"] = trunk  # not a registered submodule, whose weights would be duplicates
        return trunk.train(self.training)

    def language_loss(
        self,
        logits: Tensor,
        labels: Tensor | None,
        count: Tensor | int | None,
        *outputs: Any,
        shift: bool = False,
    ) -> Tensor | None:
        """Returns the cross-entropy of logits `(B, T, V)` for `(B, T)` labels, plus the losses of the stacks in
        `outputs`; `None` without labels.

        `shift` aligns them with `shifted`; `count` is the divisor of the sum.
        """
        if labels is None:
            return None
        if shift:
            logits, labels = shifted(logits, labels)
        loss = token_loss(logits, labels, self.config.label_smoothing, count)
        return with_stack_loss(loss, *outputs, labels=labels, count=count)

    @staticmethod
    def create_masks_for_generate(
        attention_mask: Tensor | None = None, cache: Cache | None = None, **others: Any
    ) -> Tensor | None:
        """Returns the mask `(B, S)`, from which every layer's mechanism computes its own: in one shape for all steps,
        with a column for each place of a static cache.
        """
        room = room_of(cache_from(cache, others))
        if attention_mask is None or room is None:
            return attention_mask
        return functional.pad(attention_mask, (0, room - attention_mask.shape[1]))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generates text with `GenerationMixin.generate`; each document is encoded once.

        A model with layers that have no state processes all generated tokens again in every step. With
        `cache_implementation="static"` keys and values are allocated at the start, and the output is the same.
        transformers then compiles a step on a GPU, and on other devices with a `compile_config` that requests it; all
        steps use one graph. It does not compile beam search. Ids in `no_repeat_ngram_ignored`, as an argument or in the
        generation configuration, do not count for `no_repeat_ngram_size`: see `DistinctNgrams`.

        Raises:
            InputError: `max_new_tokens` or `max_length` exceeds the positions of the decoder, which would otherwise
                fail only when it gets there; `use_cache=True` for layers without a state; a static
                `cache_implementation` for layers with a state other than keys and values; a `compile_config` without a
                static cache, with beams or `prefill_chunk_size`, or for layers whose step cannot be one graph;
                sequence parallel rows.
        """
        if (cache := cache_from(kwargs.pop(NEW_CACHE, None), kwargs)) is not None:
            kwargs[CACHE] = cache
        if self.decoder.sequence_group is not None:
            raise InputError(
                "generate() continues whole rows, and those of this model are sharded between processes; generate "
                "with a model that divide_sequence has not changed"
            )
        if not self.decoder.keeps_state and not kwargs.get("use_cache"):
            kwargs["use_cache"] = False
        settings = args[1] if len(args) > 1 else kwargs.get("generation_config")
        limit, first = self.decoder.embeddings.max_tokens, self._prompt_length(args, kwargs)
        names = ("max_new_tokens", "max_length")
        new, total = (kwargs.get(name, getattr(settings or self.generation_config, name)) for name in names)
        # The last token is generated but not processed, so it needs no position.
        if new is not None and first + new - 1 > limit:
            raise InputError(
                f"max_new_tokens={new} is more than this model can write; give at most {limit + 1 - first}"
            )
        if new is None and total is not None and total - 1 > limit:
            raise InputError(f"max_length={total} is more than this model writes; give at most {limit + 1}")
        self._ignore_in_ngrams(kwargs, settings or self.generation_config)
        self._settle_cache(kwargs, settings or self.generation_config)
        parent: Any = super()
        return parent.generate(*args, **kwargs)

    def _settle_cache(self, given: dict[str, Any], settings: Any) -> None:
        """Raises for a kind of cache that a layer does not support, and disables transformers' automatic compilation on
        a GPU for steps that are not one graph for all lengths.
        """
        compiles = given.get("compile_config", getattr(settings, "compile_config", None)) is not None
        kind, own = given.get("cache_implementation", settings.cache_implementation), given.get(CACHE)
        asked, passed = "static" in str(kind), room_of(own) is not None
        if not (asked or passed) or not self.decoder.keeps_state:
            if compiles:
                raise InputError(
                    "compile_config was given without a static cache, so that every step would be a graph of its own; "
                    "give cache_implementation='static' as well, or leave it out"
                )
            return
        from longspan.attention.parts.state import GrowingLayer, WindowLayer

        stack, several = self.decoder.layers, None
        what = f"cache_implementation={kind!r}" if asked else f"cache, a {type(own).__name__},"
        for step, block in enumerate(stack.applied):
            mechanism = block.attention.config.mechanism
            if type(stack.new_state(step)) not in (GrowingLayer, WindowLayer):
                raise InputError(
                    f"{what} contains keys and values, and attention {mechanism!r} has another state; leave it out"
                )
            if not supports(block.attention.config, "static_cache", causal=True):
                several = f"a step of attention {mechanism!r} is not one graph for all lengths"
        for name, least in (("num_beams", 1), ("prefill_chunk_size", 0)):
            value = given.get(name, getattr(settings, name, None))
            if value is not None and value > least:
                several = f"{name}={value} goes other ways than one token after the other in each row"
        if several is not None and compiles:
            raise InputError(f"compile_config was given, and {several}; leave out one of them")
        if several is not None:
            given["disable_compile"] = True

    def _ignore_in_ngrams(self, given: dict[str, Any], settings: Any) -> None:
        """Replaces transformers' repetition block for n-grams if some tokens are ignored."""
        ignored = given.pop("no_repeat_ngram_ignored", getattr(settings, "no_repeat_ngram_ignored", None))
        size = given.get("no_repeat_ngram_size", settings.no_repeat_ngram_size)
        if size and (ignored or self.own_ngrams):
            given["no_repeat_ngram_size"] = 0
            given["logits_processor"] = [*(given.get("logits_processor") or ()), DistinctNgrams(size, ignored or ())]

    def _prompt_length(self, args: tuple[Any, ...], given: dict[str, Any]) -> int:
        """Returns the number of tokens that the decoder processes before it generates; without a prompt,
        the start token.
        """
        names = ("decoder_input_ids",) if self.config.is_encoder_decoder else ("inputs", "input_ids", "inputs_embeds")
        prompts = [given[name] for name in names if given.get(name) is not None]
        if args and not self.config.is_encoder_decoder and args[0] is not None:
            prompts.append(args[0])
        return prompts[0].shape[1] if prompts else 1


def shifted(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Aligns outputs `(B, T, …)` with the labels of the next tokens; the last output has one only in labels `(B, T +
    1)`. Other shapes are unchanged.
    """
    if labels.dim() == 2 and labels.shape[1] in (outputs.shape[1], outputs.shape[1] + 1):
        labels = labels[:, 1:]
        return outputs[:, : labels.shape[1]], labels
    return outputs, labels


class DistinctNgrams(LogitsProcessor):
    """Forbids every token that would complete an n-gram which is already in the text, unless one of its
    tokens is ignored.

    Without ignored tokens it is the same as transformers' `no_repeat_ngram_size`. Source: the duplicate block of
    UniLM's decoder, which DialogLM uses with "." ignored.

    Args:
        size: n.
        ignored: ids.
    """

    def __init__(self, size: int, ignored: Sequence[int] = ()) -> None:
        if size < 1:
            raise InputError(f"size={size} is no length of an n-gram; give 1 or more")
        self.size = size
        self.ignored = frozenset(ignored)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns scores `(B, V)` of the next tokens after `input_ids` `(B, T)`, −∞ for forbidden ones."""
        scores = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            scores[row, self.forbidden(tokens)] = float("-inf")
        return scores

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """Returns the forbidden next tokens, in order."""
        before = len(tokens) - self.size + 1
        if before < 0:
            return []
        last = tokens[before:]
        if self.ignored.intersection(last):
            return []
        reach = self.size - 1
        ends = {tokens[place + reach] for place in range(before) if tokens[place : place + reach] == last}
        return sorted(ends - self.ignored)
