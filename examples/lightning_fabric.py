"""Trains a language model in a loop of Lightning Fabric, with weights sharded by Longspan (FSDP2).

    pip install lightning
    python examples/lightning_fabric.py

uses all GPUs, or two processes on CPUs. `trained/` then has the model.
"""

from pydoc_data.topics import topics  # any text will do; this one is on every machine

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader

from longspan import LongspanConfig
from longspan.models import LongspanForCausalLM
from longspan.models.fsdp import shard


def sharded(model: torch.nn.Module, mesh: torch.distributed.DeviceMesh) -> torch.nn.Module:
    shard(model, torch.device(mesh.device_type))
    return model


devices = torch.accelerator.device_count() or 2
strategy = ModelParallelStrategy(sharded, data_parallel_size=devices, tensor_parallel_size=1)
fabric = Fabric(devices=devices, strategy=strategy)
fabric.launch()
fabric.seed_everything(0)
text = torch.tensor(list("".join(topics.values()).encode()))  # a token for each byte
rows = text[: len(text) // 1024 * 1024].view(-1, 1024)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
model = LongspanForCausalLM(LongspanConfig(**sizes, vocab_size=256, attention="poolingformer", dropout=0.0))
loader = fabric.setup_dataloaders(DataLoader(rows[torch.randperm(len(rows))[:40]], batch_size=2))
model = fabric.setup(model)
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
for ids in loader:
    loss = model(input_ids=ids, labels=ids).loss
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    fabric.print("loss", fabric.all_reduce(loss.detach()).item())
model.module.save_pretrained("trained")
