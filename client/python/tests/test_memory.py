"""What a stage 3 trainer has in memory, by the kernel's account: a window of its parameters and of their gradients."""

import ctypes
import re
import threading
import time
import unittest

from cluster import Cluster
from runner import main
import torched  # before torch: the file is skipped where there is none

import torch
from torch import nn

import cairn


ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed is given back, not kept in a heap with holes
LAYERS, WIDTH = 10, 1024
LAYER = 4 * WIDTH * WIDTH
MODEL = LAYERS * LAYER


def resident() -> int:
    """Bytes of this process that it can write to: what it reads of the shards' memory is theirs."""
    total, is_own = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            mapping = re.match(r"[0-9a-f]+-[0-9a-f]+ (\S{4}) ", line)
            if mapping:
                is_own = "w" in mapping[1]
            elif is_own and line.startswith("Rss:"):
                total += 1024 * int(line.split()[1])
    return total


def most_resident(call) -> int:
    """What all of this process takes at most during the call, beyond what it takes before."""
    def status(field: str) -> int:
        with open("/proc/self/status") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the high-water mark begins anew
    before = status("VmRSS:")
    call()
    return status("VmHWM:") - before


class Layers(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(LAYERS))
        self.at_backward = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
            if self.at_backward is not None:
                x.register_hook(lambda _: self.at_backward())
        return x


def loss_of(model) -> torch.Tensor:
    return model(torch.ones(1, WIDTH)).square().sum()


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """What torch loads with its first pass and its first layer on meta is not a trainer's: 40 MiB in 2.6."""
        nn.Linear(8, 8, device="meta")
        nn.Linear(8, 8)(torch.ones(1, 8)).tanh().square().sum().backward()

    def setUp(self):
        self.cluster = Cluster(shards=2, both_ways=True)
        self.addCleanup(self.cluster.stop)

    def attach(self, model, fabric="auto", **options):
        session = cairn.Session(self.cluster.endpoint, fabric=fabric)
        self.addCleanup(session.close)
        m = session.attach(model, cairn.SGD(lr=0.1), timeout=30, stage=3, name="memory", chunk_leaves=16,
                           **options)
        self.addCleanup(m.close)
        return m

    def drain(self, m):
        """Until the pushes that are under way are over."""
        deadline = time.monotonic() + 20
        while m._gradients._pushed and time.monotonic() < deadline:
            m.memory()
        self.assertEqual((len(m._gradients._pushed), m.memory().gradient_overflow_bytes), (0, 0))

    def test_a_gradient_is_there_until_it_is_pushed(self):
        """Pushes keep up with the backward pass, over shared memory and as to another host."""
        for fabric in ("auto", "sealed"):
            with self.subTest(fabric=fabric):
                before, model, most = resident(), Layers(), []
                m = self.attach(model, fabric, rank=0, workers_min=1, mapped_parameters=False)
                model.at_backward = lambda: self.drain(m) or most.append(resident())
                for _ in range(2):
                    loss_of(model).backward()
                    m.step()
                memory, taken = m.memory(), max(most) - before
                print(f"note: stage 3, a model of {MODEL >> 20} MiB in layers of {LAYER >> 20}, {fabric}: a step takes "
                      f"{taken / 2**20:.0f} MiB at most, gradients {memory.gradient_peak_bytes >> 20}")
                self.assertEqual(len(most), 2 * LAYERS)
                self.assertLess(taken, 7 * LAYER)  # two layers and their gradients, one that autograd makes
                self.assertEqual(memory.gradient_bytes, 2 * LAYER if fabric == "auto" else 0)
                self.assertLessEqual(memory.gradient_peak_bytes, 3 * LAYER)
                m.close()

    def test_a_model_on_meta_is_never_here_as_a_whole(self):
        """From its building to a pass through it; the shards make its values, then it is read by another."""
        made = []

        def build(**options):
            with torch.no_grad():
                made.append(self.attach(Layers("meta"), "sealed", mapped_gradients=False, **options))
                loss_of(made[-1].model)

        taken = most_resident(lambda: build(rank=0, workers_min=1, init={"*": cairn.Init("normal", 0.0, 0.02)}))
        print(f"note: stage 3, a model of {MODEL >> 20} MiB on meta in layers of {LAYER >> 20}: to build, attach and "
              f"evaluate it takes {taken >> 20} MiB at most")
        self.assertLess(taken, 7 * LAYER)

    def test_a_backward_pass_waits_for_no_other_rank(self):
        """Rank 1's gradients are folded behind those of rank 0, which has not begun: they take memory, and it is
        counted until they are gone."""
        first = self.attach(Layers(), rank=0, workers_min=2)
        second = self.attach(Layers(), rank=1, workers_min=2)
        began = time.monotonic()
        loss_of(second.model).backward()
        memory = second.memory()
        print(f"note: beside a rank that pushes nothing a backward pass takes {time.monotonic() - began:.1f} s and "
              f"{(memory.gradient_bytes + memory.gradient_overflow_bytes) >> 20} MiB of a model of {MODEL >> 20}")
        self.assertEqual(memory.gradient_bytes, 2 * LAYER)
        self.assertGreater(memory.gradient_overflow_bytes, 0)
        self.assertLessEqual(memory.gradient_peak_bytes, MODEL)
        loss_of(first.model).backward()
        other = threading.Thread(target=first.step)
        other.start()
        self.assertTrue(second.step().applied)
        other.join(30)
        self.drain(second)
        self.assertEqual(second.memory().gradient_peak_bytes, memory.gradient_peak_bytes)


if __name__ == "__main__":
    main()
