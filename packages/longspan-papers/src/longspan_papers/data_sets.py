"""The data sets of the published systems that recipes and commands name."""

from __future__ import annotations

from collections.abc import Mapping

from longspan.data.catalogue import Known

_JSONL = "train.jsonl.gz and validation.jsonl.gz"
_CONLL = "train.conll.gz and validation.conll.gz"
_GITHUB = "https://github.com"
_LITBANK = "https://github.com/dbamman/litbank"

DATA_SETS: Mapping[str, Known] = {
    "mediasum": Known(
        title="MediaSum (Zhu et al. 2021)",
        size="463,600 interviews",
        page=f"{_GITHUB}/zcgzcgzcg1/MediaSum",
        layout="news_dialogue.json and train_val_test_split.json",
    ),
    "opensubtitles": Known(
        title="OpenSubtitles of OPUS",
        page="https://opus.nlpl.eu/OpenSubtitles",
        layout="XML files, plain or .gz, one film each",
    ),
    "ami": Known(
        title="AMI's meetings as DialogLM's authors give them",
        size="137 meetings",
        licence="CC BY 4.0 (the corpus)",
        page=f"{_GITHUB}/microsoft/DialogLM",
        layout="train.json and val.json (JSON Lines with src and tgt)",
    ),
    "icsi": Known(
        title="ICSI's meetings as DialogLM's authors give them",
        size="59 meetings",
        licence="CC BY 4.0 (the corpus)",
        page=f"{_GITHUB}/microsoft/DialogLM",
        layout="train.json and val.json (JSON Lines with src and tgt)",
    ),
    "tvmegasite": Known(
        title="TVMegaSite of SummScreen (Chen et al. 2022)",
        page=f"{_GITHUB}/mingdachen/SummScreen",
        layout="train and dev files of JSON Lines, with Transcript and Recap or with src and tgt",
    ),
    "v1.0": Known(
        title="Natural Questions",
        size="307,373 questions to train on, 7,830 for validation",
        licence="CC BY-SA 3.0",
        page="https://ai.google.com/research/NaturalQuestions/download",
        layout="train/nq-train-*.jsonl.gz and dev/nq-dev-*.jsonl.gz, or the simplified files",
    ),
    "tydiqa-v1.0": Known(
        title="TyDi QA, primary tasks",
        licence="Apache 2.0; the articles are CC BY-SA 3.0",
        page=f"{_GITHUB}/google-research-datasets/tydiqa",
        layout="tydiqa-v1.0-train.jsonl.gz and tydiqa-v1.0-dev.jsonl.gz",
    ),
    "hotpot": Known(
        title="HotpotQA, distractor setting",
        size="90,447 questions to train on, 7,405 for validation",
        licence="CC BY-SA 4.0",
        page="https://hotpotqa.github.io",
        layout="hotpot_train_v1.1.json and hotpot_dev_distractor_v1.json",
    ),
    "qangaroo_v1.1/wikihop": Known(
        title="WikiHop of QAngaroo",
        size="43,738 questions to train on, 5,129 for validation; 340 MB to fetch",
        licence="CC BY-SA 3.0",
        page="https://qangaroo.cs.ucl.ac.uk",
        layout="train.json and dev.json",
    ),
    "conll-2012": Known(
        title="CoNLL-2012, OntoNotes' coreference",
        size="2,802 documents to train on, 343 for validation",
        licence="that of the Linguistic Data Consortium",
        page="https://catalog.ldc.upenn.edu/LDC2013T19",
        layout="train/ and development/ with the *_conll files of the shared task",
    ),
    "natural_questions": Known(
        title="a sample of Natural Questions, with questions that L-Eval answers",
        size="106 questions",
        licence="CC BY-SA 3.0; L-Eval's are GPL-3.0",
        page="https://ai.google.com/research/NaturalQuestions",
        layout="derived_train.jsonl.gz, derived_validation.jsonl.gz and simplified_sample.jsonl.gz",
        names=("natural-questions", "natural-questions-sample", "natural-questions-original"),
    ),
    "tydiqa": Known(
        title="the small files of TyDi QA's own repository",
        size="14 questions",
        licence="Apache 2.0; the articles are CC BY-SA 3.0",
        page=f"{_GITHUB}/google-research-datasets/tydiqa",
        layout="tiny_dev.jsonl.gz and small_gold_annotation.jsonl.gz",
        names=("tydiqa-gold",),
    ),
    "hotpotqa": Known(
        title="a sample of HotpotQA",
        size="100 questions",
        licence="CC BY-SA 4.0",
        page="https://hotpotqa.github.io",
        layout="sample.jsonl.gz",
        names=("hotpotqa-sample",),
    ),
    "wikihop": Known(
        title="a sample of WikiHop",
        size="2 questions",
        licence="CC BY-SA 3.0",
        page="https://qangaroo.cs.ucl.ac.uk",
        layout="wikihop_sample.json.gz",
        names=("wikihop-sample",),
    ),
    "litbank": Known(
        title="LitBank's coreference",
        size="80 documents to train on, 10 for validation",
        licence="CC BY 4.0",
        page=_LITBANK,
        layout=_CONLL,
    ),
    "ontogum": Known(
        title="OntoGUM's coreference",
        size="84 documents to train on, 12 for validation",
        licence="CC BY 4.0, and by genre CC BY and CC BY-SA",
        page=f"{_GITHUB}/amir-zeldes/gum",
        layout=_CONLL,
    ),
}
"""Path below LONGSPAN_DATA → data set."""
