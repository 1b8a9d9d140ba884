"""Two processes train through a cluster what torch.optim.AdamW trains in one: the same parameters, in every stage,
whatever the number of shards, whoever is killed."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from cluster import Cluster
from runner import main
import torched  # before torch: the file is skipped where there is none

import torch
import cairn
import gpt

LR, STEPS, WORLD = 1e-3, 100, 2


def reference(steps: int, micros: int = 1, summed_by_rank: bool = False, kind=torch.optim.AdamW, lr=LR) -> dict:
    """One process: the mean gradient of both ranks' batches, added up in the order of the stage. Stages 0 and 1 add up
    what is of one rank first, 2 and 3 what is of one micro-batch."""
    model = gpt.gpt()
    optimizer = kind(model.parameters(), lr=lr, weight_decay=0.1 if kind is torch.optim.AdamW else 0)

    def gradient(step: int, batches: list) -> list:
        total = [torch.zeros_like(p) for p in model.parameters()]
        for rank, micro in batches:
            optimizer.zero_grad(set_to_none=True)
            gpt.loss_of(model, gpt.batch(step, rank, micro)).backward()
            total = [sum_ + p.grad for sum_, p in zip(total, model.parameters())]
        return total

    for step in range(steps):
        if summed_by_rank:
            ranks = [gradient(step, [(rank, micro) for micro in range(micros)]) for rank in range(WORLD)]
            total = [sum(parts) for parts in zip(*ranks)]
        else:
            total = gradient(step, [(rank, micro) for micro in range(micros) for rank in range(WORLD)])
        for sum_, parameter in zip(total, model.parameters()):
            parameter.grad = sum_ * (1 / (WORLD * micros))
        optimizer.step()
    return model.state_dict()


def worst(state: dict, wanted: dict, other: dict = None, *, steps: int) -> float:
    """The largest difference, of the bound 1e-6 * (|p| + lr * steps); `other`: and of three times what torch itself is
    off where it adds up in another order."""
    def bound(name, p):
        own = 0 if other is None else 3 * (other[name].double() - p.double()).abs()
        return 1e-6 * (p.double().abs() + LR * steps) + own
    return max(float(((state[name].double() - p.double()).abs() / bound(name, p)).max())
               for name, p in wanted.items() if name != "mask")


class Rank:
    """A trainer process."""

    def __init__(self, cluster: Cluster, folder: Path, rank: int, jobs: list):
        self.out = folder / f"{jobs[0]['name']}-{rank}"
        options = {"endpoint": cluster.endpoint, "rank": rank, "world": WORLD, "out": str(self.out), "jobs": jobs}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", Path(__file__).with_name("trainer.py"), json.dumps(options)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def status(self) -> int:
        try:
            self.said, _ = self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.said, _ = self.process.communicate()
        return self.process.returncode

    def seen(self) -> dict:
        if self.status() != 0:
            raise AssertionError(f"a trainer ended with {self.process.returncode}: {self.said[-3000:]}")
        return torch.load(self.out, weights_only=False)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)

    def cluster(self, shards: int) -> Cluster:
        cluster = Cluster(shards)
        self.addCleanup(cluster.stop)
        return cluster


class Processes(Case):
    def test_every_stage_gives_what_one_process_gives(self):
        cluster, wanted = self.cluster(2), reference(STEPS)
        jobs = [{"name": f"stage{stage}", "steps": STEPS, "attach": {"stage": stage}} for stage in (0, 1, 2, 3)]
        first, second = [rank.seen() for rank in [Rank(cluster, self.folder, rank, jobs) for rank in range(WORLD)]]
        for stage in (0, 1, 2, 3):
            state = first[f"stage{stage}"]["state"]
            share = worst(state, wanted, steps=STEPS)
            print(f"note: stage {stage}, {STEPS} steps of 2 ranks against torch.optim.AdamW in one process: "
                  f"{share:.3f} of the bound", flush=True)
            self.assertLessEqual(share, 1.0)
            for name, tensor in state.items():
                self.assertTrue(torch.equal(tensor, second[f"stage{stage}"]["state"][name]), name)
        self.assertEqual(len({cluster.digest(job["name"]) for job in jobs}), 1, "one backward pass: the same bits")
        memory = first["stage3"]["memory"]
        self.assertLessEqual(memory["peak_bytes"], memory["window"] * memory["largest_unit_bytes"])
        print(f"note: stage 3: peak {memory['peak_bytes']} bytes of gathered parameters, {memory['window']} units of "
              f"at most {memory['largest_unit_bytes']}")

    def test_a_killed_rank_is_missed_and_goes_on_where_the_servers_are(self):
        cluster, steps = self.cluster(2), 30
        job = {"name": "killed", "steps": steps}
        survivor = Rank(cluster, self.folder, 0, [job])
        self.assertEqual(Rank(cluster, self.folder, 1, [{**job, "die_at": 10}]).status(), -9)
        back = Rank(cluster, self.folder, 1, [job]).seen()["killed"]
        seen = survivor.seen()["killed"]
        self.assertEqual(back["began"], 10)
        self.assertLessEqual(worst(seen["state"], reference(steps), steps=steps), 1.0)


class Threads(Case):
    """Both ranks in this process, each with a session and a thread of its own."""

    def train(self, cluster: Cluster, name: str, steps: int, micros: int = 1, beside=None, optim=None,
              **options) -> dict:
        states, failures = [None] * WORLD, []

        def rank(number: int) -> None:
            try:
                with cairn.connect(cluster.endpoint) as session:
                    model = models[number]
                    m = session.attach(model, optim or cairn.AdamW(lr=LR, weight_decay=0.1), name=name, rank=number,
                                       workers_min=WORLD, micro_batches=micros, timeout=60, **options)
                    for step in range(steps):
                        for micro in range(micros):
                            gpt.loss_of(model, gpt.batch(step, m.begin().rank, micro)).backward()
                        m.step()
                    states[number] = m.state_dict()
            except BaseException as failure:  # noqa: BLE001 - shown below
                failures.append(failure)

        models = [gpt.gpt(seed=1 + number) for number in range(WORLD)]  # the seed is of the whole process
        threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(WORLD)]
        for thread in threads:
            thread.start()
        if beside is not None:
            beside()
        for thread in threads:
            thread.join(120)
        self.assertEqual(failures, [])
        self.assertFalse(any(thread.is_alive() for thread in threads))
        return states[0]

    def test_the_content_root_is_that_of_any_number_of_shards(self):
        roots = {}
        for shards in (1, 2, 3, 5):
            cluster = self.cluster(shards)
            self.train(cluster, "root", 5, stage=3)
            roots[shards] = cluster.digest("root")
            cluster.stop()
        self.assertEqual(len(set(roots.values())), 1, roots)

    def test_micro_batches_agree_between_stages_and_with_one_process(self):
        """Of one element of blocks.0.mlp.2.weight six gradients of 3e-2 cancel to 5e-5, twice, and AdamW moves it by
        what rounding leaves of them: torch alone, adding up in the other order, is 1.3 bounds off there, and torch
        2.15's AdamW 2.8 from the same in double. So the bound has that; the order is seen to the bit by SGD."""
        cluster, roots = self.cluster(2), {}
        orders = [reference(10, 3, summed_by_rank=by_rank) for by_rank in (True, False)]
        for stage in (0, 1, 2, 3):
            state = self.train(cluster, f"micro{stage}", 10, micros=3, stage=stage)
            self.assertLessEqual(worst(state, *(orders if stage < 2 else orders[::-1]), steps=10), 1.0)
            roots[stage] = cluster.digest(f"micro{stage}")
        self.assertEqual(roots[0], roots[1])
        self.assertEqual(roots[2], roots[3])

    def test_micro_batches_are_added_up_in_the_order_of_the_stage(self):
        cluster = self.cluster(2)
        wanted = [reference(1, 3, by_rank, torch.optim.SGD, 1.0) for by_rank in (True, False)]
        self.assertFalse(all(torch.equal(wanted[0][name], wanted[1][name]) for name in wanted[0]))
        for stage in (1, 2):
            state = self.train(cluster, f"order{stage}", 1, micros=3, stage=stage, optim=cairn.SGD(lr=1.0))
            for name, value in wanted[stage - 1].items():
                if name != "mask":
                    self.assertTrue(torch.equal(state[name], value), f"stage {stage}: {name}")

    def test_a_reader_evaluates_versions_beside_the_training(self):
        cluster, losses = self.cluster(2), []
        model = gpt.gpt(seed=7).eval()

        def evaluate():
            deadline = time.monotonic() + 20
            while True:  # until the job has its initial state
                try:
                    reader = cairn.reader("read", cluster.endpoint, timeout=20)
                    reader.wait()
                    break
                except (cairn.NotFound, cairn.NotReady, cairn.Timeout):
                    self.assertLess(time.monotonic(), deadline)
            with reader, torch.no_grad():
                while True:
                    version = reader.load_into(model)
                    losses.append((version.step, gpt.loss_of(model, gpt.batch(0, 0)).item()))
                    if version.step == 40:
                        break
                    reader.wait(newer_than=version)
                other = gpt.GPT(layers=1)
                with self.assertRaisesRegex(cairn.Mismatch, "blocks.1.mlp.0.bias: not in the model"):
                    reader.load_into(other)

        state = self.train(cluster, "read", 40, beside=evaluate)
        self.assertEqual(losses[-1][0], 40)
        self.assertLess(losses[-1][1], losses[0][1] + 0.5)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, state[name]), name)


if __name__ == "__main__":
    main()
