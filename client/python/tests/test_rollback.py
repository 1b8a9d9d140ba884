"""A shard is killed and comes back empty: the job goes on from its newest periodic snapshot, in the same processes."""

import contextlib
import threading
import time
import unittest

from cluster import Cluster
from runner import main
import torched  # before torch: the file is skipped where there is none

import torch
from torch import nn

import cairn

STEPS = 14


def made() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class Sampler:
    """Batches in an order of its own; where it stands is the job's client state."""

    def __init__(self):
        self.at = 0

    def batch(self) -> torch.Tensor:
        self.at += 1
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(1000 - self.at))

    def state(self) -> bytes:
        return str(self.at).encode()

    def rewind(self, state: bytes) -> None:
        self.at = int(state or b"0")


class Case(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(2)
        self.addCleanup(self.cluster.stop)

    def attach(self, name: str, **options):
        session = cairn.connect(self.cluster.endpoint)
        self.addCleanup(session.close)
        return session.attach(made(), cairn.AdamW(lr=1e-2), name=name, timeout=20, client_state_max=16, **options)

    def await_snapshot(self, name: str, step: int) -> None:
        """It is written while training goes on, and a step takes less than a millisecond here. It is listed a moment
        before the next one may begin."""
        deadline = time.monotonic() + 20
        while step not in [s["step"] for s in self.cluster.ctl("snapshot", "list", name)["snapshots"]] or \
                self.cluster.ctl("job", "show", name)["saving"]:
            self.assertLess(time.monotonic(), deadline)

    def train(self, m, lose_at=None):
        """The steps that RolledBack told."""
        sampler, told = Sampler(), []
        while m.version.step < STEPS:
            try:
                x = sampler.batch()
                m.model(x).square().mean().backward()
                if m.begin().step == lose_at and not told:
                    self.await_snapshot(m.name, 5)
                    self.cluster.lose_shard(2)
                m.step(client_state=sampler.state())
            except cairn.EpochChanged:  # the shard was away: the same batch again
                sampler.at -= 1
            except cairn.RolledBack as rolled:
                told.append(rolled.step)
                self.assertEqual(m.version.step, rolled.step)
                sampler.rewind(m.client_state())
        return told

    def test_the_bits_are_those_of_a_run_that_lost_nothing(self):
        calm = self.attach("calm")
        self.train(calm)
        expected = calm.state_dict()
        calm.close()
        self.cluster.ctl("job", "drop", "calm", "--yes")
        for stage in (2, 3):
            m = self.attach(f"rough{stage}", stage=stage, snapshot_every=5, snapshot_keep=1,
                            on_shard_loss="restore-latest")
            self.assertEqual(self.train(m, lose_at=8), [5])
            for name, value in m.state_dict().items():
                self.assertTrue(torch.equal(value, expected[name]), name)
            self.assertEqual(m.version.generation, 2)
            m.close()
            self.await_snapshot(m.name, 10)
            self.cluster.ctl("job", "drop", m.name, "--yes")

    def test_a_lost_job_says_how_it_is_brought_back(self):
        m = self.attach("gone")
        self.step(m)
        m.snapshot()
        self.cluster.lose_shard(2)
        with self.assertRaisesRegex(cairn.JobLost, 'attach again with resume="latest"'):
            for _ in range(100):
                with contextlib.suppress(cairn.EpochChanged):
                    self.step(m)
        m.close()
        m = self.attach("gone", resume="latest")
        self.assertEqual(m.version.step, 1)
        self.step(m)

    def test_an_operators_restore_rolls_back_too_and_a_policy_is_amended(self):
        m = self.attach("asked", snapshot_every=2)
        with self.assertRaisesRegex(cairn.Mismatch, r"m\.amend\(snapshot_every=4, snapshot_keep=0\)"):
            self.attach("asked", snapshot_every=4, rank=1)
        for _ in range(5):
            m.model(torch.ones(2, 4)).sum().backward()
            if m.step().step % 2 == 0:
                self.await_snapshot("asked", m.version.step)
        m.snapshot()
        listed = self.cluster.ctl("snapshot", "list", "asked")["snapshots"]
        self.assertEqual([(s["step"], s["periodic"]) for s in listed], [(5, False), (4, True), (2, True)])
        with self.assertRaisesRegex(cairn.Invalid, "snapshot_keep without snapshot_every"):
            m.amend(snapshot_keep=3)
        m.amend(snapshot_every=3, snapshot_keep=3, on_shard_loss="restore-latest", shard_loss_wait=60,
                on_worker_loss="wait", worker_loss_wait=7, snapshot_keep_every=9, snapshot_scrub_every_s=3600)
        spec = self.cluster.ctl("job", "show", "asked")["spec"]
        self.assertEqual([spec[key] for key in ("snapshot_every", "snapshot_keep", "on_shard_loss",
                                                "shard_loss_wait_s", "on_worker_loss", "worker_loss_wait_s",
                                                "snapshot_keep_every", "snapshot_scrub_every_s")],
                         [3, 3, "restore-latest", 60, "wait", 7, 9, 3600])
        with m.pause("evaluating"):  # its end says nothing of it
            self.cluster.ctl("snapshot", "restore", "asked", listed[2]["id"], "--yes")
        with self.assertRaises(cairn.RolledBack) as caught:
            m.begin()
        self.assertEqual((caught.exception.step, m.version), (2, (2, 2)))
        m.model(torch.ones(2, 4)).sum().backward()
        self.assertEqual(m.step().step, 3)
        with self.assertRaises(cairn.RolledBack) as caught:
            with m.pause("evaluating"):
                self.cluster.ctl("snapshot", "restore", "asked", listed[2]["id"], "--yes")
                m.snapshot()
        self.assertEqual((caught.exception.step, m.version), (2, (3, 2)))
        self.cluster.ctl("snapshot", "restore", "asked", listed[2]["id"], "--yes")
        self.cluster.ctl("job", "drop", "asked", "--yes")
        with self.assertRaises(cairn.NotFound):  # and begins none anew
            m.begin()

    def test_it_goes_out_of_whatever_comes_next_with_its_step(self):
        """Never as EpochChanged, and once."""
        x = torch.ones(2, 4)
        for number, options in enumerate((dict(stage=2), dict(stage=3), dict(stage=3, mapped_parameters=False))):
            m = self.attach(f"next{number}", **options)
            m.model(x).sum().backward()
            m.step()
            snapshot = m.snapshot()

            def restore():
                self.cluster.ctl("snapshot", "restore", m.name, snapshot, "--yes")

            def before_forward():
                m.begin(), restore()
                m.model(x).sum().backward()
                m.step()

            def before_backward():
                loss = m.model(x).sum()
                restore()
                loss.backward()
                m.step()

            def before_an_evaluation():
                restore()
                with torch.no_grad():
                    m.model.eval()(x)
                m.step()

            for step in (before_forward, before_backward, before_an_evaluation, lambda: (restore(), m.state_dict())):
                with self.assertRaises(cairn.RolledBack) as caught:
                    step()
                self.assertEqual(caught.exception.step, 1)
                m.model.train()(x).sum().backward()
                self.assertEqual(m.step().step, 2)
            m.close()
            self.cluster.ctl("job", "drop", m.name, "--yes")

    def test_those_who_go_on_are_not_waited_for_as_a_launch(self):
        """start_wait is for those who were launched together; of these one had left before."""
        three = [self.attach("left", rank=rank, workers=(1, 3), start_wait=600) for rank in range(3)]

        def step(models):
            threads = [threading.Thread(target=self.step, args=(m,)) for m in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)

        step(three)
        three.pop().close()
        step(three)
        snapshot = three[0].job.snapshot()
        self.cluster.ctl("snapshot", "restore", "left", snapshot, "--yes")
        for m in three:
            with self.assertRaises(cairn.RolledBack):
                m.begin()
        step(three)
        self.assertEqual([m.version for m in three], [(2, 3)] * 2)

    def step(self, m):
        m.model(torch.ones(2, 4)).sum().backward()
        m.step()


if __name__ == "__main__":
    main()
