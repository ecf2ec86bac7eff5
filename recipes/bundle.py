"""Put a trained model into the package.

    python recipes/bundle.py runs/bundled-summarizer            # into src/longspan/bundled/

Weights are stored as float16, half the size; scores change by less than a thousandth. The model card, README.md in the
bundle, is written by hand and stays.
"""

import shutil
import sys
from pathlib import Path

from longspan.checkpoints.loading import load_model, load_tokenizer

BUNDLED = Path(__file__).parents[1] / "src" / "longspan" / "bundled"

if __name__ == "__main__":
    source = Path(sys.argv[1])
    model = load_model(source).half()
    partial = BUNDLED.with_name("bundled.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    (partial / "README.md").unlink()
    load_tokenizer(source).save_pretrained(partial)
    for file in partial.iterdir():
        file.replace(BUNDLED / file.name)
    partial.rmdir()
    size = sum(file.stat().st_size for file in BUNDLED.iterdir())
    sys.stdout.write(f"{BUNDLED}: {size / 2**20:.1f} MiB\n")
