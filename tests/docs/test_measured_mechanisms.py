"""The front page's table, from a CSV written by hand."""

from __future__ import annotations

from pathlib import Path

from measured_mechanisms import measured_table, with_table

HEAD = "task,kind,mechanism,tokens,rows,status,score,train_tokens_per_second,train_bytes\n"
RECALL = """\
recall,quality,linear,512,4,done,0.25,,
recall,quality,linear,512,4,done,0.5,,
recall,quality,full,512,4,done,0.75,,
recall,speed,full,1024,1,done,,2500.4,1048576
recall,speed,full,1024,4,done,,9999,1048576
recall,speed,full,65536,1,left out,,,
recall,speed,linear,65536,1,done,,40000,3145728
"""


def test_best_first_seeds_averaged_and_only_single_rows(tmp_path: Path):
    recall, task = tmp_path / "recall.csv", tmp_path / "bytes.csv"
    recall.write_text(HEAD + RECALL)
    task.write_text(HEAD + "bytes,quality,full,512,4,done,0.625,,\nbytes,quality,linear,512,4,failed,,,\n")
    head, _, *rows = measured_table([recall, task]).splitlines()
    assert head == "| mechanism | recall | bytes | 1,024 | 65,536 | MiB at 65,536 |"
    assert rows == [
        "| [`full`](full.md) | 0.75 | 0.62 | 2,500 | – | – |",
        "| [`linear`](linear.md) | 0.38 | – | – | 40,000 | 3 |",
    ]


def test_labels_have_rows_of_their_own_and_machines_are_named(tmp_path: Path):
    recall = tmp_path / "recall.csv"
    head, *cells = (HEAD + RECALL).splitlines()
    lines = [f"{head},label,machine", *(f"{cell},{cell.split(',')[2]},Slow" for cell in cells)]
    recall.write_text("\n".join([*lines, "recall,quality,full,512,4,done,0.5,,,wide,Fast", ""]))
    head, _, *rows, _, machines = measured_table([recall]).splitlines()
    assert head == "| mechanism | recall | 1,024 | 65,536 | MiB at 65,536 | machine |"
    assert rows[2] == "| [`wide`](full.md) | 0.50 | – | – | – | B |"
    assert machines == "A: Slow; B: Fast."


def test_a_page_keeps_what_stands_around_the_table():
    page = "before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n"
    assert with_table(page, "| a |") == "before\n<!-- measured: begin -->\n| a |\n<!-- measured: end -->\nafter\n"
