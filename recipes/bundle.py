"""Put a trained encoder into the package: `python recipes/bundle.py runs/encoder-3`.

Weights are stored as float16, and the table of words, most of them, in 8 bits with a scale for each word: a third of
the size in float32. The vectors hardly turn; `benchmarks/embed.py` measures by how much.
The model card, README.md in the bundle, is written by hand and stays.
"""

import shutil
import sys
from pathlib import Path

from safetensors.torch import save_file

from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.inference.bundled import SCALE, in_eight_bits

BUNDLED = Path(__file__).parents[1] / "src" / "longspan" / "bundled" / "encoder"
TABLE = "model.encoder.embeddings.token.weight"

if __name__ == "__main__":
    source = Path(sys.argv[1])
    model = load_model(source)
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
