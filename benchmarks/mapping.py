"""Whole corpora: how much two workers are faster than one, and what is left after many kills.

    LONGSPAN_DATA=… python benchmarks/mapping.py [--papers 300] [--rounds 3] [--kills 50]

Papers of PubMed Central are summarised by one worker and by two, of one thread each, by turns; the parts of both are
compared byte by byte. Then drivers and workers of the same job are ended by SIGKILL at random moments, and what lies in
the folder is compared with what an undisturbed run gave. The page is `results/mapping.md`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from longspan.data.summaries.readers import read_rows
from longspan_documents.mapping.job import Job, save_job, saved_job
from longspan_documents.mapping.local import Crew
from measure import RESULTS, machine, table

EARLY = 4.0
"""Seconds after its start within which half of the processes are ended; the others soon after they wrote a part."""
SOON = 1.0


def main() -> None:
    """Measure, kill and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--papers", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longspan-mapping-") as name:
        folder = Path(name)
        papers = write_papers(folder / "papers.jsonl", options.papers)
        job = planned(papers, folder / "job")
        runs = []
        for _ in range(options.rounds):
            for workers in (1, 2):
                runs.append((workers, *timed(job, folder / f"out-{workers}", workers)))
                print("{} workers: {:.1f} s, processor time {:.1f} s, of all {:.1f} s".format(*runs[-1]), flush=True)
        for one in (folder / "out-1").glob("part-*"):
            assert one.read_bytes() == (folder / "out-2" / one.name).read_bytes(), "workers do not change results"
        speed = speed_table(runs, options.papers)
        print(speed, flush=True)
        killed = survive(papers, folder / "killed", options.kills, seed=0)
        wrong = compare(folder / "killed", folder / "out-1", options.papers)
    rounds, parts, kills = options.rounds, len(job.parts()), killed.total()
    each = ", ".join(f"{one[1] / two[1]:.2f}" for one, two in zip(runs[::2], runs[1::2], strict=True))
    page = f"""# Whole corpora

`longspan map summarize` on {options.papers} papers of PubMed Central, in {parts} parts, by workers of one thread.
{rounds} rounds by turns, medians, from the moment when all workers have loaded the model to the last part on the disk.
The machine is shared, so that seconds on the wall are also those of others: beside them stands the processor
time of the worker that worked longest, which is what the wall would show if each worker had a core for itself. The
parts of one and of two workers were equal byte by byte. On the wall, round by round, two workers were {each} times as
fast.

{speed}

Then {kills} processes of the same job with two workers were ended by SIGKILL at random moments, about half of them
while they started and half while parts were written: {killed["driver"]} times the driver, {killed["worker"]} times a
worker. In the end each of the {options.papers} papers had exactly one row; {wrong}

Made by `benchmarks/mapping.py` on {machine()}.
"""
    (RESULTS / "mapping.md").write_text(page, encoding="utf-8")
    print(page)


def write_papers(path: Path, count: int) -> Path:
    """So many papers as JSON Lines."""
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(islice(read_rows("permissive-papers"), count)):
            file.write(json.dumps({"id": number, "text": row.separator.join(row.pieces)}) + "\n")
    return path


def command(papers: Path, output: Path, workers: int, *options: str) -> list[str]:
    """The command line of the job."""
    call = [sys.executable, "-m", "longspan.cli", "map", "summarize", str(papers), "--output", str(output)]
    return [*call, "--workers", str(workers), *options]


def planned(papers: Path, folder: Path) -> Job:
    """The job as the command line plans it, without its parts."""
    subprocess.run(command(papers, folder, 2), check=True)
    job = saved_job(folder)
    assert job is not None
    return job


