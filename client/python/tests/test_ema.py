"""The moving average of the parameters that the shards keep: torch's, and where it is read."""


import subprocess

from cluster import BIN
from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import cairn

DECAY, STEPS, LR = 0.9, 12, 1e-2


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(model, step):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
    return model(x).square().mean()


def averaged(model) -> AveragedModel:
    """What get_ema_multi_avg_fn(DECAY) makes; torch 1.13 has the older argument alone."""
    try:
        from torch.optim.swa_utils import get_ema_multi_avg_fn
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    except ImportError:
        return AveragedModel(model, avg_fn=lambda average, p, _: DECAY * average + (1 - DECAY) * p)


class Ema(ClusterCase):
    shards = 2

    def train(self, m, steps):
        for _ in range(steps):
            loss_of(m.model, m.begin().index).backward()
            m.step()

    def near(self, mine, theirs):
        for name, average in theirs.items():
            bound = 1e-6 * (average.abs() + LR * STEPS)
            self.assertTrue(bool(((mine[name] - average).abs() <= bound).all()), name)

    def test_it_is_that_of_torchs_averaged_model(self):
        alone = net()
        average, optimizer = averaged(alone), torch.optim.AdamW(alone.parameters(), lr=LR)
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=DECAY), name="torchs")
        for name, value in m.state_dict("ema").items():  # at first the parameters
            self.assertTrue(torch.equal(value, m.state_dict()[name]), name)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(alone, step).backward()
            optimizer.step()
            average.update_parameters(alone)
        self.train(m, STEPS)
        self.near(m.state_dict("ema"), average.module.state_dict())

    def test_a_reader_loads_averages_where_there_are_some_and_the_rest_as_it_is(self):
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=DECAY, ema_schedule="warmup", groups={"*.bias": dict(
            ema=0.0, ema_schedule="constant")}), name="some")
        self.train(m, 4)
        averages, values, model = m.state_dict("ema"), m.state_dict(), net()
        self.assertEqual(sorted(averages), ["0.weight", "2.weight"])
        with cairn.reader("some", self.cluster.endpoint) as reader:
            self.assertEqual(reader.load_into(model, ema=True).step, 4)
            for name, p in model.state_dict().items():
                self.assertTrue(torch.equal(p, averages.get(name, values[name])), name)
            self.assertFalse(torch.equal(averages["0.weight"], values["0.weight"]))
            reader.load_into(model)
            self.assertTrue(torch.equal(model.state_dict()["0.weight"], values["0.weight"]))

    def test_of_a_job_without_one_it_says_what_to_do(self):
        m = self.attach(net(), cairn.SGD(lr=LR), name="none")
        with cairn.reader("none", self.cluster.endpoint) as reader:
            with self.assertRaisesRegex(cairn.NotFound, "keeps no average.*ema=0.999.*--set GROUP.ema"):
                reader.load_into(net(), ema=True)
        with self.assertRaisesRegex(cairn.NotFound, "no plane ema.*ema is 0.*default.ema=0.999"):
            m.state_dict("ema")
        with self.assertRaisesRegex(cairn.Invalid, "ema_schedule of default is 'cosine'; allowed are constant, warmup"):
            self.attach(net(), cairn.SGD(lr=LR, ema=0.9, ema_schedule="cosine"), name="odd")

    def test_a_decay_is_amended_and_an_average_is_written(self):
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=DECAY), name="amended")
        self.train(m, 2)
        m.amend({"default": dict(ema=0.5)})
        before = m.state_dict("ema")
        self.train(m, 1)
        after, values = m.state_dict("ema"), m.state_dict()
        for name, value in values.items():
            self.assertTrue(torch.allclose(after[name], 0.5 * before[name] + 0.5 * value, atol=1e-6), name)
        m.write({"0.bias": torch.ones(16)})
        self.assertTrue(torch.equal(m.state_dict("ema")["0.bias"], after["0.bias"]))
        m.write({"0.bias": torch.full((16,), 7.0)}, plane="ema")
        self.assertTrue(torch.equal(m.state_dict("ema")["0.bias"], torch.full((16,), 7.0)))
        self.assertTrue(torch.equal(m.state_dict()["0.bias"], torch.ones(16)))
        with self.assertRaisesRegex(cairn.Unsupported, "--set default.ema=0"):
            m.amend({"default": dict(ema=0.0)})

    def exported(self, name, *options):
        to = self.folder / f"{name}{len(options)}"
        self.cluster.ctl("snapshot", "export", name, "latest", "--to", str(to), "--format", "torch", *options)
        return torch.load(to / "checkpoint.pt")["model"]

    def test_a_snapshot_has_it_and_a_job_of_one_without_it_begins_with_the_parameters(self):
        m = self.attach(net(), cairn.AdamW(lr=LR), name="without")
        self.train(m, 3)
        m.snapshot()
        values = m.state_dict()
        m.close()
        with self.assertRaisesRegex(RuntimeError, "job without keeps no averages.*leave out --ema"):
            self.exported("without", "--ema")
        self.cluster.ctl("job", "create", "with", "--from", "without/latest", "--set", "default.ema=0.5", "--yes")
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=0.5), name="with")
        average = m.state_dict("ema")
        for name, value in values.items():
            self.assertTrue(torch.equal(average[name], value), name)
        self.train(m, 1)
        average, values = m.state_dict("ema"), m.state_dict()
        for name, value in values.items():
            self.assertFalse(torch.equal(average[name], value), name)
        snapshot = self.cluster._folder / "snapshots" / "with" / m.snapshot()
        root = self.cluster.digest("with")
        self.train(m, 2)
        for options, expected in (((), values), (("--ema",), average)):
            for name, value in self.exported("with", *options).items():
                self.assertTrue(torch.equal(value, expected[name]), name)
        self.assertIn("ema 0.5", subprocess.run([BIN / "cairn", "--endpoint", self.cluster.endpoint, "job", "show",
                                                 "with"], capture_output=True, text=True, timeout=30).stdout)
        m.close()
        self.cluster.ctl("snapshot", "restore", "with", "latest", "--yes")
        self.assertEqual(self.cluster.digest("with"), root)
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=0.5), name="with")
        for name, value in m.state_dict("ema").items():
            self.assertTrue(torch.equal(value, average[name]), name)
        m = cairn.import_checkpoint(self.session, snapshot, net(), cairn.AdamW(lr=LR, ema=0.5), name="imported", rank=0,
                                    workers_min=1, timeout=20)
        self.addCleanup(m.close)
        for name, value in m.state_dict("ema").items():
            self.assertTrue(torch.equal(value, average[name]), name)

    def test_a_frozen_group_keeps_its_average(self):
        m = self.attach(net(), cairn.AdamW(lr=LR, ema=DECAY), name="frozen")
        self.train(m, 3)
        before = m.state_dict("ema")
        m.amend(freeze_tensors=["0.weight"])
        self.train(m, 2)
        after = m.state_dict("ema")
        self.assertTrue(torch.equal(after["0.weight"], before["0.weight"]))
        self.assertFalse(torch.equal(after["2.weight"], before["2.weight"]))


if __name__ == "__main__":
    main()
