"""Checkpoints that programs really write, imported: Lightning, accelerate, transformers.Trainer, and PyTorch's own
tutorial. Each is tried where its package is there; current_torch.py runs this with those of PyPI.

    pip install pytorch-lightning accelerate transformers
"""

import os
import shutil
import tempfile
import unittest
import warnings
from pathlib import Path

import torched

torch = torched.torch
import cairn  # noqa: E402
from test_checkpoint import batch, loss_of, model, run_torch  # noqa: E402

BEFORE = 3
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)


class Real(torched.ClusterCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cairn-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def imported(self, path, net, optimizer, make=adamw):
        """With the moments, the weights and the step that `net` and its optimizer have."""
        ours = model()
        optim = make(ours)
        with cairn.import_checkpoint(self.session, path, ours, optim, name=self.name) as m:
            self.assertEqual(m.version.step, BEFORE)
            planes = {plane: m.state_dict(plane) for plane in ("exp_avg", "exp_avg_sq")}
        print(f"note: {m.imported.text}", flush=True)
        for name, p in net.named_parameters():
            self.assertTrue(torch.equal(ours.get_parameter(name).detach(), p.detach()), name)
            for plane, values in planes.items():
                self.assertTrue(torch.equal(values[name], optimizer.state[p][plane]), (name, plane))

    def test_the_app_state_of_pytorchs_tutorial(self):
        try:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict
            from torch.distributed.checkpoint.stateful import Stateful
        except ImportError:
            self.skipTest("this torch has no Stateful")

        class AppState(Stateful):
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer

            def state_dict(self):
                weights, optim = get_state_dict(self.net, self.optimizer)
                return {"model": weights, "optim": optim}

        net = model()
        optimizer = adamw(net)
        run_torch(net, optimizer, 0, BEFORE)
        dcp.save({"app": AppState(net, optimizer)}, checkpoint_id=str(self.folder / "dcp"), no_dist=True)
        self.imported(self.folder / "dcp", net, optimizer)

    def test_lightning(self):
        try:
            import pytorch_lightning as lightning
        except ImportError:
            self.skipTest("no pytorch_lightning")

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = model()
                self.save_hyperparameters()

            def training_step(self, _, step):
                return loss_of(self.net, step)

            def configure_optimizers(self):
                return adamw(self.net)

        module = Module()
        trainer = lightning.Trainer(max_steps=BEFORE, accelerator="cpu", logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=self.folder)
        trainer.fit(module, torch.utils.data.DataLoader(list(range(10))))
        trainer.save_checkpoint(self.folder / "run.ckpt")
        self.imported(self.folder / "run.ckpt", module.net, trainer.optimizers[0])

    def test_accelerate(self):
        try:
            from accelerate import Accelerator
        except ImportError:
            self.skipTest("no accelerate")
        accelerator = Accelerator(cpu=True)
        net = model()
        net, optimizer = accelerator.prepare(net, adamw(net))
        run_torch(net, optimizer, 0, BEFORE)
        accelerator.save_state(str(self.folder / "state"))
        self.imported(self.folder / "state", net, optimizer.optimizer)

    def test_transformers_trainer(self):
        try:
            from transformers import Trainer, TrainingArguments
        except ImportError:
            self.skipTest("no transformers")

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = model()

            def forward(self, x, labels):
                return {"loss": ((self.net(x) - labels) ** 2).mean()}

        rows = [{"x": x, "labels": y} for step in range(10) for x, y in zip(*batch(step))]
        wrapped = Wrapped()
        trainer = Trainer(wrapped, TrainingArguments(
            output_dir=str(self.folder / "out"), max_steps=BEFORE, save_steps=BEFORE, per_device_train_batch_size=8,
            use_cpu=True, report_to=[], learning_rate=1e-2, weight_decay=0.1, disable_tqdm=True), train_dataset=rows)
        trainer.train()
        optimizer = trainer.optimizer
        while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer

        def grouped(net):  # as the Trainer makes it: what decays, and what does not
            decays = [p for p in net.parameters() if p.dim() > 1]
            return torch.optim.AdamW([{"params": decays, "weight_decay": 0.1},
                                      {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0}],
                                     lr=1e-2)

        self.imported(self.folder / "out" / f"checkpoint-{BEFORE}", wrapped.net, optimizer, grouped)


if __name__ == "__main__":
    unittest.main()
