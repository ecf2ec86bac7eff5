"""Window denoising as a further objective of the bundled encoder: what `bundled-denoising.yaml` begins with and leaves.

    python tools/bundled/denoise.py meetings runs/meetings --documents 30   # those of `teach.py --only qmsum`
    python tools/bundled/denoise.py start runs/denoising-start              # the package's encoder, a new light decoder
    longspan train bundled-denoising --output runs/denoising
    python tools/bundled/denoise.py take runs/denoising runs/denoised       # the encoder again, its head as it was

The decoder has one layer and is thrown away. It writes with the table of words that the encoder reads with, whose
entries have a variance of 1, so that its last normalisation begins at 1/√width: else its first guesses would be certain
and wrong.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from bundle import BUNDLED, TABLE, shipped, take_out
from teach import documents

from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.models import LongspanConfig, LongspanForConditionalGeneration

ENCODER, INSIDE = "encoder.", "model.encoder."
"""What the names of the encoder's weights begin with: in an encoder–decoder, and below a head."""


def write_meetings(folder: Path, most: int) -> None:
    """The dialogues of the documents that the teacher reads, one file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = documents(("qmsum",))[:most]
    for split in ("train", "validation"):
        lines = [json.dumps(row, ensure_ascii=False) for _, own, row in rows if own == split]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def start(output: Path, seed: int = 0) -> None:
    """Write the encoder of the package with a new decoder of one layer."""
    fields, weights = shipped()
    torch.manual_seed(seed)
    new = {"head": None, "decoder_layers": 1, "is_encoder_decoder": True, "decoder_start_token_id": 2}
    model = LongspanForConditionalGeneration(LongspanConfig.from_dict({**fields, **new}))
    encoder = {name.removeprefix(INSIDE): value for name, value in weights.items() if name.startswith(INSIDE)}
    model.encoder.load_state_dict(encoder)
    assert model.decoder.final_norm is not None  # normalised before each layer
    with torch.no_grad():
        model.decoder.final_norm.weight.fill_(fields["hidden_size"] ** -0.5)
    model.save_pretrained(output)
    load_tokenizer(BUNDLED).save_pretrained(output)


def take(folder: Path, output: Path) -> None:
    """Write the encoder of a denoiser below the package's head, without the tokens that the noise needed."""
    found, (fields, _) = load_model(folder).state_dict(), shipped()
    encoder = {INSIDE + name.removeprefix(ENCODER): value for name, value in found.items() if name.startswith(ENCODER)}
    encoder[TABLE] = encoder[TABLE][: fields["vocab_size"]]
    take_out(output, encoder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_meetings = commands.add_parser("meetings")
    of_meetings.add_argument("folder", type=Path)
    of_meetings.add_argument("--documents", type=int, default=30)
    commands.add_parser("start").add_argument("output", type=Path)
    of_take = commands.add_parser("take")
    of_take.add_argument("folder", type=Path)
    of_take.add_argument("output", type=Path)
    given = vars(parser.parse_args())
    command = given.pop("command")
    if command == "meetings":
        write_meetings(given["folder"], given["documents"])
    else:
        {"start": start, "take": take}[command](**given)
