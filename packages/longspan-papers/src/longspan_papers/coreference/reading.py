"""Coreference data sets by name, file or directory: a stream of `CoreferenceRow` from any format.

- `read_coreference("litbank", "validation")`: one of `COREFERENCE_DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_coreference("dev.english.v4_gold_conll")`: CoNLL, see `longspan_papers.coreference.conll`
- `read_coreference("train.jsonl")`: JSON Lines with `doc_key`, `sentences`, `clusters` and optionally `speakers`; or a
  `.json` file with an array of such records, as written by `longspan coref`
- `read_coreference("synthetic", limit=8)`: generated
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan.data.fields import Record, Skipped, check_on_error, kind_of, list_of, name_of, parsed
from longspan.data.sources import DataSet, Kind, read
from longspan.data.tables import read_records, unit_of
from longspan.errors import InputError
from longspan_papers.coreference.conll import read_conll
from longspan_papers.coreference.rows import CoreferenceRow, synthetic_documents


def _folder(name: str) -> DataSet:
    return DataSet(splits={split: (f"{name}/{split}.conll.gz",) for split in ("train", "validation")})


COREFERENCE_DATA_SETS: dict[str, DataSet] = {"litbank": _folder("litbank"), "ontogum": _folder("ontogum")}
"""Name → files under LONGSPAN_DATA. LitBank has singletons, OntoGUM none."""

COREFERENCE = Kind(
    row=CoreferenceRow,
    named=COREFERENCE_DATA_SETS,
    made_up=lambda count, seed: synthetic_documents(8 if count is None else count, seed=seed),
    suffixes=("conll", "v4_gold_conll", "v4_auto_conll", "jsonl", "jsonlines"),
    deep=True,
)
"""The data sets, formats and readers of coreference documents."""

FILES = re.compile(rf"\.({'|'.join(COREFERENCE.suffixes)}|json)(\.gz|\.xz)?$", re.IGNORECASE)
"""File names of documents in a folder; other JSON files in a folder are often descriptions and are not read."""
_JSON = re.compile(r"\.(json|jsonl|jsonlines)(\.gz|\.xz)?$", re.IGNORECASE)


def read_coreference(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    labelled: bool = True,
    on_error: str = "raise",
) -> Iterator[CoreferenceRow]:
    """Stream the documents of a data set.

    Args:
        data: a file (plain, gzip or xz), a directory, the name of one of `COREFERENCE_DATA_SETS` or of a registered
            reader, "synthetic", or several of these.
        split: which split of a directory or a named data set; a single file is read whatever the split.
        limit: maximum number of documents.
        labelled: whether JSON records must have clusters; False accepts records without, for inference.
        on_error: "raise" stops at a malformed document; "skip" drops it and logs the count.

    Raises:
        InputError: no data is found or an option is invalid (immediately); a document is malformed (when reached; the
            message names file and line).
    """
    check_on_error(on_error)

    def read_file(path: Path, _: Any) -> Iterator[CoreferenceRow]:
        skipped = Skipped(str(path), on_error)
        return _records(path, skipped, labelled) if _JSON.search(path.name) else read_conll(path, skipped)

    return read(data, split, COREFERENCE, read_file, limit)


def _records(path: Path, skipped: Skipped, labelled: bool) -> Iterator[CoreferenceRow]:
    """Reads the documents of a JSON Lines file, the format of most coreference programs, or of a JSON array."""
    stem = path.name.split(".")[0]

    def parse(record: Record, number: int) -> CoreferenceRow:
        return row_of(record, f"{stem}:{number}", labelled=labelled)

    return parsed(read_records(path, skipped.add), parse, skipped, unit_of(path))


def row_of(record: Record, default_id: str = "", *, labelled: bool = True) -> CoreferenceRow:
    """Parses one JSON record; raises `InputError`, without a location, if it is malformed."""
    speakers = _words(record, "speakers") if record.get("speakers") else None
    raw_clusters = list_of(record, "clusters") if labelled or "clusters" in record else []
    try:
        clusters = tuple(tuple((start, end) for start, end in cluster) for cluster in raw_clusters)
        integral = all(type(place) is int for cluster in clusters for mention in cluster for place in mention)
    except (TypeError, ValueError):
        integral, clusters = False, ()
    if not integral:
        raise InputError("field 'clusters' holds other than lists of [first word, last word]; count words from 0")
    return CoreferenceRow(
        id=name_of(record, "doc_key", name_of(record, "id", default_id)),
        part=part if type(part := record.get("part")) is int and part > 0 else 0,
        sentences=_words(record, "sentences"),
        speakers=speakers,
        clusters=clusters,
    )


def record_of(row: CoreferenceRow) -> Record:
    """Returns the JSON record of a document."""
    part = {"part": row.part} if row.part else {}
    record: Record = {"doc_key": row.id, **part, "sentences": row.sentences, "clusters": row.clusters}
    return record if row.speakers is None else record | {"speakers": row.speakers}


def _words(record: Record, field: str) -> tuple[tuple[str, ...], ...]:
    sentences = list_of(record, field)
    for sentence in sentences:
        wrong = (
            sentence if not isinstance(sentence, list) else next((w for w in sentence if not isinstance(w, str)), "")
        )
        if not isinstance(wrong, str) or isinstance(sentence, str):
            raise InputError(f"field {field!r} holds {kind_of(wrong)}; give a list of sentences, each a list of texts")
    return tuple(tuple(sentence) for sentence in sentences if sentence)
