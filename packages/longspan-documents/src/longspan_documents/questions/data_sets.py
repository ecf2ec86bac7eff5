"""The data sets of questions that recipes and commands name."""

from __future__ import annotations

from collections.abc import Mapping

from longspan.data.catalogue import Known

_GITHUB = "https://github.com"

DATA_SETS: Mapping[str, Known] = {
    "squad-v1.1": Known(
        title="SQuAD 1.1",
        size="87,599 questions to train on, 10,570 for validation",
        licence="CC BY-SA 4.0",
        page="https://rajpurkar.github.io/SQuAD-explorer",
        layout="train-v1.1.json and dev-v1.1.json",
    ),
    "triviaqa-rc": Known(
        title="TriviaQA with its evidence",
        size="110,648 pairs of a question and a Wikipedia page to train on",
        licence="Apache 2.0; the pages have their own",
        page="https://nlp.cs.washington.edu/triviaqa",
        layout="qa/ and evidence/",
    ),
    "triviaqa": Known(
        title="a sample of TriviaQA",
        size="6 questions",
        licence="Apache 2.0; the pages are CC BY-SA 3.0",
        page=f"{_GITHUB}/allenai/allennlp-models",
        layout="triviaqa-wikipedia-sample.tar.gz",
        names=("triviaqa-sample",),
    ),
}
"""Path below LONGSPAN_DATA → data set."""
