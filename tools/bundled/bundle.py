"""Put a trained encoder into the package, or take the package's out to train it on.

    python tools/bundled/bundle.py runs/encoder             # into the package
    python tools/bundled/bundle.py runs/encoder --mix 0.6   # six tenths of it and four of what is in the package
    python tools/bundled/bundle.py --out runs/encoder       # out of it, in float32, for `model.from` of a recipe

Weights are stored as float16, and the table of words, most of them, in 8 bits with a scale for each word: a third of
the size in float32. The vectors hardly turn; `benchmarks/embed.py` measures by how much.
The model card, README.md in the bundle, is written by hand and stays.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rounding import in_eight_bits
from safetensors.torch import load_file, save_file
from torch import Tensor

import longspan_documents
from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan_documents.inference.encoders import SCALE, restored

BUNDLED = Path(longspan_documents.__file__).parent / "bundled" / "encoder"
TABLE = "model.encoder.embeddings.token.weight"


def put_in(source: Path, mix: float) -> None:
    """Store the model and the tokenizer of a folder.

    A model that was trained on from the package's, on other texts, forgets less where its weights are mixed with those
    that it began with (Wortsman et al. 2022, Robust fine-tuning of zero-shot models).
    """
    model = load_model(source)
    if mix != 1:
        _, before = shipped()
        mixed = {name: mix * weight.float() + (1 - mix) * before[name] for name, weight in model.state_dict().items()}
        model.load_state_dict(mixed)
    partial = BUNDLED.with_name("encoder.partial")
    shutil.rmtree(partial, ignore_errors=True)
    load_tokenizer(source).save_pretrained(partial)
    model.config.save_pretrained(partial)
    weights = {name: weight.half().contiguous() for name, weight in model.state_dict().items()}
    weights[TABLE], weights[TABLE + SCALE] = in_eight_bits(model.state_dict()[TABLE].float())
    save_file(weights, partial / "model.safetensors")
    BUNDLED.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        file.replace(BUNDLED / file.name)
    partial.rmdir()
    size = sum(file.stat().st_size for file in BUNDLED.iterdir())
    sys.stdout.write(f"{BUNDLED}: {size / 2**20:.1f} MiB\n")


def shipped() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The fields and the weights, in float32, of the encoder in the package."""
    from longspan.models import LongspanConfig

    return LongspanConfig.from_pretrained(BUNDLED).to_dict(), restored(load_file(BUNDLED / "model.safetensors"))


def take_out(target: Path, changed: Mapping[str, Tensor] | None = None) -> None:
    """Write the stored model and its tokenizer as a checkpoint, or with some `changed` weights."""
    from longspan.models import LongspanConfig, LongspanForSentenceEmbedding

    fields, weights = shipped()
    model = LongspanForSentenceEmbedding(LongspanConfig.from_dict(fields))
    model.load_state_dict({**weights, **(changed or {})})
    model.save_pretrained(target)
    load_tokenizer(BUNDLED).save_pretrained(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", action="store_true")
    parser.add_argument("--mix", type=float, default=1.0, help="how much of it, from 0 to 1; the package's is the rest")
    options = parser.parse_args()
    if options.out:
        take_out(options.folder)
    else:
        put_in(options.folder, options.mix)
