"""A torch scheduler that drives the servers' learning rate: by applied steps, through attaches and restores."""

import random
import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.optim import lr_scheduler

import cairn

warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step")


def warm_up(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))


def recursive(optimizer):
    """What it gives next depends on what it gave before, to the bit."""
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 7)], milestones=[3])


def net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def torchs_own(make, steps: int):
    """The learning rates of that many steps, by torch alone."""
    optimizer = torch.optim.AdamW(net().parameters(), lr=0.01)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step(), scheduler.step()
    return seen


class Driven(ClusterCase):
    shards = 2

    def attach(self, make, lr=0.01, name=None, **options):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        scheduler = make(optimizer)
        m = super().attach(model, cairn.from_torch(optimizer, schedule=scheduler), name=name or self.name, **options)
        return m, optimizer, scheduler

    def step(self, m, scale=1.0):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(m.begin().index))
        (m.model(x).square().mean() * scale).backward()
        return m.step()

    def test_one_that_draws_lots_after_the_steps_that_are_probed_is_refused_at_that_step(self):
        draws = random.Random(1)
        m, *_ = self.attach(lambda optimizer: lr_scheduler.LambdaLR(
            optimizer, lambda step: 1.0 if step < 15 else draws.random()))
        for step in range(14):
            self.assertEqual(self.step(m).lr, 0.01)
        with self.assertRaisesRegex(cairn.Unsupported, r"step 15 the LambdaLR gives \[0.0013\d*\], and \[0.0084\d*\] "
                                    r"when it is set back: it keeps state outside itself, or draws lots.*driven"):
            self.step(m)
        counted = []
        m, *_ = self.attach(lambda optimizer: lr_scheduler.LambdaLR(
            optimizer, lambda step: 1.0 if step < 15 else 1 / len(counted + [counted.append(0)])), name="counts")
        for step in range(14):
            self.step(m)
        with self.assertRaisesRegex(cairn.Unsupported, "keeps state outside itself"):
            self.step(m)

    def test_the_servers_go_by_the_scheduler_and_m_step_moves_it_on(self):
        for make in (warm_up, recursive):
            with self.subTest(make.__name__):
                m, optimizer, _ = self.attach(make, name=make.__name__)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    given = [self.step(m).lr for _ in range(9)]
                self.assertEqual(given, torchs_own(make, 9))  # to the bit
                self.assertEqual(optimizer.param_groups[0]["lr"], torchs_own(make, 10)[-1])

    def test_a_step_of_the_trainers_own_is_undone_and_warned_of_once(self):
        m, optimizer, scheduler = self.attach(recursive)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            given = []
            for _ in range(8):
                given.append(self.step(m).lr)
                scheduler.step()
        self.assertEqual(given, torchs_own(recursive, 8))
        told = [str(one.message) for one in seen if "beside m.step()" in str(one.message)]
        self.assertEqual(len(told), 1, told)

    def test_a_skipped_round_does_not_move_it(self):
        m, _, _ = self.attach(warm_up)
        self.assertEqual([self.step(m).lr, self.step(m).lr], [0.0, 0.0025])
        skipped = self.step(m, scale=float("nan"))
        self.assertEqual((skipped.applied, skipped.lr), (False, 0.005))
        self.assertEqual(self.step(m).lr, 0.005)

    def test_an_attach_and_a_restore_set_it_to_the_jobs_step(self):
        quiet, _, _ = self.attach(recursive, name="quiet")
        for _ in range(8):
            self.step(quiet)
        m, _, _ = self.attach(recursive, name="tried")
        for _ in range(5):
            self.step(m)
        m.close()
        m, optimizer, _ = self.attach(recursive, name="tried", lr=0.01)
        self.assertEqual(optimizer.param_groups[0]["lr"], torchs_own(recursive, 6)[-1])
        m.snapshot()
        for _ in range(3):
            self.step(m)
        self.cluster.ctl("snapshot", "restore", "tried", "latest", "--yes")
        m.close()
        m, _, _ = self.attach(recursive, name="tried")
        self.assertEqual([self.step(m).lr for _ in range(3)], torchs_own(recursive, 8)[5:])
        self.assertEqual(self.cluster.digest("tried"), self.cluster.digest("quiet"))

    def test_another_lr_to_begin_with_is_no_mismatch_and_another_kind_is(self):
        m, _, _ = self.attach(warm_up)
        self.step(m)
        with self.assertRaisesRegex(cairn.Invalid, "group 'default' is driven: its lr comes with the commits"):
            m.amend({"default": dict(lr=1.0)})
        m.amend({"default": dict(weight_decay=0.5)})
        m.close()
        m, _, _ = self.attach(warm_up, lr=0.5)
        self.assertEqual(self.step(m).lr, 0.125)
        m.close()
        with self.assertRaisesRegex(cairn.Mismatch, "schedule constant here, driven on the servers") as caught:
            self.session.attach(net(), cairn.AdamW(lr=0.01), rank=0, workers_min=1, timeout=20, name=m.name)
        self.assertNotIn("m.amend", str(caught.exception))

    def test_what_would_be_another_run_is_refused(self):
        def given(make, **options):
            optimizer = torch.optim.SGD(net().parameters(), lr=0.1, momentum=0.9)
            return cairn.from_torch(optimizer, schedule=make(optimizer, **options))

        with self.assertRaisesRegex(cairn.Unsupported, "ReduceLROnPlateau goes by a metric"):
            given(lr_scheduler.ReduceLROnPlateau)
        with self.assertRaisesRegex(cairn.Invalid, "of another optimizer"):
            given(lambda _: warm_up(torch.optim.SGD(net().parameters(), lr=1.0)))
        optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
        late = warm_up(optimizer)
        optimizer.step(), late.step()
        with self.assertRaisesRegex(cairn.Invalid, "is at step 1 already: give it as it was made"):
            cairn.from_torch(optimizer, schedule=late)
        with self.assertRaisesRegex(cairn.Unsupported, "changes momentum too.* cycle_momentum=False"):
            given(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20)
        given(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20, cycle_momentum=False).driver.at(3)

    def test_a_trainer_of_its_own_gives_the_rates_by_group(self):
        optim = cairn.SGD(lr=0.5, groups={"2.*": dict(schedule=cairn.driven())})
        m = ClusterCase.attach(self, net(), optim, name="own")
        with self.assertRaisesRegex(cairn.Invalid, "group 2.* is driven, and has no learning rate yet"):
            self.step(m)
        for bad in (float("nan"), -1.0, float("inf")):
            with self.assertRaisesRegex(cairn.Invalid, "group 2.*: lr is"):
                m.job.group_lr("2.*", bad)
        with self.assertRaisesRegex(cairn.Refused, "group default is not driven"):
            m.job.group_lr("default", 1.0)
        m.job.group_lr("2.*", 0.25)
        m.resume()
        self.assertEqual(self.step(m).lr, 0.25)

    def test_a_scheduler_that_stays_at_0_is_warned_of_once(self):
        m, _, _ = self.attach(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.0))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(120):
                m.begin(), m.step()
        told = [str(one.message) for one in seen if "has not changed" in str(one.message)]
        self.assertEqual(len(told), 1, told)
        self.assertIn("look at its scheduler", told[0])


if __name__ == "__main__":
    main()
