"""ONNX files: onnxruntime gives what the model gives, at every batch size and length."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import onnxruntime
import pytest
import torch

import longspan
from longspan.errors import InputError
from longspan.stacks import binary_partition

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "max_position_embeddings": 200,
}
SMALL = {
    "full": {"attention": "full"},
    "linear": {"attention": "linear"},
    "tree": {"stack": {"stack": "binary_partition", "neighbours": 3, "clip_levels": 2}, "max_position_embeddings": 64},
    "bigbird": {"attention": {"mechanism": "bigbird", "block_tokens": 4, "global_blocks": 1}},
    "longformer": {
        "attention": {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 5},
        "global_tokens": "question",
        "max_global_tokens": 6,
        "num_memory_tokens": 3,
    },
    "etc": {
        "attention": {"mechanism": "etc", "radius_tokens": 3, "clamp_tokens": 2, "projections": "pieces"},
        "global_tokens": "question",
        "max_global_tokens": 6,
    },
    "poolingformer": {
        "attention": {
            "mechanism": "poolingformer",
            "left_tokens": 3,
            "right_tokens": 2,
            "pooled_left_tokens": 8,
            "pooled_right_tokens": 8,
            "windows": "shared",
        }
    },
    "fusion": {
        "attention": {
            "mechanism": "fusion",
            "left_tokens": 3,
            "right_tokens": 2,
            "relative_span": 5,
            "global_buckets": 4,
            "pooled_left_tokens": 7,
            "pooled_right_tokens": 7,
        },
        "global_tokens": "first",
    },
}


def tiny(kind: type = longspan.LongspanModel, **options):
    return kind(longspan.LongspanConfig(**{**SIZES, **options}))


def assert_file_agrees(model: longspan.LongspanPreTrainedModel, file: Path, sizes: list[tuple[int, int]]) -> None:
    """Compare every output with the model's, at each number of rows and tokens, with padding in the last row."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [entry.shape for entry in session.get_inputs()] == [["batch", "tokens"]] * 2
    names = [entry.name for entry in session.get_outputs()]
    for batch, tokens in sizes:
        ids = torch.randint(3, 61, (batch, tokens))
        ids[:, min(tokens - 1, 4)] = 2  # the end of the question
        mask = torch.ones_like(ids)
        mask[-1, tokens // 2 + 1 :] = 0
        found = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        with torch.no_grad():
            output = model(ids, mask)
        for name, ours in zip(names, found, strict=True):
            wanted, ours = output[name], torch.from_numpy(ours)
            assert ours.shape == wanted.shape
            real = mask.bool() if wanted.shape[:2] == mask.shape else slice(None)
            torch.testing.assert_close(ours[real], wanted[real], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_onnxruntime_gives_the_same_states(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Levels of a tree over 64 tokens; writing those of a million takes minutes.
    monkeypatch.setattr(binary_partition, "MOST_LEVELS", 7)
    model = tiny(**SMALL[name]).train()
    longest = min(131, model.config.max_position_embeddings)
    file = longspan.to_onnx(model, tmp_path / "model.onnx")
    assert model.training
    assert_file_agrees(model.eval(), file, [(1, 1), (2, 3), (3, 17), (1, 64), (2, longest)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_onnxruntime_gives_the_same_for_every_head(tmp_path: Path) -> None:
    heads = {
        longspan.LongspanForMaskedLM: {},
        longspan.LongspanForSequenceClassification: {"num_labels": 5},
        longspan.LongspanForTokenClassification: {"num_labels": 3},
        longspan.LongspanForQuestionAnswering: {},
    }
    compressed = {"num_memory_tokens": 3, "compress_after": 1, "num_hidden_layers": 2}
    for kind, options in [*heads.items(), (longspan.LongspanForSequenceClassification, compressed)]:
        model = tiny(kind, attention="full", **options).eval()
        assert_file_agrees(model, longspan.to_onnx(model, tmp_path / "model.onnx"), [(1, 7), (3, 50)])


def refused_models() -> dict:
    scorer, decoder = longspan.LongspanForSentenceScoring, longspan.LongspanForConditionalGeneration
    return {
        "a decoder": (lambda: tiny(decoder, decoder_layers=1), "model.onnx", "cannot be written as ONNX"),
        "a sentence scorer": (lambda: tiny(scorer), "model.onnx", "write its encoder, model.model"),
        "no model": (lambda: torch.nn.Linear(2, 2), "model.onnx", "model=Linear is not a Longspan model"),
        "half precision": (lambda: tiny().half(), "model.onnx", "call model.float() first"),
        "open globals": (lambda: tiny(global_tokens="question"), "model.onnx", "set model.config.max_global_tokens"),
        "another ending": (tiny, "model.pt", "does not end in .onnx"),
        "no folder": (tiny, "none/model.onnx", "is no folder"),
        "many weights": (many_weights, "model.onnx", "model has 1.7 GB of weights, and one ONNX file holds 1.6 GB"),
    }


def many_weights() -> longspan.LongspanModel:
    """27 million entries of 16 numbers of 4 bytes are 1.728 GB; none of them is allocated."""
    with torch.device("meta"):
        return tiny(vocab_size=27_000_000)


@pytest.mark.parametrize("name", refused_models())
def test_what_cannot_be_exported_is_refused(name: str, tmp_path: Path) -> None:
    make, file, words = refused_models()[name]
    with pytest.raises(InputError) as error:
        longspan.to_onnx(make(), tmp_path / file)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.variant
def test_a_place_that_cannot_be_written_is_refused(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
    with pytest.raises(InputError, match="the disk is full"):
        longspan.to_onnx(tiny(), small_disk / "model.onnx")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InputError, match="its folder is read-only"):
        longspan.to_onnx(tiny(), small_disk / "model.onnx")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
