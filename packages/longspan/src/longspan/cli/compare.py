"""`longspan compare`: attention mechanisms under equal conditions."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.terminal import ReportedExit, say, say_json

PANEL = "Attention"


def compare(
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MECHANISM.OPTION=VALUE]...", help="Such as longformer.left_tokens=64; LABEL.… where it has one."
        ),
    ] = None,
    mechanisms: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, LABEL:NAME for one more set of options.",
            show_default="all, and stacks that bring their attention",
        ),
    ] = "all",
    task: Annotated[
        str,
        typer.Option(help="recall, duplication, listops, bytes, matching, novels, images or paths; see the guide."),
    ] = "recall",
    tokens: Annotated[int, typer.Option(help="Length of the task's rows.")] = 1024,
    lengths: Annotated[
        str,
        typer.Option(help="Lengths for speed and memory besides: 512,4096, or doubled up to a last one as 512-65536."),
    ] = "512,2048,8192",
    budget: Annotated[
        str | None, typer.Option(help="Time for all of it, such as 90s, 5m or 1h30m.", show_default="5m")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights, instead of a budget.")] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each mechanism.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch of training.")] = 4,
    held_out: Annotated[int, typer.Option(help="Rows that are scored.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, the same for all.")] = 3e-3,
    width: Annotated[int, typer.Option(help="Model width.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads.")] = 4,
    layers: Annotated[int, typer.Option(help="Blocks.")] = 2,
    feed_forward: Annotated[int, typer.Option(help="Feed-forward width; adjusted so that weights are equal.")] = 512,
    stack: Annotated[str, typer.Option(help="How blocks are put together.")] = "sequential",
    memory_tokens: Annotated[int, typer.Option(help="Vectors in front of every row, seen by all and seeing all.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for results and report.", show_default="runs/compare-TASK-TOKENS")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all results as JSON instead of the table.")] = False,
) -> None:
    """Compare attention mechanisms under equal conditions: the same skeleton, number of weights, rows, steps and seeds.

    Trains each on a small synthetic task, and measures speed and memory by length. Writes `report.html`, `table.md`,
    `cells.csv` and plots to the output folder. Every cell runs in a separate process; after an interruption, the same
    command continues, and a cell that fails is a row with its reason.
    """
    begun = time.monotonic()
    from longspan.compare import worker_of_cells

    with worker_of_cells() as worker:  # a refusal ends it too
        worker.start()  # imports what the cells need, in parallel to this process

        from longspan.compare.settings import Comparison, lengths_of, names_of, options_of, seconds_of
        from longspan.compare.skeleton import Skeleton

        comparison = Comparison(
            mechanisms=() if mechanisms == "all" else names_of(mechanisms, "mechanisms"),
            options=options_of(options or []),
            task=task,
            tokens=tokens,
            lengths=lengths_of(lengths),
            budget=None if budget is None else seconds_of(budget),
            steps=steps,
            seeds=seeds,
            rows=batch_size,
            held_out=held_out,
            learning_rate=learning_rate,
            skeleton=Skeleton(
                width=width,
                heads=heads,
                layers=layers,
                feed_forward=feed_forward,
                stack=stack,
                memory_tokens=memory_tokens,
            ),
            device=device or "",  # pyright: ignore[reportArgumentType] (one of the two, or refused there)
        )

        from longspan.compare.report import write_report
        from longspan.compare.run import RECORD
        from longspan.compare.run import compare as run
        from longspan.progress import logs_beside_bars, without_file_bars

        folder = output or Path("runs") / f"compare-{task}-{tokens}"
        stopped: Stopped | None = None
        with logs_beside_bars(), without_file_bars(), _listening():
            try:
                run(comparison, folder, tell=_tell, begun=begun, worker=worker)
            except Stopped as signalled:
                if not (folder / RECORD).is_file():
                    raise
                stopped = signalled
            report = write_report(folder)
    if json:
        say_json(report.data)
    else:
        say(report.text)
        say(f"report: {report.folder / 'report.html'}")
    if stopped is not None:
        say("stopped; the report contains what was finished, and the same command continues from there", error=True)
        raise typer.Exit(ReportedExit(128 + stopped.number))
    untrained = {result["cell"]["label"] for result in report.data["results"] if result["status"] == "left out"}
    untrained -= {result["cell"]["label"] for result in report.data["results"] if "score" in result["numbers"]}
    if untrained:
        out = f"{len(untrained)} of {len(comparison.mechanisms)} mechanisms"
        say(
            f"the budget was too short to train {out}; the same command again continues with them, and a longer "
            "--budget or fewer --mechanisms suffices for all",
            error=True,
        )


class Stopped(KeyboardInterrupt):
    """Ctrl-C, or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def _listening() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM raises `Stopped`; a second one, while the report is written, ends immediately.

    Python can handle signals only in the main thread, so this has no effect in others.
    """
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def stop(number: int, frame: Any) -> None:
        restore()
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


def _tell(line: str) -> None:
    """Print a finished cell on a separate line above the progress bar."""
    from tqdm import tqdm

    with tqdm.external_write_mode():
        say(line, error=True)