def timed(job: Job, folder: Path, workers: int) -> tuple[float, float, float]:
    """Seconds of all parts, once the workers are ready: on the wall, of the processor of the worker that worked
    longest, of all processors."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_job(folder, job)
    with Crew(job, folder, workers) as crew:
        crew.wait_until_ready()
        processes = workers_of(psutil.Process())
        begin, before = time.perf_counter(), [processor_time(process) for process in processes]
        done = list(crew.run(job.parts()))
        seconds = time.perf_counter() - begin
        used = [processor_time(process) - start for process, start in zip(processes, before, strict=True)]
    assert len(done) == len(job.parts())
    return seconds, max(used), sum(used)


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    """The worker processes of a process."""
    return [child for child in driver.children() if "longspan_documents.mapping.local:ready" in child.cmdline()]


def processor_time(process: psutil.Process) -> float:
    """Seconds that processors worked for a process."""
    times = process.cpu_times()
    return times.user + times.system


def speed_table(runs: list[tuple[int, float, float, float]], papers: int) -> str:
    """Medians, and how many times as fast two workers are."""
    sides = {count: [times for workers, *times in runs if workers == count] for count in (1, 2)}
    medians = {count: [statistics.median(values) for values in zip(*sides[count], strict=True)] for count in sides}
    rows = [
        [str(count), *(f"{seconds:.1f} s" for seconds in medians[count]), f"{papers / medians[count][1]:.2f}"]
        for count in sides
    ]
    faster = [one / two for one, two in zip(medians[1], medians[2], strict=True)]
    rows.append(["times as fast", f"{faster[0]:.2f}", f"{faster[1]:.2f}", "", f"{faster[1]:.2f}"])
    head = ["workers", "wall", "processor time, longest", "of all", "papers per second of it"]
    return table(head, rows)


# Kills ----------------------------------------------------------------------------------------------------------------


def survive(papers: Path, output: Path, kills: int, *, seed: int, options: tuple[str, ...] = ()) -> Counter[str]:
    """Run a job to its end while processes of it are killed at random moments; how often which kind was.

    A job that is finished before it was killed often enough is begun anew.
    """
    draw, counts = random.Random(seed), Counter[str]()
    call = command(papers, output, 2, *options)
    while counts.total() < kills:
        with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
            while counts.total() < kills and driver.poll() is None:
                if draw.random() < 0.5:
                    time.sleep(draw.uniform(0, EARLY))
                else:
                    wait_for_part(output, driver)
                    time.sleep(draw.uniform(0, SOON))
                counts.update(kill_one(driver, draw))
        assert driver.returncode in (0, -signal.SIGKILL), f"the job ended with code {driver.returncode}"
        if driver.returncode == 0 and counts.total() < kills:
            shutil.rmtree(output)
    subprocess.run(call, check=True)
    return counts


def wait_for_part(output: Path, driver: subprocess.Popen[bytes]) -> None:
    """Return when there is one more part, or the job has ended."""
    before = len(list(output.glob("part-*")))
    while driver.poll() is None and len(list(output.glob("part-*"))) <= before:
        time.sleep(0.02)


def kill_one(driver: subprocess.Popen[bytes], draw: random.Random) -> list[str]:
    """End the driver, or one of its workers; what was ended, as a list of at most one."""
    try:
        workers = workers_of(psutil.Process(driver.pid))
        if workers and draw.random() < 0.5:
            draw.choice(workers).kill()
            return ["worker"]
    except psutil.NoSuchProcess:
        return []
    if driver.poll() is not None:
        return []
    driver.kill()
    driver.wait()
    return ["driver"]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of an output folder, in order."""
    from pyarrow import parquet

    return [row for file in sorted(folder.glob("part-*")) for row in parquet.read_table(file).to_pylist()]


def compare(killed: Path, undisturbed: Path, papers: int) -> str:
    """Assert that each paper has one row; what of the results differs from an undisturbed run, in words."""
    rows, others = rows_in(killed), rows_in(undisturbed)
    assert [row["id"] for row in rows] == list(range(papers))
    assert not [name for name in killed.iterdir() if name.name != "_job.json" and not name.name.startswith("part-")]
    left_out = [row for row in rows if row["error"]]
    assert all("left out" in row["error"] for row in left_out)
    equal = sum(row == other for row, other in zip(rows, others, strict=True))
    return f"{equal} rows were equal to those of an undisturbed run, and {len(left_out)} were left out with an `error`."


if __name__ == "__main__":
    main()
