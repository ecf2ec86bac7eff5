"""Files with one thing wrong at a time, for tests of what reads files that anybody may have written."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan import InputError

GONE = object()
"""In place of a value: its key is taken away."""
WRONG: tuple[Any, ...] = (
    *(GONE, None, True, -1, 0, 7, 10**30, 0.5, "", "x", "../..", "a\0b", "\ud800", "é" * 5000),
    *([], [0], [-5, 3], {}, [{}]),
)
Change = Callable[[Any], Any]


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data; of lists the first entry."""
    if path:
        yield path
    for key in list(plain) if isinstance(plain, dict) else [0] if isinstance(plain, list) and plain else []:
        yield from places(plain[key], (*path, key))


def spoilt(plain: Any) -> Iterator[tuple[str, Any]]:
    """Copies with one thing wrong, and what it is: each value in turn, keys too many, lists longer, shorter, turned."""
    for path in [(), *places(plain)]:
        changes: list[tuple[str, Change]] = []
        if path:
            changes += [(f"is {str(value)[:12]!r}", lambda _, value=value: value) for value in WRONG]
        found = plain
        for key in path:
            found = found[key]
        if isinstance(found, dict):
            changes.append(("has a key too many", lambda old: {**old, "more": 1}))
        if isinstance(found, list):
            changes += [("is turned", lambda old: old[::-1]), ("is twice", lambda old: old + old)]
            changes += [("is shorter", lambda old: old[:-1])]
        if isinstance(found, int):
            changes += [("is one more", lambda old: old + 1), ("is one less", lambda old: old - 1)]
        for what, change in changes:
            yield f"{path} {what}", replaced(plain, path, change)


def replaced(plain: Any, path: tuple[Any, ...], change: Change) -> Any:
    if not path:
        return change(plain)
    made = copy.deepcopy(plain)
    place = made
    for key in path[:-1]:
        place = place[key]
    value = change(place[path[-1]])
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


def spoilt_tensors(right: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The tensors of a file, one of them missing, of another type or shape, or zeros; or one too many."""
    for key, tensor in right.items():
        yield f"{key} is missing", {name: value for name, value in right.items() if name != key}
        for kind in (torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32):
            yield f"{key} is {kind}", {**right, key: tensor.to(kind)}
        for what, made in {
            "no dimensions": torch.zeros((), dtype=tensor.dtype),
            "nothing": tensor[:0],
            "one more dimension": tensor[None],
            "shorter": tensor[:-1],
            "longer": torch.cat([tensor, tensor]),
            "turned": tensor.flip(0),
            "narrower": tensor[..., :-1],
            "zeros": torch.zeros_like(tensor),
        }.items():
            yield f"{key} is {what}", {**right, key: made}
    yield "one tensor too many", {**right, "more": torch.zeros(3)}


def outcome(opens: Callable[[], Any], question: str, folder: Path) -> str | None:
    """What is wrong with the answer of an index: nothing, where it is a right one or one sentence with a remedy."""
    try:
        index = opens()
        found = index.answer(question)
        texts = {document.name: document.text for document in index.documents}
        quotes = [(one.file, one.quote) for one in found.passages] + [
            (one.file, one.sentence) for one in found.passages
        ]
        if found.short is not None:
            quotes.append((index.documents[found.short.document].name, found.short.quote))
        numbers = [found.probability, *(one.probability for one in found.passages)]
        numbers += [] if found.short is None else [found.short.probability]
        if not all(math.isfinite(number) and 0 <= number <= 1 for number in numbers):
            return f"probabilities {numbers}"
        wrong = [quote for name, quote in quotes if texts[name][quote.start : quote.end] != quote.text]
        return f"no quotes: {wrong}" if wrong or "nan" in str(found) else None
    except InputError as error:
        said = str(error)
        if "\n" in said or not any(place in said for place in (str(folder), "the index")):
            return f"an unclear sentence: {said}"
        remedies = ("longspan index", "index these again", "index its documents again", "--model", "--encoder")
        return None if any(words in said for words in remedies) else said
    except Exception as error:  # noqa: BLE001 - any is a fault, to be listed with its case
        return repr(error)


def changed(record: dict[str, Any], path: str, value: Any = ...) -> dict[str, Any]:
    """A copy with the value at a dotted path changed, or left out."""
    record = copy.deepcopy(record)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = record
    for part in outer:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return record
