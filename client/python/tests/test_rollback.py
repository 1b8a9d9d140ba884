"""A shard is killed and comes back empty: the job goes on from its newest periodic snapshot, in the same processes."""

import time
import unittest

from cluster import Cluster
from runner import main, skip

try:
    import torch
except ImportError:
    skip("torch is not installed for this Python (Debian: python3-torch)")

from torch import nn

import cairn

torch.set_num_threads(1)
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
        """It is written while training goes on, and a step takes less than a millisecond here."""
        deadline = time.monotonic() + 20
        while step not in [s["step"] for s in self.cluster.ctl("snapshot", "list", name)["snapshots"]]:
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
                if rolled.step is None:  # out of a pass: begin() opens the job again
                    sampler.at -= 1
                    continue
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

    def test_an_operators_restore_rolls_back_too_and_a_policy_is_amended(self):
        m = self.attach("asked", snapshot_every=2)
        with self.assertRaisesRegex(cairn.Mismatch, r"m\.amend\(snapshot_every=4\)"):
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
        m.amend(snapshot_every=3, snapshot_keep=3, on_shard_loss="restore-latest", shard_loss_wait=60)
        spec = self.cluster.ctl("job", "show", "asked")["spec"]
        self.assertEqual([spec[key] for key in ("snapshot_every", "snapshot_keep", "on_shard_loss",
                                                "shard_loss_wait_s")], [3, 3, "restore-latest", 60])
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


if __name__ == "__main__":
    main()
