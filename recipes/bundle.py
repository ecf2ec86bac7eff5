"""Put a trained model into the package.

    python recipes/bundle.py runs/bundled-summarizer            # into src/longspan/bundled/
    python recipes/bundle.py runs/bundled-reader reader         # into src/longspan/bundled/reader/

Weights are stored as float16, half the size; scores change by less than a thousandth. A reader keeps its recipe, which
says how documents are cut for it. The model card, README.md in the bundle, is written by hand and stays.
"""

import shutil
import sys
from pathlib import Path

from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.tasks import RECIPE

BUNDLED = Path(__file__).parents[1] / "src" / "longspan" / "bundled"

if __name__ == "__main__":
    source = Path(sys.argv[1])
    target = BUNDLED.joinpath(*sys.argv[2:3])
    model = load_model(source).half()
    partial = BUNDLED.with_name("bundled.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    (partial / "README.md").unlink()
    load_tokenizer(source).save_pretrained(partial)
    if target != BUNDLED:
        shutil.copyfile(source / RECIPE, partial / RECIPE)
    target.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        file.replace(target / file.name)
    partial.rmdir()
    size = sum(file.stat().st_size for file in target.iterdir())
    sys.stdout.write(f"{target}: {size / 2**20:.1f} MiB\n")
