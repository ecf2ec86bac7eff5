"""What every model that writes text shares: `generate()` of transformers, on states of our own."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import GenerationMixin

from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveHead
from longspan.models.decoder import Decoder
from longspan.models.losses import token_loss
from longspan.models.ngrams import DistinctNgrams
from longspan.models.outputs import with_stack_loss
from longspan.models.pretrained import LongspanPreTrainedModel
from longspan.models.trunk import LongspanTrunk


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
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """The mask `(B, S)` as it is: every layer makes of it what its mechanism sees."""
        return attention_mask

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Write text: `GenerationMixin.generate`, which encodes each document once.

        A model with layers that keep no state reads all that is written again in every step. Ids in
        `no_repeat_ngram_ignored`, given or in the generation configuration, do not count for `no_repeat_ngram_size`:
        see `DistinctNgrams`.

        Raises:
            InputError: `max_new_tokens` or `max_length` asks for more tokens than the decoder has positions, which
                would otherwise show only when it gets there; `use_cache=True` for layers that keep no state.
        """
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
        parent: Any = super()
        return parent.generate(*args, **kwargs)

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
