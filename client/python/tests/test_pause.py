"""A worker that is at work on something else: the others wait, and say for whom."""

import threading
import time
from unittest import mock

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn
from cairn import _call

TIMEOUT, PAUSE = 2.0, 3.0


class Case(ClusterCase):
    def pair(self):
        made = []
        for rank in range(2):
            session = self.connect(name=f"trainer {rank}")
            torch.manual_seed(1)
            made.append(session.attach(nn.Linear(2, 2), cairn.SGD(lr=0.1), name=self.name, rank=rank,
                                       workers=2, timeout=20))
        for m in made:
            m.timeout = TIMEOUT
        return made

    def step(self, m):
        m.model(torch.ones(1, 2)).sum().backward()
        return m.step()

    def beside(self, call):
        seen = {}

        def run():
            try:
                seen["result"] = call()
            except Exception as failure:
                seen["result"] = failure

        thread = threading.Thread(target=run)
        thread.start()
        return lambda: (thread.join(20), seen.get("result"))[1]

    def test_the_others_wait_and_say_for_whom(self):
        first, second = self.pair()
        other = self.beside(lambda: self.step(second))
        self.step(first)
        self.assertEqual(other().step, 1)
        with self.assertLogs("cairn", "WARNING") as logs:
            other = self.beside(lambda: self.step(second))
            with first.pause("evaluating", at_most=60):
                time.sleep(PAUSE)  # that long it evaluates
                shown = self.cluster.ctl("job", "show", first.name)["awaited"]
            self.assertEqual(self.step(first).step, 2)
        self.assertEqual(other().step, 2)
        self.assertRegex(shown, "worker trainer 0 of rank 0, which is evaluating, for [56][0-9] s more at most")
        self.assertEqual(len(logs.output), 1)  # a line a minute
        self.assertIn("waits for worker trainer 0 of rank 0, which is evaluating", logs.output[0])

    def test_who_says_nothing_is_told_how_to(self):
        first, second = self.pair()
        other = self.beside(lambda: self.step(second))
        self.step(first), other()
        failed = self.beside(lambda: self.step(second))()
        self.assertIsInstance(failed, cairn.Timeout)
        self.assertRegex(str(failed), r"^cairn_commit timed out: waits for worker trainer 0 of rank 0 \(has not "
                         r"committed round \d+\); .*cairn_pause.*with m.pause\(\"evaluating\", at_most=600\)")
        first.close()
        with self.assertRaisesRegex(cairn.Timeout, "^cairn_round_begin timed out: waits for 1 more worker .1 of "
                                    "2 attached.: start it, "
                                    "or have the job take fewer .`cairn job amend JOB --workers MIN:MAX`.$"):
            while True:
                try:
                    second.begin()
                    second.step()
                except cairn.EpochChanged:  # the other one left
                    continue

    def test_who_waits_long_says_for_whom(self):
        first, second = self.pair()
        first.timeout = second.timeout = 4
        other = self.beside(lambda: self.step(second))
        self.step(first), other()
        with mock.patch.object(_call, "QUIET_S", 1.0), self.assertLogs("cairn", "WARNING") as logs:
            self.assertIsInstance(self.beside(lambda: self.step(second))(), cairn.Timeout)
        self.assertEqual(len(logs.output), 1)  # a line a minute
        self.assertRegex(logs.output[0], rf"job {self.name}: waits for worker trainer 0 of rank 0 "
                         r"\(has not committed round \d+\)")

    def test_it_ends_by_itself(self):
        first, second = self.pair()
        with first.pause("dreaming", at_most=0.3):
            failed = self.beside(lambda: self.step(second))()
        self.assertIsInstance(failed, cairn.Timeout)
        self.assertNotIn("dreaming", str(failed))

    def test_a_worker_that_leaves_in_one_holds_nobody_up(self):
        first, second = self.pair()
        with first.pause("evaluating"):
            other = self.beside(lambda: self.step(second))
            first.close()
            self.assertIsInstance(other(), (cairn.EpochChanged, cairn.Timeout))

    def test_what_makes_no_sense_is_refused(self):
        first, _ = self.pair()
        for what, at_most in (("", 1), ("x" * 64, 1), ("a\nb", 1), ("evaluating", 0), ("evaluating", 1e6)):
            with self.assertRaises(cairn.Invalid, msg=repr((what, at_most))):
                with first.pause(what, at_most=at_most):
                    pass


if __name__ == "__main__":
    main()
