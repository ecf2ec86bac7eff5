"""What kept states save: a decomposed BERT-base with nine of twelve layers apart against the joint one.

    python benchmarks/decomposition.py           # some minutes on one core
    python benchmarks/decomposition.py --quick   # one small model, and no page

Random weights, one pair at a time, the five length settings of DeFormer (Cao et al. 2020, 2005.00697, table 1). One
part of each pair has been through the lower layers before, and its states were stored in float16, as an index keeps
them; that is not timed. What comes out is first compared with the decomposed model on the whole pair.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from longspan import decompose
from longspan.models import LongspanConfig, LongspanForQuestionAnswering
from longspan.models.pieces import joint_states, part_states
from longspan.stacks.decomposed import Part
from measure import allocations, check_close, machine, paired_seconds, peak_allocated, table, write_page

LAYERS, LOWER = 12, 9


@dataclass(frozen=True)
class Setting:
    """A data set's lengths, and what was published for BERT-base.

    Attributes:
        tokens: of a pair.
        first: of its first part, without the two special tokens.
        speed: published, times.
        saved: published, share of memory.
        kept: which part is kept: 1, the passage, or 0, where the premise is.
    """

    name: str
    tokens: int
    first: int
    speed: float
    saved: float
    kept: int = 1

    @property
    def asked(self) -> int:
        """Tokens that go through the lower layers."""
        return self.first + 2 if self.kept else self.tokens - self.first - 2

    @property
    def expected(self) -> float:
        """n / (k · L_q / L + n − k), from the count of tokens in each layer alone."""
        return LAYERS / (LOWER * self.asked / self.tokens + LAYERS - LOWER)


SETTINGS = (
    Setting("SQuAD", 320, 25, 3.2, 0.703),
    Setting("RACE", 512, 30, 3.4, 0.729),
    Setting("BoolQ", 320, 15, 3.5, 0.720),
    Setting("MNLI", 120, 85, 2.2, 0.564, kept=0),
    Setting("QQP", 100, 40, 2.0, 0.500),
)


def models(small: bool) -> tuple[Any, Any]:
    """The joint model, and the same weights decomposed."""
    sizes = {"hidden_size": 48 if small else 768, "intermediate_size": 96 if small else 3072}
    conventions = {"type_vocab_size": 2, "position_offset": 0, "layer_norm_eps": 1e-12, "attention": "full"}
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=30522,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        max_position_embeddings=512,
        **sizes,  # pyright: ignore[reportArgumentType]
        **conventions,  # pyright: ignore[reportArgumentType]
    )
    joint = LongspanForQuestionAnswering(config).eval()
    return joint, decompose(joint, LOWER)


def sides(joint: Any, apart: Any, setting: Setting) -> dict[str, Callable[[], Any]]:
    """The joint model, the decomposed one over the whole pair, and the same with one part's states kept."""
    ids = torch.randint(1000, 30000, (1, setting.tokens))
    border, encoder = setting.first + 2, apart.model.encoder
    types = (torch.arange(setting.tokens) >= border).long()[None]
    parts = [(ids[:, :border], types[:, :border], True), (ids[:, border:], types[:, border:], False)]

    def states_of(number: int) -> Part:
        tokens, kinds, question = parts[number]
        return part_states(encoder, tokens, torch.ones_like(tokens), kinds, question=question)

    stored = states_of(setting.kept)
    halved = stored.hidden.half()

    def reuse() -> Any:
        kept, made = stored._replace(hidden=halved.float()), states_of(1 - setting.kept)
        question, passage = (made, kept) if setting.kept else (kept, made)
        mask = torch.ones(passage.hidden.shape[:2], dtype=torch.bool)
        hidden, _ = joint_states(encoder, question, passage.hidden, mask)
        return apart.qa_outputs(hidden)

    def whole(model: Any) -> Any:
        output = model(ids, token_type_ids=types)
        return torch.stack([output.start_logits, output.end_logits], -1)

    return {"joint": lambda: whole(joint), "decomposed": lambda: whole(apart), "kept": reuse}


@torch.inference_mode()
def measured(setting: Setting, joint: Any, apart: Any, rounds: int) -> list[str]:
    """One row of the table."""
    runs = sides(joint, apart, setting)
    difference = check_close(
        f"{setting.name}: kept states and the whole pair", runs["kept"](), runs["decomposed"](), 5e-3
    )
    seconds = paired_seconds(runs, rounds=rounds, clock=time.process_time)
    peak = {name: peak_allocated(run) for name, run in runs.items()}
    made = {name: sum(change for change in allocations(run) if change > 0) for name, run in runs.items()}
    row = [setting.name, f"{setting.tokens} / {setting.first}", f"{1000 * seconds['joint']:.0f}"]
    row += [f"{1000 * seconds['kept']:.0f}", f"{seconds['joint'] / seconds['kept']:.2f}×", f"{setting.expected:.2f}×"]
    row += [f"{setting.speed:.1f}×", *(f"{100 * (side['kept'] / side['joint'] - 1):+.1f} %" for side in (made, peak))]
    row += [f"{-100 * setting.saved:+.1f} %", f"{seconds['joint'] / seconds['decomposed']:.2f}×", f"{difference:.0e}"]
    print(*row, sep="\t", flush=True)
    return row


def report(rows: list[list[str]]) -> list[str]:
    """The page's parts."""
    header = ["lengths of", "L / first", "joint, ms", "kept, ms", "faster", "by count", "published", "memory"]
    header[-1] = "memory, all tensors"
    header += ["memory, peak", "published", "nothing kept", "difference"]
    return [
        f"{machine()}, which did other work as well; processor time of one thread.",
        f"A model of BERT-base's shape with random weights, float32, {LOWER} of {LAYERS} layers apart; batch size 1. "
        "The passage (of MNLI the premise, which is its first part) has been through the lower layers before, and its "
        "states were stored in float16: this is not timed, as in the paper. Each result was first compared with the "
        "decomposed model on the whole pair; the last column has the largest difference of a logit, which is that of "
        "rounding states to float16.",
        table(header, rows),
        "*By count* is n / (k · L_q / L + n − k), for L_q tokens that go through the lower layers. *Nothing kept* is "
        "the decomposed model against the joint one where both parts are read anew: only the scores between the parts "
        "are saved. *Memory* is what tensors take besides the weights and the stored states, as torch's allocator "
        "counts it: of *all tensors* that a pass makes, together, and of those that are there at once at its *peak*. A "
        "layer's tensors are gone when the next one begins, so that the peak is that of one upper layer over the whole "
        "pair, with kept states or without. The published saving goes with the time, as the sum over all tensors does; "
        "what was counted is not said there. One pair at a time reads the 255 MB of the lower layers' weights for 17 "
        "to 42 tokens, which is why time falls less than the count of tokens. Hardware and batch size are others. "
        "Published figures are for BERT-base.",
    ]


def main() -> None:
    """Measure and write `results/decomposition.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, and write no page")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    joint, apart = models(options.quick)
    rows = [measured(setting, joint, apart, 1 if options.quick else options.rounds) for setting in SETTINGS]
    if not options.quick:
        print(write_page("decomposition", "Kept states of passages against the joint model", report(rows)))


if __name__ == "__main__":
    main()
