"""A lightning.Trainer whose optimizer is the servers'; --plain: DDP with torch's. Both give the same numbers.

    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/integrations/lightning_fit.py --out trained
"""

import argparse
import os

import lightning
import torch
from torch import nn

from cairn.integrations.lightning import CairnStrategy

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--out", default="trained")
options = parser.parse_args()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, _):
        return ((self.net(batch) - batch.sum(1, keepdim=True)) ** 2).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"}]


lightning.seed_everything(0)
trainer = lightning.Trainer(strategy="ddp" if options.plain else CairnStrategy(name="lightning", stage=options.stage),
    accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), max_steps=10, accumulate_grad_batches=2,
    gradient_clip_val=0.5, logger=False, default_root_dir=options.out)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(512, 8), batch_size=8, shuffle=True))
trainer.save_checkpoint(f"{options.out}/last.ckpt")
