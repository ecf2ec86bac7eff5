"""`make demo` (`python -m longspan_documents.cli.demo`): summarises a long real text that every machine has, then ten
copies of it, and asks two questions about a part of it, one of which it does not answer.

The text is the language reference inside Python itself (`pydoc_data.topics`), a book of some 60 000 words. Each text is
summarised in a separate process, whose peak memory is reported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time

SENTENCES = 8
TIMES = (1, 10)
CHAPTERS = ("with", "try", "context-managers", "exceptions")
QUESTIONS = ("which method is invoked on the context manager?", "who discovered penicillin?")


def python_reference() -> str:
    """Returns the topics of Python's help system as one text, in alphabetical order, without rows of underlining
    marks."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return re.sub(r"^[*=~^\"'+-]{3,}$", "", text, flags=re.MULTILINE)


def measure(times: int) -> None:
    """Summarise `times` copies of the text and print the result as JSON; run by the subprocesses of `main`."""
    from longspan_documents.inference.summarize import load_summarizer
    from longspan_documents.text.reading import document_of

    text = "\n\n".join([python_reference()] * times)
    summarizer = load_summarizer()
    before = _peak_bytes()
    summary = summarizer.summarize(document_of(text), SENTENCES)
    outcome = {
        "sentences": [" ".join(sentence.text.split()) for sentence in summary.sentences],
        "words": len(text.split()),
        "of": len(summary.document),
        "tokens": summary.tokens,
        "seconds": summary.seconds,
        "peak": _peak_bytes(),
        "before": before,
    }
    sys.stdout.write(json.dumps(outcome))


def main() -> int:
    """Run both sizes and print a summary, tokens, seconds and peak memory of each."""
    begin = time.perf_counter()
    print("Longspan demo: the Python language reference, as it lies inside every Python, read whole.\n", flush=True)
    outcomes = []
    for times in TIMES:
        name = "the text" if times == 1 else f"the same text {times} times over"
        print(f"Reading {name} …", flush=True)
        code = f"from longspan_documents.cli.demo import measure; measure({times})"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 1
        outcome = json.loads(done.stdout)
        outcomes.append(outcome)
        print(f"{outcome['words']:,} words, {outcome['of']:,} sentences. The {len(outcome['sentences'])} chosen:\n")
        for sentence in outcome["sentences"]:
            print(textwrap.fill(sentence, 96, initial_indent="  • ", subsequent_indent="    "))
        print()
    print(_table(outcomes))
    _ask()
    seconds = time.perf_counter() - begin
    print(f"\nAll of it took {seconds:.0f} s, starting Python included. No word was cut off, nothing")
    print("was downloaded. Now one of yours:  longspan summarize FILE   or   longspan answer FILE 'QUESTION'")
    return 0


def _ask() -> None:
    """Search the chapters on `with` and exceptions."""
    from pydoc_data.topics import topics

    from longspan_documents.inference.answer import Answerer
    from longspan_documents.text.reading import document_of

    text = "\n\n".join(topics[name].strip() for name in CHAPTERS if name in topics)
    answerer = Answerer([document_of(text)])
    print(f"\nTwo questions to its chapters on {' and '.join(CHAPTERS[:2])}:\n", flush=True)
    for question in QUESTIONS:
        result = answerer.answer(question)
        place = f", line {result.passages[0].sentence.first_line}" if result.answered else ""
        print(f"  {question}")
        answer = f"{result.text} ({result.probability or 0:.2f}{place})"
        print(textwrap.fill(answer, 96, initial_indent="  → ", subsequent_indent="    "))


def _table(outcomes: list[dict]) -> str:
    lines = [f"{'':10} {'tokens':>11} {'seconds':>9} {'tokens/s':>10} {'peak memory':>13} {'of it for the text':>20}"]
    for times, outcome in zip(TIMES, outcomes, strict=True):
        speed = outcome["tokens"] / max(outcome["seconds"], 1e-9)
        sizes = (outcome["peak"], outcome["peak"] - outcome["before"])
        peak, added = (f"{size / 2**20:,.0f} MiB" for size in sizes)
        tokens, seconds = outcome["tokens"], outcome["seconds"]
        lines.append(f"{times:>2} ×       {tokens:>11,} {seconds:>9.1f} {speed:>10,.0f} {peak:>13} {added:>20}")
    return "\n".join(lines)


def _peak_bytes() -> int:
    """Returns the peak resident memory of this process so far; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main())
