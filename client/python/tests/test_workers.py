"""How many workers a job has: attach's workers, world and start_wait, and what amends them."""

import threading

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn


class Case(ClusterCase):
    def attach(self, rank, **options):
        torch.manual_seed(1)
        return super().attach(nn.Linear(2, 2), cairn.SGD(lr=0.1), self.connect(), **{"workers_min": None, **options},
                              rank=rank)

    def step(self, m):
        m.model(torch.ones(1, 2)).sum().backward()
        return m.step()

    def both(self, models):
        """A step of each, at the same time; the worlds of their rounds."""
        worlds = {}

        def one(m):
            worlds[m] = m.begin().world
            self.step(m)

        threads = [threading.Thread(target=one, args=(m,)) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return [worlds.get(m) for m in models]


class Workers(Case):
    def test_who_is_left_of_two_goes_on_when_one_is_enough(self):
        first, second = self.attach(0, workers=2), self.attach(1, workers=2)
        self.assertEqual(self.both([first, second]), [2, 2])
        second.close()
        first.timeout = 0.3
        with self.assertRaisesRegex(cairn.Timeout, "waits for 1 more worker .1 of 2 attached.: start it, or"):
            first.begin()
        first.timeout = 20
        name = self.name
        self.assertEqual(self.cluster.ctl("job", "amend", name, "--workers", "1:4")["revision"], 1)
        self.assertEqual(first.begin().world, 1)
        self.step(first)
        for workers in (2, 3, (1, 4)):  # as it was, within the bounds, as it is
            self.attach(1, workers=workers).close()
        with self.assertRaisesRegex(cairn.Mismatch, r"attach as it was, then m.amend\(workers=\(1, 8\)\), or `cairn "
                                    rf"job amend {name} --workers 1:8`"):
            self.attach(1, workers=(1, 8))
        first.amend(workers=2)
        shown = self.cluster.ctl("job", "show", name)
        self.assertEqual((shown["workers_min"], shown["workers_max"]), (2, 2))

    def test_one_too_many_is_told_so(self):
        self.attach(0, workers=(1, 1))
        with self.assertRaisesRegex(cairn.Timeout, "has 1 workers, and its workers_max is 1"):
            self.attach(1, workers=(1, 1), timeout=0.5)

    def test_the_first_to_arrive_does_not_train_alone(self):
        first = self.attach(0, workers=(1, 2))
        first.timeout = 0.3
        with self.assertRaisesRegex(cairn.Timeout, "waits for 1 more worker of this launch .1 of 2 attached"):
            first.begin()
        first.timeout = 20
        self.assertEqual(self.both([first, self.attach(1, workers=(1, 2))]), [2, 2])

    def test_but_not_for_ever(self):
        self.assertEqual(self.attach(0, workers=(1, 2), start_wait=0.2).begin().world, 1)

    def test_a_rate_is_amended_by_the_command_line(self):
        m = self.attach(0, workers=1)
        name = self.name
        self.step(m)
        self.assertEqual(self.cluster.ctl("job", "amend", name, "--lr", "0.5", "--clip-norm", "2")["revision"], 1)
        self.assertEqual(self.step(m).lr, 0.5)
        spec = self.cluster.ctl("job", "show", name)
        self.assertEqual((spec["groups"][0]["lr"], spec["spec"]["clip_norm"]), (0.5, 2.0))

    def test_what_makes_no_sense_is_refused(self):
        for wrong in (dict(workers=(3, 2)), dict(workers=0), dict(workers="2"), dict(workers=1, workers_min=1),
                      dict(workers=1, world=0), dict(workers=1, start_wait="soon")):
            with self.assertRaises(cairn.Invalid, msg=str(wrong)):
                self.attach(0, **wrong)


if __name__ == "__main__":
    main()
