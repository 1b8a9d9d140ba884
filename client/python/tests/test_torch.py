"""Two processes train through a cluster what torch.optim.AdamW trains in one: the same parameters, in every stage."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cluster import Cluster
from runner import main, skip

try:
    import torch
except ImportError:
    skip("torch is not installed for this Python (Debian: python3-torch)")

import gpt

LR, STEPS, WORLD = 1e-3, 100, 2
LOAD = {"weights_only": False}
torch.set_num_threads(1)


def reference(steps: int, micros: int = 1) -> dict:
    """One process: the mean gradient of both ranks' batches, added up in the servers' order."""
    model = gpt.gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    for step in range(steps):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for micro in range(micros):
            for rank in range(WORLD):
                optimizer.zero_grad(set_to_none=True)
                gpt.loss_of(model, gpt.batch(step, rank, micro)).backward()
                for sum_, parameter in zip(total, model.parameters()):
                    sum_ += parameter.grad
        for sum_, parameter in zip(total, model.parameters()):
            parameter.grad = sum_ / (WORLD * micros)
        optimizer.step()
    return model.state_dict()


def train(cluster: Cluster, job: str, folder: Path, **options) -> list:
    """Both ranks to their end; what they wrote."""
    processes = []
    for rank in range(WORLD):
        said = {"endpoint": cluster.endpoint, "job": job, "rank": rank, "world": WORLD, "steps": STEPS,
                "out": str(folder / f"{job}-{rank}"), **options}
        processes.append(subprocess.Popen([sys.executable, Path(__file__).with_name("trainer.py"), json.dumps(said)],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    failed = []
    for rank, process in enumerate(processes):
        try:
            out, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        if process.returncode != 0:
            failed.append(f"rank {rank}, status {process.returncode}: {out[-3000:]}")
    if failed:
        raise AssertionError("\n".join(failed))
    return [torch.load(folder / f"{job}-{rank}", **LOAD) for rank in range(WORLD)]


def worst(state: dict, wanted: dict, steps: int) -> float:
    """The largest difference, of the bound 1e-6 * (|p| + lr * steps)."""
    return max(float(((state[name].double() - p.double()).abs() / (1e-6 * (p.double().abs() + LR * steps))).max())
               for name, p in wanted.items() if name != "mask")


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.cluster = Cluster(shards=2)
        cls.addClassCleanup(cls.cluster.stop)
        cls.wanted = reference(STEPS)

    def test_every_stage_gives_what_one_process_gives(self):
        roots = set()
        for stage in (0, 1, 2, 3):
            with self.subTest(stage=stage):
                first, second = train(self.cluster, f"stage{stage}", self.folder, attach={"stage": stage})
                roots.add(self.cluster.digest(f"stage{stage}"))
                share = worst(first["state"], self.wanted, STEPS)
                print(f"note: stage {stage}, {STEPS} steps of 2 ranks against torch.optim.AdamW in one process: "
                      f"{share:.3f} of the bound", flush=True)
                self.assertLessEqual(share, 1.0)
                for name, tensor in first["state"].items():
                    self.assertTrue(torch.equal(tensor, second["state"][name]), name)
        self.assertEqual(len(roots), 1, "with one backward pass a step all stages have the same bits")


if __name__ == "__main__":
    main()
