"""What transformers' tests ask of a model: tiny configurations, inputs, and which classes they are run with."""

from __future__ import annotations

import unittest
import warnings
from types import ModuleType
from typing import Any

import torch

from longspan import models
from longspan.models import LongspanConfig

MECHANISMS: dict[str, Any] = {
    "longformer": {"mechanism": "longformer", "left_tokens": 2, "right_tokens": 1},
    "poolingformer": {
        "mechanism": "poolingformer",
        "left_tokens": 2,
        "right_tokens": 1,
        "pooled_left_tokens": 4,
        "pooled_right_tokens": 4,
        "kernel": 3,
        "stride": 2,
    },
    "bigbird": {"mechanism": "bigbird", "block_tokens": 3, "random_blocks": 1},
    "full": {"mechanism": "full"},
}
CAUSAL = ("longformer", "full")
"""Those with a causal form; beside the others stands a full decoder."""
KINDS: dict[str, dict[str, type]] = {
    "encoder": {
        "MODEL": models.LongspanModel,
        "MODEL_FOR_MASKED_LM": models.LongspanForMaskedLM,
        "MODEL_FOR_MULTIPLE_CHOICE": models.LongspanForMultipleChoice,
        "MODEL_FOR_QUESTION_ANSWERING": models.LongspanForQuestionAnswering,
        "MODEL_FOR_SEQUENCE_CLASSIFICATION": models.LongspanForSequenceClassification,
        "MODEL_FOR_TOKEN_CLASSIFICATION": models.LongspanForTokenClassification,
    },
    "encoder-decoder": {"MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": models.LongspanForConditionalGeneration},
    "causal": {"MODEL_FOR_CAUSAL_LM": models.LongspanForCausalLM},
}
"""Kind of model → transformers' list of such classes → ours."""


class Tester:
    """The `model_tester` of one kind of model with one mechanism in each layer."""

    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_hidden_layers, num_attention_heads, num_choices = 16, 2, 2, 2

    def __init__(self, kind: str, mechanism: str) -> None:
        self.kind = kind
        self.sizes: dict[str, Any] = {
            "vocab_size": 61,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 20,
            "max_position_embeddings": 40,
            "attention": LongspanConfig(attention=MECHANISMS[mechanism]).attention,
            "global_tokens": "none" if kind == "causal" else "first",
        }
        if kind == "encoder-decoder":
            decoder = mechanism if mechanism in CAUSAL else "full"
            self.sizes |= {
                "decoder_layers": 2,
                "decoder_attention": LongspanConfig(attention=MECHANISMS[decoder]).attention,
            }

    def get_config(self) -> LongspanConfig:
        return LongspanConfig(**self.sizes)

    def prepare_config_and_inputs_for_common(self) -> tuple[LongspanConfig, dict[str, Any]]:
        ids = torch.randint(3, 61, (self.batch_size, self.seq_length))
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.kind == "encoder-decoder":
            inputs["decoder_input_ids"] = ids.flip(1)
        return self.get_config(), inputs


class Outcomes(unittest.TestResult):
    """What became of each test, by its name: why it was skipped, and how it failed; the others passed."""

    def __init__(self) -> None:
        super().__init__()
        self.skips: dict[str, str] = {}
        self.faults: dict[str, str] = {}

    def addSkip(self, test: Any, reason: str) -> None:
        self.skips[_name(test)] = reason

    def addFailure(self, test: Any, err: Any) -> None:
        self.faults.setdefault(_name(test), self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)


def _name(test: Any) -> str:
    return getattr(test, "test_case", test)._testMethodName  # a part of a test knows the whole


def run(kind: str, mechanism: str, common: ModuleType, configuration: ModuleType) -> tuple[Outcomes, int]:
    """Run transformers' common and configuration tests; what became of them, and how many passed."""
    for listed, ours in KINDS[kind].items():
        name = f"{listed}_MAPPING_NAMES"  # their tests look classes up by name, and here find ours too
        setattr(common, name, {**getattr(common, name), LongspanConfig.model_type: ours.__name__})

    def set_up(self: Any) -> None:
        torch.manual_seed(0)
        self.model_tester = Tester(kind, mechanism)

    def test_config(self: Any) -> None:
        sizes = self.model_tester.sizes
        configuration.ConfigTester(self, config_class=LongspanConfig, **sizes).run_common_tests()

    case = type(
        f"{mechanism}-{kind}",
        (common.ModelTesterMixin, unittest.TestCase),
        {
            "setUp": set_up,
            "test_config": test_config,
            "all_model_classes": tuple(KINDS[kind].values()),
            "is_encoder_decoder": kind == "encoder-decoder",
            "test_can_init_all_missing_weights_before_2023": True,
            "has_attentions": False,  # a long mechanism never forms those of all pairs
        },
    )
    outcomes = Outcomes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs; of ours each is an error
        warnings.filterwarnings("error", module=r"longspan\.")
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(outcomes)
    failed = outcomes.faults.keys()
    outcomes.skips = {name: reason for name, reason in outcomes.skips.items() if name not in failed}
    return outcomes, outcomes.testsRun - len(failed) - len(outcomes.skips)
