"""Tiny random models that write, of every kind that transformers has, in folders as `save_pretrained` makes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

WORDS = [
    *("the", "a", "snail", "wall", "garden", "slow", "night", "moves", "sleeps", "sees", "rain", "and", "of", "in"),
    *("under", "old", "green", ".", "summarize", ":", "<doc>"),
]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
TEXT = "The old snail moves in the garden. It sleeps under the green wall at night. Rain sees the snail and the wall. "
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
_BART = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    "d_model": 16,
    "max_position_embeddings": 64,
    "init_std": 0.3,
}
_LED = {**_BART, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 16}
del _LED["max_position_embeddings"]
SIZES: dict[str, dict[str, Any]] = {
    "T5": _T5,
    "MT5": _T5,
    "LongT5": {**_T5, "local_radius": 7, "encoder_attention_type": "transient-global", "global_block_size": 4},
    "Bart": _BART,
    "MBart": _BART,
    "Pegasus": _BART,
    "PegasusX": {**_BART, "block_size": 8, "num_global_tokens": 4},
    "BigBirdPegasus": {**_BART, "block_size": 4, "num_random_blocks": 1},
    "Marian": _BART,
    "LED": _LED,
}
"""Kind → the fields of its configuration, but for the tokens."""


def word_tokenizer(**options: Any) -> Any:
    """A tokenizer of whole words, lower case, that ends every text in `</s>`; others are `<unk>`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *WORDS, *(f"w{number}" for number in range(20))]
    core: Any = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names, **options)


def write_folder(folder: Path, kind: str, *, tokenizer: Any = None, generation: Any = None, **fields: Any) -> Path:
    """A folder with a random model of that kind and its tokenizer.

    Args:
        folder: does not exist.
        kind: of `SIZES`.
        tokenizer: another one.
        generation: fields of `generation_config.json`.
        fields: of the configuration, in the place of those of `SIZES`.
    """
    import transformers

    tokenizer = tokenizer or word_tokenizer()
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer), **tokens, **{"forced_eos_token_id": None, **SIZES[kind], **fields}
    )
    head = "MTModel" if kind == "Marian" else "ForConditionalGeneration"
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}{head}")(config)
    for parameter in model.parameters():
        if kind in ("T5", "MT5", "LongT5") and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)  # its own start hardly tells tokens apart
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def peer(source: Path, texts: list[str], *, skip_special_tokens: bool = True, **options: Any) -> list[str]:
    """What transformers writes about each text, alone."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    written = []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        if type(model).__name__.startswith("LED"):  # whose first token is global in summaries
            inputs["global_attention_mask"] = (torch.arange(encoded["input_ids"].shape[1]) == 0).long()[None]
        with torch.no_grad():
            output = model.generate(**inputs, **options)
        written.append(tokenizer.decode(output[0], skip_special_tokens=skip_special_tokens))
    return written


def words(text: object) -> list[str]:
    """What stands between white space."""
    return str(text).split()


def with_fields(source: Path, folder: Path, **fields: Any) -> Path:
    """A copy of a model whose `config.json` says more."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")
    return folder
