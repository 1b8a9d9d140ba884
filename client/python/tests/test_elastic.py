"""global_batch with torch: the same bits from one worker, and from two of which one leaves, with dropout by the seed of
each micro-batch and numbers of rows as weights; and what a worker is told that does not do its part."""

import threading

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn

BATCH, STEPS = 5, 6


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def loss_of(model: nn.Module, here: cairn.Round, k: int):
    """The sum over its rows, with their number."""
    draw = torch.Generator().manual_seed(here.micro_seed(k))
    rows = 2 + k % 3
    kept = torch.rand(rows, 3, generator=draw) > 0.25
    return (model(torch.randn(rows, 8, generator=draw)) * kept).square().sum(), rows


class Worker(threading.Thread):
    """Trains until the job is at that step, and leaves."""

    def __init__(self, case: "Elastic", name: str, rank: int, until: int, world: int = 1, **options):
        super().__init__(daemon=True)
        self.until, self.model, self.failure, self.most = until, net(), None, 0
        self.idles = threading.Event()  # it was surplus
        self.follower = None  # a worker that is to be surplus in the round of step 1, at the latest
        optim = cairn.AdamW(lr=1e-2, schedule=cairn.linear(STEPS, warmup_steps=2))
        own = dict(global_batch=BATCH, seed=9, clip_norm=1.0, loss_scale=256.0)
        self.m = case.connect().attach(self.model, optim, name=name, rank=rank, workers_min=1, world=world, timeout=30,
                                       **{**own, **options})

    def run(self) -> None:
        try:
            self.train()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.m.close()

    def train(self) -> None:
        m = self.m
        while m.version.step < self.until:
            try:
                here, count = m.begin(), 0
                if here.step >= self.until:
                    return  # others went on without this one, which is surplus
                if not here.micro_batches:
                    self.idles.set()
                if here.step == 1 and self.follower is not None:
                    self.follower.idles.wait(30)
                for k in here.micro_batches:
                    loss, rows = loss_of(self.model, here, k)
                    m.scale(loss).backward()
                    count += rows
                m.step(weight=count)
            except cairn.EpochChanged:
                continue
            self.most = max(self.most, here.world)


class Elastic(ClusterCase):
    shards = 2

    def work(self, *workers: Worker) -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            self.assertFalse(worker.is_alive())
            if worker.failure is not None:
                raise worker.failure

    def test_any_workers_make_the_bits_of_one(self):
        self.work(Worker(self, "one", 0, STEPS))
        both = [Worker(self, "two", rank, STEPS if rank == 0 else 3, world=2) for rank in range(2)]
        self.work(*both)  # the second one leaves in the middle
        self.assertEqual(both[0].most, 2)
        self.assertEqual(self.cluster.digest("one"), self.cluster.digest("two"))

    def test_a_surplus_worker_follows(self):
        both = [Worker(self, "surplus", rank, STEPS, world=2, global_batch=1) for rank in range(2)]
        both[0].follower = both[1]
        with self.assertLogs("cairn", "WARNING") as logs:
            self.work(*both)
        said = [line for line in logs.output if "this one idles" in line]
        self.assertEqual(len(said), 1, logs.output)
        self.work(Worker(self, "alone", 0, STEPS, global_batch=1))
        self.assertFalse(both[0].idles.is_set())
        self.assertEqual(both[1].m.version.step, STEPS)
        self.assertEqual(self.cluster.digest("surplus"), self.cluster.digest("alone"))

    def test_every_step_has_all_of_them(self):
        model = net()
        m = self.attach(model, cairn.SGD(lr=0.1), global_batch=2, seed=1)
        here = m.begin()
        self.assertEqual((list(here.micro_batches), here.global_batch, here.seed), ([0, 1], 2, 1))
        self.assertEqual(m.job.describe().global_batch, 2)
        loss_of(model, here, 0)[0].backward()
        with self.assertRaisesRegex(cairn.Invalid, "1 of the 2 micro-batches of this worker had a backward pass"):
            m.step()
        m.micro_end()  # the second one has no gradients
        self.assertEqual(m.step().step, 1)
        for k in m.begin().micro_batches:
            loss_of(model, here, k)[0].backward()
        with self.assertRaisesRegex(cairn.Invalid, "2 of its 2 micro-batches are this worker's"):
            loss_of(model, here, 0)[0].backward()

    def test_micro_batches_without_a_token_count_nothing(self):
        model = net()
        m = self.attach(model, cairn.SGD(lr=0.1), global_batch=2)
        for k in m.begin().micro_batches:
            (loss_of(model, m.begin(), k)[0] * 0).backward()
        self.assertFalse(m.step(weight=0).applied)  # as where another worker had them, and some had tokens

    def test_what_does_not_go_together_is_refused(self):
        for words, options in (("micro_batches 2", dict(micro_batches=2)), ("stage 2 or 3", dict(stage=1)),
                               ("reduce_groups", dict(reduce_groups="host")), ("seed is -1", dict(seed=-1))):
            with self.subTest(words), self.assertRaisesRegex(cairn.Invalid, words):
                self.session.attach(net(), cairn.SGD(lr=0.1), name=self.name, rank=0, workers_min=1, timeout=20,
                                    **{**dict(global_batch=4), **options})


if __name__ == "__main__":
    main()
