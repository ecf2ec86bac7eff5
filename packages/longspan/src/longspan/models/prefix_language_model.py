"""The prefix language model of UniLM: one stack that encodes a source bidirectionally and generates a target.

Dong et al. 2019, arXiv 1905.03197, section 2.3; with `pseudo_masks` trained as in UniLMv2 (Bao et al. 2020, arXiv
2002.12804), from which DialogLM is initialised. The pattern is `longspan.patterns.Prefix`. A row is::

    source, its padding, a start token | target                  each token predicted from the one before it
    source, its padding, a start token | target | pseudo masks   each token predicted from a mask in its place
    └──────── bidirectional ──────────┘
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from longspan.attention import MECHANISMS
from longspan.attention.base import projected
from longspan.attention.support import supports, with_feature
from longspan.errors import InputError
from longspan.models.cache import tokens_before
from longspan.models.configuration import LongspanConfig
from longspan.models.embeddings import the_given
from longspan.models.inputs import PrefixLMInputs, bool_mask, expand_inputs, refuse_attentions, refuse_others
from longspan.models.language_model import DecoderOnly
from longspan.models.losses import IGNORED
from longspan.models.outputs import TextOutput
from longspan.models.transformers_names import NEW_CACHE, OLD_CACHE, cache_field, cache_from
from longspan.patterns import Prefix
from longspan.stacks import stack_config


class Laid(NamedTuple):
    """Inputs of the stack: `(B, N, F)` embeddings, their mask and positions `(B, N)`, the bidirectional prefix, and the
    index of the first state that predicts a token.
    """

    embeds: Tensor
    mask: Tensor | None
    prefix: Prefix | None
    places: Tensor | None
    first: int


class LongspanForPrefixLM(DecoderOnly):
    """The source is bidirectional; target tokens attend to it and to earlier target tokens, in the same blocks."""

    own_ngrams: ClassVar[bool] = True

    def __init__(self, config: LongspanConfig) -> None:
        stack = stack_config(config.stack)
        if not stack.plain_blocks:
            raise InputError(f"stack={stack.stack!r} does not process a bidirectional source; leave it at 'sequential'")
        if config.cutoffs is not None:
            raise InputError(f"cutoffs={config.cutoffs} is for LongspanForCausalLM, which this is not; leave it out")
        for layer in range(config.num_hidden_layers):
            mechanism = config.layer_attention(layer)
            if not supports(mechanism, "prefix", causal=True):
                raise InputError(
                    f"attention of layer {layer} is {mechanism.describe()}, which supports no bidirectional source "
                    "before it writes; choose one that does, with such options: "
                    + ", ".join(able.describe() for able in with_feature(MECHANISMS.values(), "prefix", causal=True))
                )
        super().__init__(config)

    def stays_written(self) -> bool:
        """With pseudo masks tokens are generated one at a time, so that transformers refuses assisted decoding."""
        return self.config.pseudo_masks or super().stays_written()

    @expand_inputs(PrefixLMInputs)
    def forward(self, inputs: PrefixLMInputs, **others: Any) -> TextOutput | tuple[Any, ...]:
        """Returns the logits of each token of the target, and their loss, if there are `labels`; else those of
        the next token.

        `**others` are further arguments of transformers' classes, which must be `None` or without effect here.

        Raises:
            InputError: labels after a cache, or with `logits_to_keep`; no start token of the target, or no mask token;
                shapes that do not match; several tokens at once after a cache, with pseudo masks.
        """
        cache = cache_from(inputs.cache, others)
        refuse_others(others)
        refuse_attentions(inputs.output_attentions, self.config.output_attentions)
        labels, keep, past = inputs.labels, inputs.logits_to_keep, tokens_before(cache)
        if labels is not None and (past or keep):
            name = f"cache with {past} tokens" if past else f"logits_to_keep={keep}"
            raise InputError(f"{name} and labels, which are scored after a whole source, exclude each other; omit one")
        embeds = self._embedded(inputs.input_ids, inputs.inputs_embeds)
        if labels is None:
            laid = self._read(embeds, inputs.attention_mask, past)
        else:
            laid = self._guessed(embeds, inputs.attention_mask, labels)
        decoded = self.decoder(
            None,
            laid.mask,
            cache,
            use_cache=False if inputs.use_cache is None and labels is not None else inputs.use_cache,
            output_hidden_states=inputs.output_hidden_states,
            inputs_embeds=laid.embeds,
            position_ids=laid.places,
            prefix=laid.prefix,
        )
        if labels is None and self.config.pseudo_masks and decoded.cache is not None:
            decoded.cache.crop(-1)  # no token attends to a pseudo mask
        states = decoded.last_hidden_state[:, laid.first :]
        states = states[:, -keep if keep else 0 :] if labels is None else states[:, : labels.shape[1]]
        logits: Any = projected(self.lm_head, states)
        output = TextOutput(
            loss=self.language_loss(logits, labels, inputs.num_items_in_batch, decoded),
            logits=logits,
            **cache_field(decoded.cache),
            hidden_states=decoded.hidden_states,
        )
        return self.finish(output, inputs.return_dict)

    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Generates text after a source `(B, S)` with padding anywhere; returns the generated ids alone, `(B, T)`.

        The source is processed once, bidirectionally, followed by the start token. All further options are those of
        transformers' `generate`, for which the source is not part of the text: its n-grams may be repeated, and
        `max_length` and `min_length`, as arguments or configured, count generated tokens only. The global mask has no
        effect, as in `forward`.

        Raises:
            InputError: as in `LongspanWriter.generate`; options that split the processing of the source.
        """
        for name in ("prefill_chunk_size", NEW_CACHE, OLD_CACHE):
            if options.get(name) is not None:
                raise InputError(f"{name} is given, but a bidirectional source must be processed at once; omit it")
        if self.config.pseudo_masks and options.get("cache_implementation") is not None:
            raise InputError("cache_implementation is given, but pseudo masks are taken out of a cache again; omit it")
        if options.get("use_cache", True) is False:
            raise InputError("use_cache=False would read the source again for every token; leave it out")
        inputs = PrefixLMInputs(input_ids, attention_mask, inputs_embeds=inputs_embeds)
        embeds = self._embedded(inputs.input_ids, inputs.inputs_embeds)
        mask = bool_mask("attention_mask", inputs.attention_mask, embeds)
        source, mask = self._with_start(embeds, mask)
        self._count_what_is_written(options, source.shape[1])
        return super().generate(inputs_embeds=source, attention_mask=mask.long(), **options)

    def _count_what_is_written(self, options: dict[str, Any], source: int) -> None:
        """Compensates that transformers subtracts the source's tokens from total lengths, with negative
        values if needed.
        """
        given = options.get("generation_config")
        settings = given or self.generation_config
        names = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")
        most, most_new, least, least_new = (options.get(name, getattr(settings, name)) for name in names)
        changes: dict[str, int | None] = {}
        if most is not None:
            changes = {"max_length": None, "max_new_tokens": most if most_new is None else most_new}
        if least is not None and least_new is None:
            changes["min_length"] = source + least
        if given is None:
            options.update(changes)
        else:
            options["generation_config"] = deepcopy(given)
            options["generation_config"].update(**changes)
            for name in changes:
                options.pop(name, None)

    def _prompt_length(self, args: tuple[Any, ...], given: dict[str, Any]) -> int:
        """As in every decoder; a mask needs a position of its own after the last token."""
        return super()._prompt_length(args, given) + self.config.pseudo_masks

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Returns the embeddings of either, `(B, T, F)`."""
        given = the_given(input_ids, inputs_embeds)
        return self.decoder.embeddings.of_tokens(given) if inputs_embeds is None else given

    def _read(self, embeds: Tensor, mask: Tensor | None, past: int) -> Laid:
        """Returns the inputs for a source `(B, S, F)`, or for generated tokens after `past` ones; with a mask
        token if needed.
        """
        prefix, first = (None if past else Prefix(embeds.shape[1])), 0
        if self.config.pseudo_masks:
            if past and embeds.shape[1] != 1:
                raise InputError(
                    f"input_ids has {embeds.shape[1]} tokens after a cache, and with pseudo_masks=True one is "
                    "predicted at a time; give them so"
                )
            first = embeds.shape[1]
            embeds, mask = self._with_token(embeds, mask, self._mask_token)
        return Laid(embeds, mask, prefix, None, first)

    def _guessed(self, embeds: Tensor, mask: Tensor | None, labels: Tensor) -> Laid:
        """Returns the inputs for a source `(B, S, F)` with its target `(B, T)`."""
        if labels.dim() != 2 or len(labels) != len(embeds):
            raise InputError(
                f"labels has shape {tuple(labels.shape)}, but the input has {len(embeds)} rows; give each a row of ids"
            )
        real = labels != IGNORED
        embeds, mask = self._with_start(embeds, bool_mask("attention_mask", mask, embeds))
        count, targets = embeds.shape[1], labels.shape[1]
        tokens = labels.masked_fill(~real, self.config.pad_token_id or 0)
        written = self.decoder.embeddings.of_tokens(tokens)
        if not self.config.pseudo_masks:
            embeds, mask = torch.cat([embeds, written[:, :-1]], 1), torch.cat([mask, real[:, :-1]], 1)
            return Laid(embeds, mask, Prefix(count), None, count - 1)
        masks = self.decoder.embeddings.of_tokens(torch.full_like(tokens, self._mask_token))
        embeds, mask = torch.cat([embeds, written, masks], 1), torch.cat([mask, real, real], 1)
        places = (mask[:, : count + targets].cumsum(1) - 1).clamp(min=0)
        places = torch.cat([places, places[:, count:]], 1)
        return Laid(embeds, mask, Prefix(count, targets), places, count + targets)

    def _with_start(self, embeds: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Appends a start token to a source and its mask, after all padding, where every row continues."""
        start = self.config.decoder_start_token_id
        start = self.config.eos_token_id if start is None else start
        if not isinstance(start, int):
            raise InputError(
                f"decoder_start_token_id=None and eos_token_id={start} leave no token that starts what is written; set "
                "one in the configuration"
            )
        if mask is None:
            mask = torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        embeds, mask = self._with_token(embeds, mask, start)
        assert mask is not None
        return embeds, mask

    def _with_token(self, embeds: Tensor, mask: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
        """Appends one real token to every row of `(B, T, F)` and its mask."""
        ids = torch.full((len(embeds), 1), token, device=embeds.device)
        more = self.decoder.embeddings.of_tokens(ids).to(embeds.dtype)
        mask = None if mask is None else torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        return torch.cat([embeds, more], 1), mask

    @property
    def _mask_token(self) -> int:
        """Returns the mask token for predictions."""
        token = self.config.mask_token_id
        if token is None or token >= self.config.vocab_size:
            raise InputError(
                f"pseudo_masks=True reads mask_token_id={token}, with vocab_size={self.config.vocab_size}; give the "
                "tokenizer's mask_token_id in the configuration"
            )
        return token
