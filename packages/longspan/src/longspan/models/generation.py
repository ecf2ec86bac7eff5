"""What every model that writes text shares: its body without a head, and `generate()` of transformers on states of our
own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import LongTensor, Tensor, nn
from torch.nn import functional
from transformers import Cache, GenerationMixin, LogitsProcessor
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import Seq2SeqModelOutput

from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveHead
from longspan.models.cache import room_of
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.inputs import Seq2SeqInputs, refuse_attentions, refuse_others, takes
from longspan.models.losses import token_loss, with_stack_loss
from longspan.models.outputs import DecoderOutput
from longspan.models.pretrained import CheckpointedBlock, LongspanPreTrainedModel
from longspan.models.transformers_names import CACHE, NEW_CACHE, cache_field, cache_from

ONLY_BESIDE_ENCODER = (
    *("global_attention_mask", "token_type_ids", "importance", "belongs_to", "encoder_outputs"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds"),
)
"""Arguments of a model with an encoder that mean nothing without one."""


class LongspanTrunk(LongspanPreTrainedModel):
    """The encoder and the decoder of a model, or the decoder alone where there is no encoder.

    `model.base_model` of a class that writes is one, over the modules of the model itself; `from_pretrained` reads one
    from the folder of such a model. The names of its weights are the same there and here.

    Args:
        config: of the model.
        decoder: the decoder of a model that is there already, to be shared; `None` makes one.
        encoder: the encoder beside it.
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
        """As transformers; weights that belong to another model are left as they are."""
        if not self.shares:
            super().init_weights()

    @takes(Seq2SeqInputs)
    def forward(self, inputs: Seq2SeqInputs, **others: Any) -> DecoderOutput | Seq2SeqModelOutput | tuple[Any, ...]:
        """The decoder's final states `(B, T, E)` in `last_hidden_state`.

        Without an encoder the text is read causally, and the arguments that begin with `decoder_` are not for it;
        beside one, `decoder_input_ids` `(B, T)` or `decoder_inputs_embeds` must be given.

        Raises:
            InputError: decoder inputs where there is no encoder, or none where there is one.
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
    """Whether the block of n-grams is always ours; transformers' warns of a prompt that it does not see."""

    def post_init(self) -> None:
        """As transformers, and say whether it may decode with an assistant."""
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
        """The model without its head, over the same modules: transformers' `base_model`."""
        encoder = getattr(self, "encoder", None)
        trunk = self.__dict__.get("_trunk")
        if trunk is None or trunk.decoder is not self.decoder or getattr(trunk, "encoder", None) is not encoder:
            trunk = LongspanTrunk(self.config, self.decoder, encoder)
            self.__dict__["_trunk"] = trunk  # no module of its own, whose weights would be there twice
        return trunk.train(self.training)

    def language_loss(
        self,
        logits: Tensor,
        labels: Tensor | None,
        count: Tensor | int | None,
        *outputs: Any,
        shift: bool = False,
    ) -> Tensor | None:
        """Cross-entropy `(B, T, V)` against `(B, T)` labels, `None` without labels, and what the stacks add of whom
        `outputs` come.

        `shift` compares them as `shifted` has it; `count` is what the sum is divided by.
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
        """The mask `(B, S)`, of which every layer makes what its mechanism sees: in one shape for all steps, with a
        column for each token that a static cache has room for."""
        room = room_of(cache_from(cache, others))
        if attention_mask is None or room is None:
            return attention_mask
        return functional.pad(attention_mask, (0, room - attention_mask.shape[1]))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Write text: `GenerationMixin.generate`, which encodes each document once.

        A model with layers that keep no state reads all that is written again in every step. With
        `cache_implementation="static"` keys and values have their room from the start, and the same text is written.
        transformers then compiles a step on a GPU, and on other devices with a `compile_config` that says so; all steps
        go through one graph. It compiles none of beam search. Ids in
        `no_repeat_ngram_ignored`, given or in the generation configuration, do not count for `no_repeat_ngram_size`:
        see `DistinctNgrams`.

        Raises:
            InputError: `max_new_tokens` or `max_length` asks for more tokens than the decoder has positions, which
                would otherwise show only when it gets there; `use_cache=True` for layers that keep no state; a
                static `cache_implementation` for layers that keep something else than keys and values; a
                `compile_config` without a static cache, with beams or `prefill_chunk_size`, or for layers of which no
                step is one graph; rows that are divided between processes.
        """
        if (cache := cache_from(kwargs.pop(NEW_CACHE, None), kwargs)) is not None:
            kwargs[CACHE] = cache
        if self.decoder.sequence_group is not None:
            raise InputError(
                "generate() goes on behind whole rows, and those of this model are divided between processes; generate "
                "with a model that divide_sequence has not changed"
            )
        if not self.decoder.keeps_state and not kwargs.get("use_cache"):
            kwargs["use_cache"] = False
        settings = args[1] if len(args) > 1 else kwargs.get("generation_config")
        limit, first = self.decoder.embeddings.max_tokens, self._prompt_length(args, kwargs)
        names = ("max_new_tokens", "max_length")
        new, total = (kwargs.get(name, getattr(settings or self.generation_config, name)) for name in names)
        # The last token is written but never read, so it needs no position.
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
        """Refuse a kind of cache that a layer cannot use, and have transformers compile no step that is not one graph
        for all lengths, as it would do on a GPU by itself."""
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
        from longspan.attention.parts.state import WindowLayer

        stack, several = self.decoder.layers, None
        what = f"cache_implementation={kind!r}" if asked else f"cache, a {type(own).__name__},"
        for step, block in enumerate(stack.applied):
            mechanism = block.attention.config.mechanism
            if type(stack.new_state(step)) not in (DynamicLayer, WindowLayer):
                raise InputError(
                    f"{what} holds keys and values, and attention {mechanism!r} keeps something "
                    "else between steps; leave it out"
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
        """Put our own block of n-grams in the place of transformers', where it is told to ignore some tokens."""
        ignored = given.pop("no_repeat_ngram_ignored", getattr(settings, "no_repeat_ngram_ignored", None))
        size = given.get("no_repeat_ngram_size", settings.no_repeat_ngram_size)
        if size and (ignored or self.own_ngrams):
            given["no_repeat_ngram_size"] = 0
            given["logits_processor"] = [*(given.get("logits_processor") or ()), DistinctNgrams(size, ignored or ())]

    def _prompt_length(self, args: tuple[Any, ...], given: dict[str, Any]) -> int:
        """Tokens that the decoder reads before it writes; without a prompt, the start token."""
        names = ("decoder_input_ids",) if self.config.is_encoder_decoder else ("inputs", "input_ids", "inputs_embeds")
        prompts = [given[name] for name in names if given.get(name) is not None]
        if args and not self.config.is_encoder_decoder and args[0] is not None:
            prompts.append(args[0])
        return prompts[0].shape[1] if prompts else 1


def shifted(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `(B, T, …)` beside what they predict: the label of the next token, which for the last one is there only
    in labels of `(B, T + 1)`. Other shapes are left alone."""
    if labels.dim() == 2 and labels.shape[1] in (outputs.shape[1], outputs.shape[1] + 1):
        labels = labels[:, 1:]
        return outputs[:, : labels.shape[1]], labels
    return outputs, labels


class DistinctNgrams(LogitsProcessor):
    """Forbids every token that would end an n-gram which the text has already, unless one of its tokens is ignored.

    Without ignored tokens it does what transformers' `no_repeat_ngram_size` does. Source: the duplicate block of
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
        """Scores `(B, V)` of the next tokens after `input_ids` `(B, T)`, −∞ where they are forbidden."""
        scores = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            scores[row, self.forbidden(tokens)] = float("-inf")
        return scores

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may not come next, in order."""
        before = len(tokens) - self.size + 1
        if before < 0:
            return []
        last = tokens[before:]
        if self.ignored.intersection(last):
            return []
        reach = self.size - 1
        ends = {tokens[place + reach] for place in range(before) if tokens[place : place + reach] == last}
        return sorted(ends - self.ignored)
