"""A loop with Accelerator whose optimizer is the servers'; --plain: with torch's. Both give the same numbers.

    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/integrations/accelerate_loop.py --out trained
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn

import cairn
from cairn.integrations.accelerate import attach

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--out", default="trained")
options = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
if not options.plain:
    m, optimizer = attach(accelerator, cairn.connect(), model, optimizer, name="accelerate", clip_norm=0.5,
                          stage=options.stage)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
loader = torch.utils.data.DataLoader(torch.randn(512, 8), batch_size=8)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
for batch, _ in zip(loader, range(20)):
    with accelerator.accumulate(model):
        accelerator.backward(((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean())
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step(), scheduler.step(), optimizer.zero_grad()
state = accelerator.get_state_dict(model) if options.plain else m.state_dict()
accelerator.save(state, f"{options.out}/last.pt")
if not options.plain:
    m.close()
