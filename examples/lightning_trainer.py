"""Trains a language model with Lightning's `Trainer`.

    pip install lightning
    python examples/lightning_trainer.py

uses all GPUs, or two processes on CPUs. `trained/` then has the model.
"""

from pydoc_data.topics import topics  # any text will do; this one is on every machine

import lightning
import torch
from torch.utils.data import DataLoader

from longspan import LongspanConfig
from longspan.models import LongspanForCausalLM


class LanguageModel(lightning.LightningModule):
    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.model = LongspanForCausalLM(config)

    def training_step(self, ids: torch.Tensor) -> torch.Tensor:
        loss = self.model(input_ids=ids, labels=ids).loss
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
text = torch.tensor(list("".join(topics.values()).encode()))  # a token for each byte
rows = text[: len(text) // 1024 * 1024].view(-1, 1024)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
attention = {"mechanism": "longformer", "left_tokens": 128}
module = LanguageModel(LongspanConfig(**sizes, vocab_size=256, attention=attention, dropout=0.0))
devices = torch.accelerator.device_count() or 2
trainer = lightning.Trainer(max_epochs=1, devices=devices, gradient_clip_val=1.0, log_every_n_steps=1)
trainer.fit(module, DataLoader(rows[:40], batch_size=2, shuffle=True))
if trainer.is_global_zero:
    module.model.save_pretrained("trained")
