"""`longspan.generate`: continues a prompt with a language model, optionally streamed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from longspan.devices import check_loads, check_named
from longspan.errors import InputError, one_sentence
from longspan.settings import Beams, Count, NewTokens, Range, Seed, Share, check, check_kind, convert, show

PIECE = 4096
"""Prompt tokens per prefill chunk."""


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Options of text generation.

    Attributes:
        max_tokens: maximum number of new tokens; fewer if the model ends its text.
        temperature: 0 is greedy decoding; otherwise sampling, more diverse at higher values.
        top_p: nucleus sampling: sample among the most likely tokens with this total probability.
        top_k: sample among this number of tokens; `None` among all.
        beams: beam search with this number of beams instead of sampling.
        seed: seed of the sampling; `None` uses another one each time.
    """

    max_tokens: NewTokens = 400
    temperature: Annotated[float, Range(0, 100)] = 0.8
    top_p: Share = 1.0
    top_k: Count | None = None
    beams: Beams = 1
    seed: Seed | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for numbers out of range."""
        check(self)

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of transformers' `generate`."""
        draws = self.temperature > 0 and self.beams == 1
        drawing = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k or 0}
        return {
            "max_new_tokens": self.max_tokens,
            "num_beams": self.beams,
            "do_sample": draws,
            **(drawing if draws else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A generated text.

    Attributes:
        text: the new text, without the prompt.
        prompt_tokens, tokens: number of tokens read and written.
        seconds: wall-clock time.
    """

    text: str
    prompt_tokens: int
    tokens: int
    seconds: float


def generate(
    prompt: str,
    model: Any,
    tokenizer: Any = None,
    *,
    writing: Writing | None = None,
    stream: Callable[[str], None] | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Continuation:
    """Continues a text with a language model.

    Args:
        prompt: the text to continue; an empty text begins a document.
        model: the folder of a model that `longspan train` made for `language_model`, or such a model.
        tokenizer: the model's tokenizer, if `model` is not a folder.
        writing: options of generation; see `Writing`.
        stream: called with each piece of text as soon as it is written; not with beam search, which has it only at the
            end.
        device: PyTorch device name ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: dtype of the weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: the model does not continue texts, the prompt is longer than its longest input or has an unpaired
            surrogate, numbers are out of range, the device does not exist, or a device is passed for a loaded model.
            Exceptions of `stream` are raised unchanged.
    """
    import torch

    from longspan.tasks.language_modelling.corpus_task import separator

    writing = Writing() if writing is None else writing
    check_kind(writing, "writing", Writing, "a Writing")
    if stream is not None and not callable(stream):
        raise InputError(f"stream is {show(stream)}; give a function that takes a text, or leave it out")
    convert(str, prompt, "prompt")
    check_named(device, dtype)
    if tokenizer is None:
        check_kind(model, "model", (str, Path), "a folder, or a model together with its tokenizer")
        model, tokenizer = _load(str(model), device, dtype)
    elif not hasattr(model, "generate") or not hasattr(tokenizer, "decode"):
        given = f"model is a {type(model).__name__} and tokenizer a {type(tokenizer).__name__}"
        raise InputError(f"{given}; give a folder, or a model and its tokenizer")
    else:
        check_loads("model", model, device, dtype)
    begin = time.perf_counter()
    # Every document begins with the separator, as in training with `longspan.data.corpus.tokens.Stream`.
    ids = [separator(tokenizer), *tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]]
    input_ids = torch.tensor([ids], device=model.device)
    failed: list[Exception] = []
    streamer = None if stream is None or writing.beams > 1 else streamer_of(tokenizer, stream, failed)
    # In pieces, where that costs no more, only the activations of a piece are held at once.
    chunked = {"prefill_chunk_size": PIECE} if len(ids) > PIECE and reads_in_pieces(model) else {}
    every = range(torch.cuda.device_count())  # named, since PyTorch warns of more than one that is not
    seeded = nullcontext() if writing.seed is None else torch.random.fork_rng(every)
    try:
        with torch.inference_mode(), seeded, one_sentence("the model cannot continue the prompt"):
            if writing.seed is not None:
                torch.manual_seed(writing.seed)
            output = model.generate(
                input_ids, attention_mask=torch.ones_like(input_ids), streamer=streamer, **writing.options(), **chunked
            )
    except InputError:
        if failed:  # not the model: the output is full, or closed
            raise failed[0] from None
        raise
    new = output[0, len(ids) :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    if stream is not None and streamer is None:
        stream(text)
    return Continuation(text=text, prompt_tokens=len(ids), tokens=len(new), seconds=time.perf_counter() - begin)


def reads_in_pieces(model: Any) -> bool:
    """Whether every layer sees all tokens or a window of them, and so reads pieces at the cost of one pass; others sort
    or summarise again what they have read."""
    from longspan.attention.parts.state import GrowingLayer, WindowLayer

    decoder = getattr(model, "decoder", None)
    if not getattr(decoder, "keeps_state", False):
        return False
    layers: Any = getattr(decoder, "layers", None)
    states = [(type(layers.new_state(step)), block.attention.config) for step, block in enumerate(layers.applied)]
    return all(kind is WindowLayer or (kind is GrowingLayer and config.sees_everything) for kind, config in states)


def streamer_of(tokenizer: Any, stream: Callable[[str], None], failed: list[Exception]) -> Any:
    """Returns a transformers streamer that passes the text to `stream` instead of printing it, and collects its
    errors."""
    from transformers import TextStreamer

    class Pieces(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            try:
                if text:
                    stream(text)
            except Exception as error:
                failed.append(error)
                raise

    return Pieces(tokenizer, skip_prompt=True, skip_special_tokens=True)


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> tuple[Any, Any]:
    """Loads the model in a folder in evaluation mode, and its tokenizer."""
    from longspan.checkpoints.architectures import ARCHITECTURES
    from longspan.checkpoints.loading import load_pair
    from longspan.checkpoints.sources import read_config
    from longspan.inference.model_use import architecture_of, continues_texts, other_use, writes_texts
    from longspan.models import LongspanConfig, LongspanForCausalLM

    config_json = read_config(source)
    kind, name = config_json.get("model_type"), architecture_of(config_json)
    if kind not in {*ARCHITECTURES, LongspanConfig.model_type} and continues_texts(kind, name):
        raise other_use(source, name, "which was not trained here")
    if kind != LongspanConfig.model_type and writes_texts(kind, name):
        raise other_use(source, name, "which does not continue texts")
    model, tokenizer = load_pair(source, device, dtype)
    if not isinstance(model, LongspanForCausalLM):
        raise other_use(source, type(model).__name__, "which does not continue texts")
    return model, tokenizer
