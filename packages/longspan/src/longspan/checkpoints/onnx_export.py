"""`to_onnx`: exports an encoder and its head to an ONNX file for batches of any size and length."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.files import output_file, whole_file
from longspan.imports import require
from longspan.models import LongspanPreTrainedModel
from longspan.settings import check_kind

OUTPUTS = {
    "LongspanModel": ("last_hidden_state",),
    "LongspanForMaskedLM": ("logits",),
    "LongspanForSequenceClassification": ("logits",),
    "LongspanForTokenClassification": ("logits",),
    "LongspanForQuestionAnswering": ("start_logits", "end_logits"),
}
"""Exportable classes, and the outputs of their files."""

LARGEST = 1536 * 2**20
"""Bytes of weights from which the exporter writes a second file."""
TOLERANCE = 1e-3
"""Largest difference, relative to the largest output, between the file and the model, both in float32."""


def to_onnx(model: LongspanPreTrainedModel, file: str | Path) -> Path:
    """Exports a model as an ONNX file for onnxruntime and others, with dynamic batch size and length.

    Its inputs are `input_ids` and `attention_mask`, `(B, T)` int64; its outputs are those of the model, such as
    `last_hidden_state`. The file is run and compared with the model before it gets its name. Its attention is dense
    under the mask of the pattern: equal values, in time and memory quadratic in the length.

    Args:
        model: a `LongspanModel`, or one with a head for masked tokens, labels, token labels or answer spans; float32.
        file: path that ends in .onnx; an existing file is replaced when the new one is complete.

    Returns:
        The path.

    Raises:
        InputError: another model, half precision, more weights than one file holds, another ending, a folder that does
            not exist or is not writable, a full disk, the 'onnx' extra is missing, or the model has a part that ONNX
            cannot express.
    """
    check_kind(file, "file", (str, Path), "a path that ends in .onnx")
    target = output_file(file, "file")
    path = Path(os.path.expanduser(file))
    _check(model, path)
    for module in ("onnxscript", "onnx", "onnxruntime"):
        require(module, extra="onnx", purpose="writing ONNX files")
    was_training = model.training
    model.eval()
    try:
        with whole_file(target) as part:
            _export(model, part)
            _compare(model, part)
    finally:
        model.train(was_training)
    return path


def _check(model: Any, path: Path) -> None:
    name = type(model).__name__
    if not isinstance(model, LongspanPreTrainedModel):
        raise InputError(f"model={name} is not a Longspan model; make it one with longspan.from_transformers first")
    if name not in OUTPUTS:
        inner = type(getattr(model, "model", None)).__name__
        remedy = "write its encoder, model.model" if inner in OUTPUTS else "load its encoder with LongspanModel"
        raise InputError(f"model={name} cannot be written as ONNX, only {', '.join(OUTPUTS)}; {remedy}")
    if model.dtype != torch.float32:
        raise InputError(f"model is {model.dtype}; ONNX files are written in float32, so call model.float() first")
    if model.config.global_tokens not in ("none", "first") and model.config.max_global_tokens is None:
        raise InputError(
            "max_global_tokens=None reads the data, which a file cannot; set model.config.max_global_tokens to the "
            "longest question in tokens, or to the most global tokens that a text has"
        )
    if path.suffix != ".onnx":
        raise InputError(f"file={str(path)!r} does not end in .onnx; give it that ending")
    if (size := sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))) > LARGEST:
        raise InputError(
            f"model has {size / 1e9:.1f} GB of weights, and one ONNX file holds {LARGEST / 1e9:.1f} GB at most; give a "
            "smaller model"
        )


class _Plain(nn.Module):
    """The model with two inputs and a tuple of output tensors."""

    def __init__(self, model: LongspanPreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        output: Any = self.model(input_ids, attention_mask)
        return tuple(output[name] for name in OUTPUTS[type(self.model).__name__])


def _inputs(model: LongspanPreTrainedModel, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Returns random ids, with padding at the end of the last row."""
    config: Any = model.config
    ids = torch.randint(config.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    if config.global_tokens == "question":
        # A short question in each row: it ends at the first separator.
        ids = ids.masked_fill(ids == config.sep_token_id, (config.sep_token_id + 1) % config.vocab_size)
        ids[:, min(tokens, config.max_global_tokens + 1) - 1] = config.sep_token_id
    mask = torch.ones_like(ids)
    mask[-1, tokens - tokens // 3 :] = 0
    return ids.to(model.device), mask.to(model.device)


def _export(model: LongspanPreTrainedModel, file: Path) -> None:
    axes = {0: "batch", 1: "tokens"}
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Plain(model),
                _inputs(model, 2, min(31, _most_tokens(model))),
                dynamo=True,
                dynamic_shapes={"input_ids": axes, "attention_mask": axes},
                input_names=("input_ids", "attention_mask"),
                output_names=OUTPUTS[type(model).__name__],
                verbose=False,
            )
            assert program is not None
            program.save(file)
    except OSError:
        raise
    except Exception as error:
        # Each error of the exporter quotes the previous one.
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        if isinstance(root, InputError):
            raise root from error
        reason = " ".join(str(root).split())[:300].rstrip(". ") or type(root).__name__
        raise InputError(
            f"model={type(model).__name__} has a part that ONNX cannot express ({reason}); choose attention of "
            "plain windows (`longspan mechanisms` lists what there is)"
        ) from error


def _most_tokens(model: LongspanPreTrainedModel) -> int:
    base: Any = getattr(model, "model", model)
    return base.encoder.embeddings.max_tokens


def _compare(model: LongspanPreTrainedModel, file: Path) -> None:
    """Runs the file at lengths other than those of the export; raises `InputError` if it differs from the model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    plain = _Plain(model)
    for batch, tokens in ((1, 2), (3, 47), (2, 131)):
        inputs = _inputs(model, batch, min(tokens, _most_tokens(model)))
        feeds = dict(zip(("input_ids", "attention_mask"), (tensor.cpu().numpy() for tensor in inputs), strict=True))
        with torch.no_grad():
            wanted = plain(*inputs)
        for name, ours, exported in zip(session.get_outputs(), wanted, session.run(None, feeds), strict=True):
            real = inputs[1].bool().cpu() if ours.shape[:2] == inputs[1].shape else slice(None)
            ours, exported = ours.cpu()[real], torch.from_numpy(exported)[real]
            difference = float((ours - exported).abs().max() / ours.abs().max().clamp(min=1e-6))
            if not difference <= TOLERANCE:
                raise InputError(
                    f"{name.name} of the ONNX file differs from the model by {difference:.1e} of its largest value at "
                    f"{tokens} tokens; nothing was written, so use the model itself"
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the exporter's messages about missing libraries and its own steps."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
