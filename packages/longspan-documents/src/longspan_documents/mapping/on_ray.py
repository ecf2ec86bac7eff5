"""The engine of many machines: Ray Data hands out the parts, each of its actors does them as one worker of a machine.

Ray decides where a part runs, and nothing else: what a part is, how it is written and what is missing are the same as
on one machine, and so is what becomes of a document that ends its process, since each actor has a process of its own
for the documents. All machines must see the output folder, and the inputs that are no addresses.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.mapping.job import Job, Part, saved_job
from longspan_documents.mapping.local import Crew, Damaged
from longspan_documents.mapping.results import Done

RAY = "ray"


def run_on_ray(
    job: Job, folder: Path, missing: list[Part], workers: int | None, threads: int
) -> Generator[Done | Damaged, None, None]:
    """Do parts on a Ray cluster: the one that `RAY_ADDRESS` names or that is connected to, else one of this machine.

    Args:
        job: planned.
        folder: of the output.
        missing: the parts.
        workers: actors; None takes as many as the cluster has processors for.
        threads: of each.

    Raises:
        InputError: as `longspan_documents.mapping.local.Crew.run`.
    """
    ray = require(RAY, extra="ray", purpose="the engine ray")
    data = require(f"{RAY}.data", extra="ray", purpose="the engine ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    try:
        parts = {part.number: part for part in missing}
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        actors = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        numbers = data.from_items([{"part": part.number} for part in missing], override_num_blocks=len(missing))
        done = numbers.map(
            Actor,
            fn_constructor_args=(str(folder), threads),
            compute=data.ActorPoolStrategy(size=min(actors, len(missing))),
            num_cpus=threads,
        )
        for row in done.iter_rows():
            if row["refused"]:
                raise InputError(row["refused"])
            part = parts[row["part"]]
            yield Damaged(part, row["damaged"]) if row["damaged"] else Done(part, row["rows"], row["errors"])
    finally:
        if ours:
            ray.shutdown()


class Actor:
    """What Ray keeps on a machine: one worker process, which does the parts that come here."""

    def __init__(self, folder: str, threads: int) -> None:
        # Read here: what a whole corpus needs is much to send to each actor.
        job = saved_job(Path(folder))
        assert job is not None, f"{folder} holds the job: it is written before Ray is asked"
        self.parts = job.parts()
        self.crew = Crew(job, Path(folder), 1, threads).__enter__()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Do the part with this number; errors are told, since Ray would try again."""
        told = {"part": row["part"], "rows": 0, "errors": 0, "damaged": "", "refused": ""}
        try:
            (result,) = self.crew.run([self.parts[row["part"]]])
        except InputError as error:
            return {**told, "refused": str(error)}
        if isinstance(result, Damaged):
            return {**told, "damaged": result.reason}
        return {**told, "rows": result.rows, "errors": result.errors}

    def __del__(self) -> None:
        self.crew.__exit__(None)
