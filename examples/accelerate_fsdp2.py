"""Trains a language model whose weights are sharded by accelerate (FSDP2).

    accelerate launch --config_file examples/accelerate_fsdp2.yaml examples/accelerate_fsdp2.py

starts two processes, or as many as `--num_processes` says, one for each GPU. Without GPUs it trains on CPUs, where
accelerate does not shard. `trained/` then has the model.
"""

from pydoc_data.topics import topics  # any text will do; this one is on every machine

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from longspan import LongspanConfig
from longspan.models import LongspanForCausalLM

accelerator = Accelerator(cpu=not torch.accelerator.is_available())
set_seed(0)
text = torch.tensor(list("".join(topics.values()).encode()))  # a token for each byte
rows = text[: len(text) // 1024 * 1024].view(-1, 1024)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
attention = {"mechanism": "longformer", "left_tokens": 128}
model = LongspanForCausalLM(LongspanConfig(**sizes, vocab_size=256, attention=attention, dropout=0.0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(rows[torch.randperm(len(rows))[:40]], batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for ids in loader:
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print("loss", accelerator.reduce(loss.detach(), "mean").item())
accelerator.unwrap_model(model).save_pretrained("trained", is_main_process=accelerator.is_main_process)
accelerator.end_training()
