"""cairn.integrations with the packages themselves: each example, by processes of its own, has the same numbers with
torch's optimizer and with the servers'; and what cannot be right is refused. current_torch.py runs this with the
packages of PyPI.

    pip install transformers lightning accelerate
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torched
from runner import main, skip, torchrun_lacks

torch = torched.torch
import cairn  # noqa: E402

SOURCE = Path(__file__).resolve().parents[3]
EXAMPLES = SOURCE / "client" / "examples" / "integrations"
LR, STEPS = 1e-2, 10  # of the examples
ENDS_S = 180
SMALL = dict(accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
             enable_progress_bar=False, enable_model_summary=False)
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


if not any(map(has, ("transformers", "lightning", "accelerate"))):
    skip("none of transformers, lightning and accelerate is installed for this Python")


def needs(package: str):
    return unittest.skipUnless(has(package), f"no {package}")


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


class Case(torched.ClusterCase):
    shards = 2

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cairn-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        kept = mock.patch.dict(os.environ)  # Lightning sets MASTER_PORT and others
        kept.start()
        self.addCleanup(kept.stop)
        self.addCleanup(lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group())

    def run_example(self, name, out, *options, workers=1, fails=False):
        """Its values, by their names."""
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={workers}"] if workers > 1 else []
        (self.folder / out).mkdir(exist_ok=True)
        done = subprocess.run([sys.executable, *launch, EXAMPLES / f"{name}.py", "--out", self.folder / out, *options],
                              env={**os.environ, "CAIRN_ENDPOINT": self.cluster.endpoint, "OMP_NUM_THREADS": "1"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ENDS_S)
        self.assertEqual(done.returncode != 0, fails, done.stdout[-4000:])
        return done.stdout if fails else self.values(self.folder / out)

    @staticmethod
    def values(folder):
        if (folder / "model.safetensors").exists():
            from safetensors.torch import load_file
            return load_file(folder / "model.safetensors")
        (path,) = folder.glob("last.*")
        values = torch.load(path, weights_only=False)
        return values.get("state_dict", values)

    def assert_same(self, ours, torchs):
        self.assertGreaterEqual(set(ours), set(torchs))
        for name, right in torchs.items():
            self.assertFalse(torch.equal(right, torch.zeros_like(right)), name)
            far = (ours[name] - right).abs() > 1e-6 * (right.abs() + LR * STEPS)
            if name.endswith("attn.c_attn.bias"):  # no loss depends on the keys' part: its gradient is rounding alone
                width = len(far) // 3
                far = torch.cat([far[:width], far[2 * width:]])
            self.assertFalse(far.any().item(), name)

    def try_example(self, name, job):
        torchs = self.run_example(name, "torch", "--plain")
        for stage in (2, 3):
            self.assert_same(self.run_example(name, f"stage{stage}", "--stage", str(stage)), torchs)
            self.cluster.ctl("job", "drop", job, "--yes")
        self.assertEqual(torchrun_lacks(), "")
        torchs = self.run_example(name, "torch2", "--plain", workers=2)
        self.assert_same(self.run_example(name, "ours2", workers=2), torchs)

    def refused(self, kind, sentence, call, *given, **named):
        with self.assertRaisesRegex(kind, sentence):
            call(*given, **named)


@needs("transformers")
class Transformers(Case):
    def test_the_example_has_torchs_numbers(self):
        self.try_example("hf_trainer", "hf")

    def trainer(self, **options):
        from transformers import Trainer, TrainingArguments
        options = {"max_steps": 2, "use_cpu": True, "report_to": [], "disable_tqdm": True, **options}
        is_tested = options.pop("eval_dataset", False)
        rows = [{"x": one, "labels": one.sum(0, keepdim=True)} for one in torch.randn(16, 4)]

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net()

            def forward(self, x, labels):
                return {"loss": ((self.net(x) - labels) ** 2).mean()}
        return Trainer(Wrapped(), TrainingArguments(str(self.folder), **options), train_dataset=rows,
                       eval_dataset=rows if is_tested else None)

    def test_a_job_at_another_step_than_the_trainer_is_refused(self):
        from cairn.integrations.transformers import attach
        trainer = self.trainer(save_steps=1)
        attach(trainer, self.session, name=self.name)
        trainer.train()
        again = self.trainer()
        attach(again, self.session, name=self.name)
        self.refused(cairn.Invalid, "at step 2, and this loop begins at step 0.*resume_from_checkpoint", again.train)
        on = self.trainer(max_steps=4)  # as the sentence says
        callback = attach(on, self.session, name=self.name)
        on.train(resume_from_checkpoint=True)
        self.assertEqual(callback.m.version.step, 4)
        self.assertEqual(on.state.global_step, 4)

    def test_a_job_that_went_further_goes_on_from_its_snapshot(self):
        from cairn.integrations.transformers import attach
        trainer = self.trainer(save_steps=1)
        attach(trainer, self.session, snapshots=True, name=self.name)
        trainer.train()
        first = self.folder / "checkpoint-1"
        further = self.trainer(max_steps=3)
        attach(further, self.session, name=self.name)
        self.refused(cairn.Invalid, "at step 2, and this loop begins at step 1.*cairn snapshot restore", further.train,
                     resume_from_checkpoint=str(first))
        made = {one["step"]: one["id"] for one in self.cluster.ctl("snapshot", "list", self.name)["snapshots"]}
        self.cluster.ctl("snapshot", "restore", self.name, made[1], "--yes")
        back = self.trainer(max_steps=3)
        callback = attach(back, self.session, name=self.name)
        back.train(resume_from_checkpoint=str(first))
        self.assertEqual((callback.m.version.step, back.state.global_step), (3, 3))

    def test_the_norm_that_is_logged_is_the_servers(self):
        from cairn.integrations.transformers import attach
        norms = []
        for ours in (True, False):
            torch.manual_seed(1)
            trainer = self.trainer(logging_steps=1, max_grad_norm=0.0 if ours else 1e9)
            if ours:
                attach(trainer, self.session, name=self.name)
            trainer.train()
            norms.append([row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row])
        self.assertEqual(len(norms[0]), 2)
        for ours, torchs in zip(*norms):
            self.assertAlmostEqual(ours, torchs, delta=1e-5 * torchs)

    def test_what_cannot_be_right_is_refused(self):
        from cairn.integrations.transformers import attach
        best = self.trainer(load_best_model_at_end=True, eval_strategy="steps", save_steps=1, eval_steps=1,
                            eval_dataset=True)
        self.refused(cairn.Unsupported, "load_best_model_at_end", attach, best, self.session)
        self.refused(cairn.Invalid, "max_grad_norm", attach, self.trainer(), self.session, clip_norm=1.0)
        other = self.trainer(optim="adafactor")
        attach(other, self.session, name=self.name)
        self.refused(cairn.Unsupported, "Adafactor is not run by the servers", other.train)


@needs("lightning")
class Lightning(Case):
    def test_the_example_has_torchs_numbers(self):
        self.try_example("lightning_fit", "lightning")

    def fit(self, configure, path=None, manual=False, **options):
        import lightning
        from cairn.integrations.lightning import CairnStrategy

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = net()
                self.automatic_optimization = not manual

            def training_step(self, batch, _):
                return self.net(batch).mean()

            def configure_optimizers(self):
                return configure(self)

        strategy = CairnStrategy(self.session, name=self.name)
        trainer = lightning.Trainer(strategy=strategy, default_root_dir=self.folder, **{**SMALL, **options})
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4), ckpt_path=path)
        return trainer

    def test_a_job_at_another_step_than_the_trainer_is_refused(self):
        def adamw(module):
            return torch.optim.AdamW(module.parameters(), lr=LR)

        self.fit(adamw).save_checkpoint(self.folder / "two.ckpt")
        self.refused(cairn.Invalid, "at step 2, and this loop begins at step 0.*ckpt_path", self.fit, adamw)
        on = self.fit(adamw, path=self.folder / "two.ckpt", max_steps=4)
        self.assertEqual((on.global_step, on.strategy.m.version.step), (4, 4))

    def test_what_cannot_be_right_is_refused(self):
        from cairn.integrations.lightning import CairnStrategy
        self.refused(cairn.Invalid, "gradient_clip_val", CairnStrategy, clip_norm=1.0)
        self.refused(cairn.Unsupported, "is not run by the servers", self.fit, lambda module: None)
        self.refused(cairn.Unsupported, "manual optimization", self.fit, lambda module: None, manual=True)
        self.refused(cairn.Unsupported, "RMSprop is not run", self.fit,
                     lambda module: torch.optim.RMSprop(module.parameters()))
        self.refused(cairn.Unsupported, "by the norm", self.fit, lambda module: torch.optim.AdamW(module.parameters()),
                     gradient_clip_val=1.0, gradient_clip_algorithm="value")


@needs("accelerate")
class Accelerate(Case):
    def test_the_example_has_torchs_numbers(self):
        self.try_example("accelerate_loop", "accelerate")

    def test_what_cannot_be_right_is_refused(self):
        from accelerate import Accelerator
        from cairn.integrations.accelerate import attach
        accelerator, model = Accelerator(cpu=True), net()
        m, optimizer = attach(accelerator, self.session, model, torch.optim.AdamW(model.parameters()), name=self.name,
                              clip_norm=0.5)
        with m:
            accelerator.backward(model(torch.randn(2, 4)).mean())
            self.refused(cairn.Invalid, "clip_norm=1", accelerator.clip_grad_norm_, model.parameters(), 1.0)
            self.refused(cairn.Unsupported, "order 1", accelerator.clip_grad_norm_, model.parameters(), 0.5, 1)
            self.refused(cairn.Unsupported, "clip_grad_value_", accelerator.clip_grad_value_, model.parameters(), 1.0)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            self.assertEqual(optimizer.result.step, 1)
            self.assertAlmostEqual(optimizer.result.grad_norm, norm.item(), places=6)
            moments = torch.optim.AdamW(net().parameters())
            moments.state[moments.param_groups[0]["params"][0]]["step"] = torch.tensor(1.0)
            self.refused(cairn.Unsupported, "import_checkpoint", optimizer.load_state_dict, moments.state_dict())
            self.assertEqual(optimizer.state_dict()["cairn"], {"job": self.name, "step": 1})


if __name__ == "__main__":
    main()
