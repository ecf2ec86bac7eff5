"""Sequence parallel training: several processes share each row (`optimisation.parallel.sequence`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.nn import functional

from longspan.errors import InputError
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.losses import IGNORED
from longspan.models.sequence_parallel import divide_sequence, part_of
from longspan.training.processes import WAIT


def divide_rows(trainer: Any, together: int) -> None:
    """Makes each `together` processes of a trainer process the same batches, each a part of every row.

    Labels are sharded as the tokens are, so Trainer's counts over all processes are those of whole rows.

    Args:
        trainer: a `RecipeTrainer` before training.
        together: the number of these processes, which divides that of all processes.

    Raises:
        InputError: the model does not support sequence parallelism; a score of whole rows picks the best checkpoint.
    """
    best_by = str(trainer.args.metric_for_best_model)
    known = ("loss", *trainer.losses.scores(1.0))
    if best_by not in known:
        raise InputError(
            f"optimisation.best_by is {best_by!r}, a score of whole rows, and optimisation.parallel.sequence divides "
            f"them; choose {' or '.join(map(repr, known))}"
        )
    # Every process must take part in creating every group.
    groups = [
        dist.new_group(list(range(first, first + together)), timeout=WAIT)
        for first in range(0, dist.get_world_size(), together)
    ]
    group = groups[dist.get_rank() // together]
    divide_sequence(trainer.model, group)
    trainer.row_group = group
    source = any(isinstance(module, Encoder) for module in trainer.model.modules())
    writes = not source and any(isinstance(module, Decoder) for module in trainer.model.modules())
    whole = ("labels",) if trainer.model.config.is_encoder_decoder else ()
    trainer.data_collator = partial(_part_of_batch, trainer.data_collator, group, writes, whole)


def _part_of_batch(
    collator: Callable[[list[Any]], dict[str, Any]],
    group: Any,
    writes: bool,
    whole: tuple[str, ...],
    examples: list[Any],
) -> dict[str, Any]:
    """Returns this process's part of a batch. If a language model `writes`, the labels of whole rows are shifted before
    they are sharded, so that Trainer counts the predicted ones.
    """
    batch = collator(examples)
    if "seq_idx" in batch:
        raise InputError(
            "rows hold several documents that are read apart (task.cross_documents is false), and "
            "optimisation.parallel.sequence shards rows between processes; leave one of the two out"
        )
    if writes:  # the last token has usually no next one
        moved, length = batch["labels"][:, 1:], batch["input_ids"].shape[1]
        moved = functional.pad(moved, (0, length - moved.shape[1]), value=IGNORED)
        batch = {**batch, "labels": moved, "shift_labels": moved}
    return part_of(batch, group, whole=whole)
