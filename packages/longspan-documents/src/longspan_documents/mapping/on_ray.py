"""The engine of several machines: Ray Data distributes the parts to actors, each with one worker process.

Ray only decides where a part is computed. The division into parts, their files, and the handling of documents that end
their process are the same as on one machine, since each actor has a separate worker process. All machines need access
to the output folder, and to inputs that are no addresses.
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
    """Compute parts on a Ray cluster: that of `RAY_ADDRESS`, the connected one, or a new one on this machine.

    Args:
        job: planned.
        folder: of the output.
        missing: the parts.
        workers: number of actors; None takes as many as the processors of the cluster allow.
        threads: number of threads of each.

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
    """An actor of Ray: one worker process, which computes the parts that are sent to it."""

    def __init__(self, folder: str, threads: int) -> None:
        # Loaded here, since the job of a large corpus is large to send to each actor.
        job = saved_job(Path(folder))
        assert job is not None, f"{folder} holds the job: it is written before Ray is asked"
        self.parts = job.parts()
        self.crew = Crew(job, Path(folder), 1, threads).__enter__()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute the part with this number; errors are returned, since Ray would retry after an exception."""
        outcome = {"part": row["part"], "rows": 0, "errors": 0, "damaged": "", "refused": ""}
        try:
            (result,) = self.crew.run([self.parts[row["part"]]])
        except InputError as error:
            return {**outcome, "refused": str(error)}
        if isinstance(result, Damaged):
            return {**outcome, "damaged": result.reason}
        return {**outcome, "rows": result.rows, "errors": result.errors}

    def __del__(self) -> None:
        self.crew.__exit__(None)
